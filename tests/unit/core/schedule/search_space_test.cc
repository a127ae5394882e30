#include "core/schedule/search_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "core/base/violation.h"
#include "core/job/rules.h"
#include "tests/support/specs.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;

job::JobSpec Two(int64_t global = 64) {
  return AJob()
      .Module("vision", ClipVision())
      .Module("language", Llama())
      .Edge("vision", "language", {.projector = 32})
      .Batch(global, 1);
}

std::vector<SearchLayout> All(const job::JobSpec& spec, int32_t devices, int32_t node = 8) {
  return LayoutsOf(spec, {.open = std::vector<bool>(spec.modules.size(), true),
                          .devices = devices,
                          .node_devices = node});
}

TEST(SearchSpaceTest, Layouts_AreSoundAndDiffer) {
  for (const int32_t devices : {1, 2, 3, 4, 6, 8, 32}) {
    const job::JobSpec spec = Two();
    const SearchSpace space{.open = {true, true}, .devices = devices, .node_devices = 8};
    const std::vector<SearchLayout> layouts = LayoutsOf(spec, space);
    ASSERT_FALSE(layouts.empty());
    for (size_t i = 0; i < layouts.size(); ++i) {
      const job::JobSpec laid = WithLayout(spec, space, layouts[i]);
      const std::vector<Violation> violations = job::CheckLayout(laid);
      ASSERT_TRUE(violations.empty()) << ToString(violations.front());
      ASSERT_LE(laid.World(), devices);
      for (size_t j = 0; j < std::min<size_t>(i, 200); ++j) ASSERT_FALSE(layouts[i] == layouts[j]);
    }
  }
}

// Every pair of degrees of two modules on 4 devices, as one would write them by hand.
TEST(SearchSpaceTest, Layouts_OfTwoModulesOnFour_AreAllThatThereAre) {
  using Place = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // offset, tp, pp, dp
  std::set<std::vector<Place>> expected, found;
  const auto degrees = [](int32_t ranks, int32_t layers) {
    std::vector<Degrees> all;
    for (int32_t tp = 1; tp <= ranks; ++tp) {
      for (int32_t pp = 1; pp <= layers; ++pp) {
        if (ranks % (tp * pp) == 0) all.push_back({tp, pp, ranks / tp / pp});
      }
    }
    return all;
  };
  const auto add = [&](int32_t vision, int32_t language, bool shared) {
    for (const Degrees& v : degrees(vision, 2)) {
      for (const Degrees& l : degrees(language, 4)) {
        expected.insert({{0, v.tp, v.pp, v.dp}, {shared ? 0 : vision, l.tp, l.pp, l.dp}});
      }
    }
  };
  add(4, 4, true);
  for (const int32_t vision : {1, 2, 3}) {
    add(vision, 4 - vision, false);
    if (vision == 1) add(1, 2, false);  // the largest power of two of what is left
  }
  for (const SearchLayout& layout : All(Two(), 4)) {
    std::vector<Place> places;
    for (size_t i = 0; i < 2; ++i) {
      const Degrees& d = layout.degrees[i];
      places.emplace_back(layout.span_of[i] == 0 ? 0 : layout.sizes[0], d.tp, d.pp, d.dp);
    }
    found.insert(places);
  }
  EXPECT_EQ(found, expected);
}

TEST(SearchSpaceTest, Layouts_HaveNoMoreReplicasThanSamples) {
  for (const SearchLayout& layout : All(Two(/*global=*/2), 8)) {
    EXPECT_LE(layout.degrees[0].dp, 2);
    EXPECT_LE(layout.degrees[1].dp, 2);
  }
}

TEST(SearchSpaceTest, Layouts_OfManyModules_AreFew) {
  // With a layer for each of 16 stages.
  const auto layouts = [](const std::vector<const char*>& encoders, int32_t devices) {
    AJob job;
    for (const char* name : encoders) job.Module(name, ClipVision({.layers = 16}));
    job.Module("language", Llama({.layers = 16})).Batch(64, 1);
    for (const char* name : encoders) job.Edge(name, "language", {.projector = 32});
    return All(job, devices).size();
  };
  for (const int32_t devices : {8, 9, 12, 16, 17, 64}) {
    for (const auto& encoders : {std::vector<const char*>{"a", "b", "c"},
                                 std::vector<const char*>{"a", "b", "c", "d", "e", "f"}}) {
      EXPECT_GT(layouts(encoders, devices), 0u) << encoders.size() << " on " << devices;
      const size_t most = encoders.size() > 3 ? 30'000 : 500'000;
      EXPECT_LT(layouts(encoders, devices), most) << encoders.size() << " on " << devices;
    }
  }
}

}  // namespace
}  // namespace phalanx::schedule
