// Pairs of layouts that an edge joins: on spans of their own, and on the same ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/oracle/training/cases.h"

namespace phalanx::oracle {
namespace {

using job::ScheduleName;
using support::AJob;
using support::Layout;

class BridgeTest : public testing::TestWithParam<NamedJob> {};
TEST_P(BridgeTest, Fp64_EqualsThePlainModel) { ExpectEqualsPlain(GetParam()); }

// As many layers as the deepest pair has stages.
AJob Pair(const Layout& vision, const Layout& language) {
  AJob job;
  job.Module("vision", TinyVision(std::max(2, vision.pp)), vision);
  job.Module("language", TinyLanguage(), language);
  job.Edge("vision", "language", {.projector = 20});
  return job;
}

// Three microbatches a replica of the language module, the last ones smaller.
NamedJob Disjoint(const std::string& name, Layout vision, Layout language) {
  vision.order = language.order = kPipelineInsideData;
  AJob job = Pair(vision, language);
  job.Batch(6 * language.dp - language.dp / 2, 2);
  return Named(name, job);
}

std::vector<NamedJob> OnSpansOfTheirOwn() {
  const Layout one, tp2{.tp = 2}, tp4{.tp = 4}, dp2{.dp = 2}, dp3{.dp = 3}, dp4{.dp = 4};
  const Layout tp2dp2{.tp = 2, .dp = 2}, tp2pp2{.tp = 2, .pp = 2}, tp2pp3{.tp = 2, .pp = 3};
  const Layout all2{.tp = 2, .dp = 2, .pp = 2}, tp4pp2{.tp = 4, .pp = 2}, pp2dp4{.dp = 4, .pp = 2};
  const Layout tp2pp4{.tp = 2, .pp = 4};
  return {
      Disjoint("B1_tp2_dp2_to_tp4", tp2dp2, tp4),
      Disjoint("B2_tp4_to_tp2_dp2", tp4, tp2dp2),
      Disjoint("B3_tp2_to_tp2", tp2, tp2),
      Disjoint("B4_dp4_to_tp4", dp4, tp4),
      Disjoint("B5_tp4_to_dp4", tp4, dp4),
      Disjoint("B6_tp2_to_tp2_pp3", tp2, tp2pp3),
      Disjoint("B7_tp2_pp2_to_tp2_pp2", tp2pp2, tp2pp2),
      Disjoint("tp4_to_tp4", tp4, tp4),
      Disjoint("one_to_one", one, one),
      Disjoint("one_to_dp4", one, dp4),
      Disjoint("dp4_to_one", dp4, one),
      Disjoint("tp2_dp2_to_dp4", tp2dp2, dp4),
      Disjoint("tp2_dp2_to_tp2_pp2", tp2dp2, tp2pp2),
      Disjoint("dp4_to_tp2_pp2", dp4, tp2pp2),
      Disjoint("tp2_pp2_to_dp4", tp2pp2, dp4),
      Disjoint("dp2_to_tp2_pp3", dp2, tp2pp3),
      Disjoint("dp3_to_dp2", dp3, dp2),
      Disjoint("dp2_to_dp3", dp2, dp3),
      Disjoint("tp2_dp3_to_tp3_dp2", {.tp = 2, .dp = 3}, {.tp = 3, .dp = 2}),
      Disjoint("tp2_pp2_dp2_to_tp2_pp2_dp2", all2, all2),
      Disjoint("tp4_pp2_to_tp4_pp2", tp4pp2, tp4pp2),
      Disjoint("pp2_dp4_to_pp2_dp4", pp2dp4, pp2dp4),
      Disjoint("tp2_pp4_to_tp2_pp4", tp2pp4, tp2pp4),
  };
}
INSTANTIATE_TEST_SUITE_P(OnSpansOfTheirOwn, BridgeTest, testing::ValuesIn(OnSpansOfTheirOwn()),
                         NameOf);

NamedJob Shared(const std::string& name, Layout vision, Layout language, ScheduleName schedule,
                int64_t microbatches, int32_t offset = 0) {
  vision.offset = language.offset = offset;
  AJob job = Pair(vision, language);
  job.Batch(microbatches * language.dp, 1).Schedule(schedule);
  return Named(name, job);
}

const std::vector<std::pair<std::string, AxisOrder>>& Orders() {
  static const std::vector<std::pair<std::string, AxisOrder>> orders = {
      {"pp_outermost", job::Parallel{}.order},
      {"pp_inside_dp", kPipelineInsideData},
      {"pp_innermost", kPipelineFirst}};
  return orders;
}

const std::vector<std::pair<std::string, ScheduleName>>& SharedSchedules() {
  static const std::vector<std::pair<std::string, ScheduleName>> schedules = {
      {"1f1b", ScheduleName::k1F1B}, {"three_phase", ScheduleName::kThreePhase}};
  return schedules;
}

std::vector<NamedJob> OnTheSameRanks() {
  const Layout tp2dp4{.tp = 2, .dp = 4}, tp4dp2{.tp = 4, .dp = 2}, tp2dp2{.tp = 2, .dp = 2};
  std::vector<NamedJob> jobs;
  for (const auto& [name, schedule] : SharedSchedules()) {
    auto add = [&](const std::string& pair, const Layout& vision, const Layout& language,
                   int32_t offset = 0) {
      jobs.push_back(Shared(absl::StrCat(pair, "_", name), vision, language, schedule, 3, offset));
    };
    add("C1_tp2_dp4_to_tp4_dp2", tp2dp4, tp4dp2);
    add("C2_tp4_dp2_to_tp2_dp4", tp4dp2, tp2dp4);
    add("C3_tp2_dp2_to_dp4_behind_idle_ranks", tp2dp2, {.dp = 4}, 4);
    add("C7_tp4_dp2_to_tp4_dp2", tp4dp2, tp4dp2);
    add("dp3_to_tp3", {.dp = 3}, {.tp = 3});
    add("tp2_dp3_to_tp3_dp2", {.tp = 2, .dp = 3}, {.tp = 3, .dp = 2});
    for (const auto& [order_name, order] : Orders()) {
      add("tp2_dp4_to_tp2_pp2_dp2_" + order_name, tp2dp4,
          {.tp = 2, .dp = 2, .pp = 2, .order = order});
      add("tp4_dp2_to_pp2_dp4_" + order_name, tp4dp2, {.dp = 4, .pp = 2, .order = order});
      add("pp2_dp2_to_pp2_dp2_" + order_name, {.dp = 2, .pp = 2, .order = kPipelineInsideData},
          {.dp = 2, .pp = 2, .order = order});
    }
  }
  return jobs;
}
INSTANTIATE_TEST_SUITE_P(OnTheSameRanks, BridgeTest, testing::ValuesIn(OnTheSameRanks()), NameOf);

std::vector<NamedJob> EncoderDp4() {
  const std::vector<std::pair<std::string, Layout>> languages = {
      {"tp2_pp2", {.tp = 2, .pp = 2}}, {"pp4", {.pp = 4}}, {"tp2_dp2", {.tp = 2, .dp = 2}}};
  std::vector<NamedJob> jobs;
  for (const auto& [schedule_name, schedule] : SharedSchedules()) {
    for (const auto& [language_name, layout] : languages) {
      for (const auto& [order_name, order] : Orders()) {
        for (const int64_t microbatches : {1, 2, 8}) {
          Layout language = layout;
          language.order = order;
          jobs.push_back(Shared(absl::StrCat(language_name, "_", order_name, "_", schedule_name,
                                             "_microbatches_", microbatches),
                                {.dp = 4}, language, schedule, microbatches));
        }
      }
    }
  }
  return jobs;
}
INSTANTIATE_TEST_SUITE_P(EncoderDp4OnTheRanksOf, BridgeTest, testing::ValuesIn(EncoderDp4()),
                         NameOf);

}  // namespace
}  // namespace phalanx::oracle
