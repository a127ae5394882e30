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

TEST(ActivationsTest, KeptOfChunks_AreRoundsOfAnInterleavedSchedule) {
  const auto kept = [](int32_t stages, int64_t microbatches, int32_t stage) {
    const Plan plan =
        MustPlan(AJob()
                     .Module("language", Llama({.layers = 2 * stages}), {.pp = stages})
                     .Batch(microbatches, 1)
                     .Schedule(ScheduleName::kInterleaved, 2));
    std::vector<int64_t> of_chunks;
    for (int32_t chunk = 0; chunk < 2; ++chunk)
      of_chunks.push_back(ActivationsKeptOfChunk(plan, 0, stage, chunk, microbatches));
    EXPECT_EQ(of_chunks[0] + of_chunks[1], ActivationsKeptMax(plan, 0, stage, microbatches));
    return of_chunks;
  };
  EXPECT_EQ(kept(2, 6, 0), (std::vector<int64_t>{3, 2})) << "2 of each, and 1";
  EXPECT_EQ(kept(2, 6, 1), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(kept(4, 8, 0), (std::vector<int64_t>{7, 4})) << "4 of each, and 3";
  EXPECT_EQ(kept(2, 2, 0), (std::vector<int64_t>{2, 2})) << "all there are";
}

TEST(ActivationsTest, KeptOfChunks_OfOtherSchedules_AreEven) {
  const Plan plan = MustPlan(AJob()
                                 .Module("language", Llama({.layers = 4}), {.pp = 2})
                                 .Batch(6, 1)
                                 .Schedule(ScheduleName::kZeroBubbleV, 2));
  EXPECT_EQ(ActivationsKeptOfChunk(plan, 0, 0, 0, 6), 2);
  EXPECT_EQ(ActivationsKeptOfChunk(plan, 0, 0, 1, 6), 2);
}

}  // namespace
}  // namespace phalanx::plan
