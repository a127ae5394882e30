#include "core/schedule/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "core/schedule/wiring.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::NoArchitecture;
using ::testing::ElementsAre;

TEST(TimelineTest, OneForwardOneBackward_WarmupOfOne_AlternatesAfterIt) {
  EXPECT_THAT(OneForwardOneBackward(1, 3),
              ElementsAre(Pass{false, 0}, Pass{false, 1}, Pass{true, 0}, Pass{false, 2},
                          Pass{true, 1}, Pass{true, 2}));
}

TEST(TimelineTest, OneForwardOneBackward_WarmupBeyondMicrobatches_IsAllForwardThenAllBackward) {
  EXPECT_THAT(OneForwardOneBackward(7, 2),
              ElementsAre(Pass{false, 0}, Pass{false, 1}, Pass{true, 0}, Pass{true, 1}));
}

TEST(TimelineTest, MakeTimeline_UnequalStages_StartsEachPassWhenItsDataIsThere) {
  const Pipeline pipeline = MakePipeline(Chain(2, 2));
  const Timeline timeline =
      MakeTimeline(pipeline, {OneForwardOneBackward(1, 2), OneForwardOneBackward(0, 2)},
                   {TickCost{2, 3, 4}, TickCost{5, 6, 7}});
  std::map<std::tuple<int32_t, bool, int32_t>, int64_t> begin;
  for (const TimedPass& timed : timeline.passes) {
    begin[{timed.part, timed.pass.backward, timed.pass.microbatch}] = timed.begin;
  }
  EXPECT_EQ((begin[{0, false, 0}]), 0);
  EXPECT_EQ((begin[{0, false, 1}]), 2);
  EXPECT_EQ((begin[{1, false, 0}]), 2);  // behind the other's first forward
  EXPECT_EQ((begin[{1, true, 0}]), 7);
  EXPECT_EQ((begin[{0, true, 0}]), 13);   // the input gradient leaves before the weights' pass
  EXPECT_EQ((begin[{1, false, 1}]), 20);  // 7 + 6 + 7
  EXPECT_EQ((begin[{0, true, 1}]), 31);
  EXPECT_THAT(timeline.class_end, ElementsAre(38, 38));
}

TEST(TimelineTest, MakeTimeline_PartsOnTheSameRanks_NeverRunAtTheSameTime) {
  for (const NamedPlan& graph : Graphs()) {
    const Pipeline pipeline = MakePipeline(graph.plan);
    std::vector<std::vector<Pass>> orders;
    for (const Part& part : pipeline.parts) {
      orders.push_back(
          OneForwardOneBackward(pipeline.stages - part.graph_stage - 1, pipeline.microbatches));
    }
    const std::vector<TickCost> costs(pipeline.parts.size(), TickCost{10, 7, 5});
    const Timeline timeline = MakeTimeline(pipeline, orders, costs);
    std::vector<int64_t> free(pipeline.classes.size(), 0);
    for (const TimedPass& timed : timeline.passes) {
      for (int32_t c : pipeline.parts[static_cast<size_t>(timed.part)].classes) {
        EXPECT_LE(free[static_cast<size_t>(c)], timed.begin) << graph.name;
        free[static_cast<size_t>(c)] = timed.begin + (timed.pass.backward ? 12 : 10);
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

}  // namespace
}  // namespace phalanx::schedule
