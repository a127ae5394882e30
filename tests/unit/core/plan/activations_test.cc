#include "core/plan/activations.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using job::ScheduleName;
using support::AJob;
using support::ClipVision;
using support::Llama;

// Of each stage of the language module, which is the last one.
std::vector<bool> OneOf(const job::JobSpec& spec) {
  const Plan plan = MustPlan(spec);
  const ModulePlan& language = plan.modules.back();
  std::vector<bool> one;
  for (int32_t stage = 0; stage < language.pp(); ++stage)
    one.push_back(BackwardIsOne(plan, {language.index, stage, 0}));
  return one;
}

TEST(ActivationsTest, BackwardPasses_AreOne_WhereNobodyElseWaitsForTheirGradient) {
  const job::Architecture language = Llama({.layers = 4});
  EXPECT_EQ(OneOf(AJob().Module("language", language, {.pp = 2})),
            (std::vector<bool>{true, false}));
  EXPECT_EQ(OneOf(AJob().Module("language", language, {.pp = 2}).Schedule(ScheduleName::k1F1B)),
            (std::vector<bool>{true, false}));
  EXPECT_EQ(OneOf(AJob().Module("language", language).Schedule(ScheduleName::kZeroBubbleH1)),
            (std::vector<bool>{false}));
}

TEST(ActivationsTest, BackwardPasses_OfSharedRanks_AreOne) {
  const auto with_vision = [](const support::Layout& vision, const support::Layout& language) {
    return OneOf(AJob()
                     .Module("vision", ClipVision(), vision)
                     .Module("language", Llama({.layers = 4}), language)
                     .Edge("vision", "language"));
  };
  EXPECT_EQ(with_vision({.dp = 2}, {.tp = 2, .offset = 0}), (std::vector<bool>{true}));
  EXPECT_EQ(with_vision({.dp = 2}, {.tp = 2}), (std::vector<bool>{false})) << "ranks of its own";
  EXPECT_EQ(with_vision({.dp = 2, .frozen = true}, {.tp = 2}), (std::vector<bool>{true}))
      << "no gradient leaves";
  EXPECT_EQ(with_vision({.dp = 4}, {.tp = 2, .pp = 2, .offset = 0}),
            (std::vector<bool>{false, false}))
      << "ranks of the second stage wait for the first one's";
}

TEST(ActivationsTest, BackwardPasses_OfAPartThatDoesNotTrain_AreNotOne) {
  EXPECT_EQ(OneOf(AJob()
                      .Module("vision", ClipVision())
                      .Module("language", Llama(), {.offset = 0, .frozen = true})
                      .Edge("vision", "language")),
            (std::vector<bool>{false}));
}

Plan InChunks(int32_t stages, int64_t microbatches, ScheduleName schedule) {
  return MustPlan(AJob()
                      .Module("language", Llama({.layers = 2 * stages}), {.pp = stages})
                      .Batch(microbatches, 1)
                      .Schedule(schedule, 2));
}

// Early chunks keep as much as the late ones, and up to all there is.
TEST(ActivationsTest, KeptBytes_OfChunks_AreThoseOfTheWorstMix) {
  const Plan plan = InChunks(2, 6, ScheduleName::kInterleaved);
  ASSERT_EQ(ActivationsKeptMax(plan, 0, 0, 6), 5);
  EXPECT_EQ(KeptBytesMax(plan, 0, 0, 6, {100, 100}), 500) << "whatever the mix";
  EXPECT_EQ(KeptBytesMax(plan, 0, 0, 6, {200, 100}), 1000) << "of the first chunk alone";
  EXPECT_EQ(KeptBytesMax(plan, 0, 0, 6, {100, 200}), 750) << "as many of either";
  EXPECT_EQ(KeptBytesMax(plan, 0, 0, 2, {100, 200}), 600) << "all there are";
  const Plan some = InChunks(4, 8, ScheduleName::kInterleaved);
  ASSERT_EQ(ActivationsKeptMax(some, 0, 0, 8), 11);
  EXPECT_EQ(KeptBytesMax(some, 0, 0, 8, {200, 100}), 8 * 200 + 3 * 100)
      << "of the first chunk no more than there are microbatches";
  EXPECT_EQ(KeptBytesMax(plan, 0, 0, 6, {}), 0);
}

TEST(ActivationsTest, KeptBytes_OfDelayedWeights_MayBeOfEitherChunk) {
  const Plan plan = InChunks(2, 6, ScheduleName::kZeroBubbleV);
  ASSERT_EQ(ActivationsKeptMax(plan, 0, 0, 6), 4);
  EXPECT_EQ(KeptBytesMax(plan, 0, 0, 6, {100, 100}), 400);
  EXPECT_EQ(KeptBytesMax(plan, 0, 0, 6, {200, 100}), 700);
  EXPECT_EQ(KeptBytesMax(plan, 0, 0, 6, {100, 200}), 700);
  EXPECT_EQ(KeptBytesMax(plan, 0, 0, 1, {100, 200}), 300) << "all there are";
}

TEST(ActivationsTest, KeptBytes_OfOneChunk_AreThoseOfEachMicrobatch) {
  const Plan plan = MustPlan(AJob()
                                 .Module("language", Llama({.layers = 4}), {.pp = 2})
                                 .Batch(6, 1)
                                 .Schedule(ScheduleName::k1F1B));
  EXPECT_EQ(KeptBytesMax(plan, 0, 0, 6, {100}), 200);
  EXPECT_EQ(KeptBytesMax(plan, 0, 1, 6, {100}), 100);
}

}  // namespace
}  // namespace phalanx::plan
