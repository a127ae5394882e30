// Layouts that ranks go over to by choice: who has state that nobody else has keeps its work.
#include "core/plan/kept_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/after.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using testing::HasSubstr;

// Two replicas of two stages: ranks 0 and 2, 1 and 3, or 0 and 1, 2 and 3.
AJob TwoByTwo() {
  AJob job;
  job.Module("language", Llama({.layers = 4}), {.dp = 2, .pp = 2}).Batch(8, 1);
  return job;
}

Plan Back(const Plan& plan, const std::vector<int32_t>& ranks) {
  Change change{.spares = false};
  for (const Rank rank : Ranks(ranks)) change.returned[rank] = plan.DeviceOf(rank);
  return MustPlanAfter(plan, change);
}

// The one that is left of both replicas and the ranks of the other one.
struct LastOne {
  Plan alone;
  int32_t rank = 0, partner = 0;
  std::vector<int32_t> others;
};
LastOne TrainsOnOneRank() {
  const Plan healthy = MustPlan(TwoByTwo(), 4);
  const ReplicaTable& table = healthy.replicas(0);
  LastOne last{.rank = table.At(1, 1, 0, 0).value, .partner = table.At(1, 0, 0, 0).value};
  for (int32_t pp = 0; pp < 2; ++pp) last.others.push_back(table.At(0, pp, 0, 0).value);
  std::vector<int32_t> lost = last.others;
  lost.push_back(last.partner);
  std::sort(lost.begin(), lost.end());
  last.alone = Without(healthy, lost);
  return last;
}

TEST(CheckStateIsKeptTest, OnlyHolderThatWouldHaveNoWork_IsNamed) {
  const LastOne last = TrainsOnOneRank();
  ASSERT_EQ(last.alone.PlacesOf(Rank{last.rank}).size(), 1u);
  const Plan without = Back(last.alone, last.others);
  ASSERT_TRUE(without.PlacesOf(Rank{last.rank}).empty()) << "the other replica trains instead";
  for (const bool mirrored : {false, true}) {
    const absl::Status kept = CheckStateIsKept(last.alone, without, mirrored);
    EXPECT_TRUE(absl::IsDataLoss(kept)) << kept;
    EXPECT_EQ(kept.message(), "rank " + std::to_string(last.rank) +
                                  " alone has some of the state of module language, and would have "
                                  "no work");
  }
}

TEST(CheckStateIsKeptTest, HolderThatGoesOn_GivesItToTheOthers) {
  const LastOne last = TrainsOnOneRank();
  std::vector<int32_t> all = last.others;
  all.push_back(last.partner);
  EXPECT_TRUE(CheckStateIsKept(last.alone, Back(last.alone, all), false).ok());
  EXPECT_TRUE(CheckStateIsKept(last.alone, Back(last.alone, {last.partner}), false).ok());
  EXPECT_TRUE(CheckStateIsKept(last.alone, last.alone, false).ok());
}

// As after a loss: one replica of the healthy layout is left out.
TEST(CheckStateIsKeptTest, MirrorsCount_OnceTheyHaveWhatTheyAreGiven) {
  const Plan healthy = MustPlan(TwoByTwo(), 4);
  const Plan less = Without(healthy, {healthy.replicas(0).At(1, 0, 0, 0).value});
  ASSERT_TRUE(less.PlacesOf(healthy.replicas(0).At(1, 1, 0, 0)).empty());
  EXPECT_TRUE(CheckStateIsKept(healthy, less, true).ok());
  EXPECT_TRUE(absl::IsDataLoss(CheckStateIsKept(healthy, less, false)));
}

TEST(CheckStateIsKeptTest, HolderOnAnotherDevice_IsAnotherProcess) {
  const LastOne last = TrainsOnOneRank();
  Plan moved = last.alone;
  std::swap(moved.layout.nodes[0].devices.front(), moved.layout.nodes[0].devices.back());
  std::swap(moved.layout.nodes[0].devices[1], moved.layout.nodes[0].devices[2]);
  const auto after = Expand(moved.spec, moved.layout);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_THAT(CheckStateIsKept(last.alone, *after, true).message(),
              HasSubstr("would not go on with it"));
}

// They are the same in all replicas, and have no homes.
TEST(CheckStateIsKeptTest, WeightsThatDoNotTrain_NeedAReplicaThatStays) {
  AJob job;
  job.Module("vision", ClipVision(), {.dp = 2})
      .Module("language", Llama(), {.tp = 2})
      .Edge("vision", "language")
      .Batch(4, 2);
  job.spec().modules[0].frozen = true;
  const Plan healthy = MustPlan(job, 4);
  const Rank first = healthy.replicas(0).At(0, 0, 0, 0),
             second = healthy.replicas(0).At(1, 0, 0, 0);
  const Plan one = AfterLoss(healthy, {first}), other = AfterLoss(healthy, {second});
  EXPECT_TRUE(CheckStateIsKept(healthy, one, true).ok());
  EXPECT_THAT(CheckStateIsKept(one, other, true).message(), HasSubstr("state of module vision"));
}

// Who is lost has what it had of the layout that trains, which may be narrower than that of the
// job.
TEST(CheckStateBesideTest, WidthThatWasLostBefore_IsMissedNoMore) {
  AJob job;
  job.Module("vision", ClipVision(), {.tp = 2})
      .Module("language", Llama(), {.dp = 2})
      .Edge("vision", "language")
      .Batch(4, 2);
  job.spec().modules[0].frozen = true;
  const Plan healthy = MustPlan(job, 4);
  const RankList vision = healthy.replicas(0).Ranks(0, 0, 0),
                 language = healthy.replicas(1).Ranks(0, 0, 0);
  const Plan narrow = AfterLoss(healthy, {vision[1]});
  ASSERT_EQ(narrow.PlacesOf(vision[0]).front().width, 1);
  EXPECT_TRUE(CheckStateBeside(narrow, language).ok());
  EXPECT_TRUE(CheckStateBeside(narrow, {vision[1]}).ok());
  EXPECT_THAT(CheckStateBeside(narrow, {vision[0]}).message(), HasSubstr("state of module vision"));
}

// Its last stage trains the projector, which has a home elsewhere; the first one has none.
TEST(CheckStateBesideTest, StageThatDoesNotTrain_IsMissedToo) {
  AJob job;
  job.Module("vision", ClipVision(), {.pp = 2})
      .Module("language", Llama(), {.dp = 2})
      .Edge("vision", "language")
      .Batch(4, 2);
  job.spec().modules[0].frozen = true;
  const Plan plan = MustPlan(job, 4);
  const Rank first = plan.replicas(0).At(0, 0, 0, 0);
  EXPECT_TRUE(absl::IsDataLoss(CheckStateBeside(plan, {first})));
  EXPECT_TRUE(CheckStateBeside(plan, plan.replicas(1).Ranks(0, 0, 0)).ok());
}

}  // namespace
}  // namespace phalanx::plan
