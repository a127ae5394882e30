// Epochs that end at a random operation of a random step, and others that go on with the same
// states: every step is taken once, and all is as if nothing had happened.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "core/base/prng.h"
#include "tests/oracle/training/cases.h"
#include "tests/oracle/training/epochs.h"

namespace phalanx::oracle {
namespace {

constexpr int32_t kStops = 50;  // of each case

struct Footprint {
  int64_t descriptors = 0, resident_bytes = 0;
};
Footprint Now() {
  Footprint now;
  now.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  now.resident_bytes = pages * sysconf(_SC_PAGESIZE);
  return now;
}

struct StoppingCase {
  NamedJob job;
  plan::RankList lost = {};
};

class StoppingTest : public testing::TestWithParam<StoppingCase> {
 protected:
  // Which rank is how far when an epoch ends is up to the threads: over all layouts some epoch ends
  // when one rank has decided a step that another has not applied.
  static void TearDownTestSuite() {
    EXPECT_GT(left_behind_, 0) << "no epoch ended inside a decision";
  }
  inline static int64_t left_behind_ = 0;
};

TEST_P(StoppingTest, EpochsThatEndAnywhere_TrainAsOneThatDoesNot) {
  const auto& [job, lost] = GetParam();
  job::JobSpec spec = job.spec;
  spec.steps = 2 * kStops + 4;  // an epoch takes two steps and a half at most
  EpochsInProcess unbroken(spec, job.data, lost), broken(spec, job.data, lost);
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < broken.world(); ++rank) {
    if (std::find(lost.begin(), lost.end(), Rank{rank}) == lost.end()) ranks.push_back(rank);
  }
  ASSERT_TRUE(unbroken.Run(std::nullopt));
  EpochsInProcess counted(spec, job.data, lost);
  const auto operations_of = [&counted](int64_t steps) {
    const int64_t before = counted.operations();
    counted.RunSteps(steps);
    return static_cast<uint64_t>(counted.operations() - before);
  };
  operations_of(1);  // the first epoch begins otherwise
  const uint64_t of_one = operations_of(1), a_step = operations_of(2) - of_one;

  Prng prng(7);
  Footprint early;
  for (int32_t stop = 0; stop < kStops; ++stop) {
    // Anywhere in two steps, and every other time among the last operations of one and the first of
    // the next, between which it is decided and applied.
    const uint64_t near_the_end =
        prng.Below(2) * a_step + of_one + ranks.size() - prng.Below(2 * ranks.size());
    const Ending ending{
        .kind = static_cast<Ending::Kind>(prng.Below(3)),
        .at = static_cast<int64_t>(stop % 2 == 0 ? prng.Below(of_one + a_step) : near_the_end),
        .rank = ranks[static_cast<size_t>(prng.Below(ranks.size()))]};
    ASSERT_FALSE(broken.Run(ending)) << "stop " << stop;
    if (stop == 10) early = Now();
  }
  const Footprint late = Now();
  EXPECT_EQ(late.descriptors, early.descriptors);
  EXPECT_LE(late.resident_bytes, early.resident_bytes + (8 << 20));
  left_behind_ += broken.left_behind();
  ASSERT_TRUE(broken.Run(std::nullopt));

  for (const int32_t rank : ranks) {
    ASSERT_EQ(broken.told(rank).size(), static_cast<size_t>(spec.steps)) << "rank " << rank;
    for (size_t i = 0; i < broken.told(rank).size(); ++i) {
      const train::StepSummary& step = broken.told(rank)[i];
      const train::StepSummary& expected = unbroken.told(rank)[i];
      EXPECT_EQ(step.step, static_cast<int64_t>(i) + 1) << "rank " << rank;
      EXPECT_NEAR(step.loss, expected.loss, 1e-9 * expected.loss)
          << "rank " << rank << " step " << step.step;
      EXPECT_EQ(step.tokens, expected.tokens);
      EXPECT_EQ(step.counted_tokens, expected.counted_tokens);
      EXPECT_EQ(step.learning_rate, expected.learning_rate);
    }
  }
  const WorstTensor worst = Compare(broken.Held().parameters, unbroken.Held().parameters);
  EXPECT_LE(worst.error, 1e-9) << worst.name;
}

std::vector<StoppingCase> Stopped() {
  const auto language = [](const support::Layout& layout, const TinyDecoder& shape = {}) {
    return support::AJob().Module("language", TinyLanguage(shape), layout);
  };
  std::vector<StoppingCase> cases = {
      {Named("vision_dp2_language_tp2_pp2",
             support::AJob()
                 .Module("vision", TinyVision(), {.dp = 2})
                 .Module("language", TinyLanguage(), {.tp = 2, .pp = 2})
                 .Edge("vision", "language", {.projector = 16})
                 .Batch(8, 2))},
      {Named("tied_head_pp2_dp3", language({.dp = 3, .pp = 2}, {.tied_head = true}).Batch(6, 1))},
      {Named(
          "interleaved_pp2_dp2",
          language({.dp = 2, .pp = 2}).Batch(8, 2).Schedule(job::ScheduleName::kInterleaved, 2))},
      {Named("zero_bubble_tp2_dp2",
             language({.tp = 2, .dp = 2}).Batch(8, 2).Schedule(job::ScheduleName::kZeroBubbleH1))},
      {Named("widths_3_and_2", language({.tp = 3, .dp = 2}).Batch(6, 2)), {Rank{4}}}};
  support::AJob three = language({.tp = 2, .dp = 3}).Batch(6, 2);
  three.spec().recovery.state_copies = 3;
  cases.push_back({Named("widths_2_1_2_in_three_homes", std::move(three)), {Rank{2}}});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Layouts, StoppingTest, testing::ValuesIn(Stopped()),
                         [](const auto& info) { return info.param.job.name; });

}  // namespace
}  // namespace phalanx::oracle
