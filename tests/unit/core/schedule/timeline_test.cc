#include "core/schedule/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <tuple>

#include "core/schedule/order_rules.h"
#include "core/schedule/wiring.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::NoArchitecture;
using ::testing::ElementsAre;

constexpr PassKind kF = PassKind::kForward, kB = PassKind::kBackwardInput,
                   kW = PassKind::kBackwardWeight;

TEST(TimelineTest, MakeTimeline_UnequalStages_StartsEachPassWhenItsDataIsThere) {
  const plan::Plan plan = Chain(2, 2);
  const Pipeline pipeline = MakePipeline(plan);
  const Timeline timeline = MakeTimeline(pipeline, RulesOf(plan, pipeline).front(),
                                         {TickCost{2, 3, 4}, TickCost{5, 6, 7}});
  std::map<std::tuple<int32_t, PassKind, int32_t>, int64_t> begin;
  for (const TimedPass& timed : timeline.passes) {
    begin[{timed.part, timed.kind, timed.microbatch}] = timed.begin;
  }
  EXPECT_EQ((begin[{0, kF, 0}]), 0);
  EXPECT_EQ((begin[{0, kF, 1}]), 2);
  EXPECT_EQ((begin[{1, kF, 0}]), 2);  // behind the other's first forward
  EXPECT_EQ((begin[{1, kB, 0}]), 7);
  EXPECT_EQ((begin[{0, kB, 0}]), 13);  // the input gradient leaves before the weights' pass
  EXPECT_EQ((begin[{1, kW, 0}]), 13);
  EXPECT_EQ((begin[{1, kF, 1}]), 20);  // 7 + 6 + 7
  EXPECT_EQ((begin[{0, kB, 1}]), 31);
  EXPECT_THAT(timeline.part_end, ElementsAre(38, 38));
  EXPECT_EQ(timeline.end, 38);
}

TEST(TimelineTest, MakeTimeline_PartsOnTheSameRanks_NeverRunAtTheSameTime) {
  for (const NamedPlan& graph : Graphs()) {
    const Pipeline pipeline = MakePipeline(graph.plan);
    const std::vector<TickCost> costs(pipeline.parts.size(), TickCost{10, 7, 5});
    const Timeline timeline = MakeTimeline(pipeline, RulesOf(graph.plan, pipeline).front(), costs);
    std::vector<int64_t> free(pipeline.classes.size(), 0);
    for (const TimedPass& timed : timeline.passes) {
      const int64_t length = timed.kind == kF ? 10 : timed.kind == kB ? 7 : 5;
      for (int32_t c : pipeline.crews[static_cast<size_t>(timed.crew)].classes) {
        EXPECT_LE(free[static_cast<size_t>(c)], timed.begin) << graph.name;
        free[static_cast<size_t>(c)] = timed.begin + length;
      }
    }
  }
}

TEST(PipelineTest, MakePipeline_ColocatedModules_HaveAClassForEachSetOfParts) {
  const plan::Plan plan =
      PlanOf(AJob()
                 .Module("vision", NoArchitecture(), {.dp = 4})
                 .Module("language", NoArchitecture(), {.tp = 2, .pp = 2, .offset = 0})
                 .Edge("vision", "language"));
  const Pipeline pipeline = MakePipeline(plan);
  ASSERT_EQ(pipeline.classes.size(), 2);
  EXPECT_THAT(pipeline.classes[0].parts, ElementsAre(0, 1));
  EXPECT_THAT(pipeline.classes[1].parts, ElementsAre(0, 2));
  EXPECT_EQ(pipeline.classes[0].ranks, 2);
  EXPECT_EQ(pipeline.classes[1].first, Rank{2});
}

TEST(WiringTest, WireRanks_UnevenSamples_ShareFewPatterns) {
  const plan::Plan plan = PlanOf(AJob()
                                     .Module("vision", NoArchitecture(), {.dp = 3})
                                     .Module("language", NoArchitecture(), {.dp = 2})
                                     .Edge("vision", "language")
                                     .Batch(127, 2));
  const Wiring wiring = WireRanks(plan, MakePipeline(plan));
  EXPECT_EQ(wiring.pattern_of.size(), 32);
  EXPECT_EQ(wiring.from[0].of_pattern.size(),
            2);  // the last microbatch of replica 1 has one sample
}

// Whose turn it is follows from how many passes the stage has run: no chunk is looked at.
TEST(TimelineTest, MakeTimeline_InTurn_TakesNoLongerThanOtherOrders) {
  const plan::Plan plan = ChainUnder(job::ScheduleName::kInterleaved, 16, 16, 64);
  const Pipeline pipeline = MakePipeline(plan);
  const std::vector<TickCost> costs(pipeline.parts.size());
  double in_turn = 0, others = 0;  // processor seconds
  for (int tries = 0; tries < 2; ++tries) {
    for (const OrderRules& rules : RulesOf(plan, pipeline)) {
      const std::clock_t begin = std::clock();
      MakeTimeline(pipeline, rules, costs);
      (rules.in_turn ? in_turn : others) +=
          static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    }
  }
  EXPECT_GT(in_turn, 0);
  EXPECT_LT(in_turn, 2 * others);
}

}  // namespace
}  // namespace phalanx::schedule
