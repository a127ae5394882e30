// A rank that is told to make something of a step no number, in each phase that takes it: all ranks
// skip that step, and that one alone.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/job/injected_fault.h"
#include "tests/oracle/training/cases.h"
#include "tests/oracle/training/epochs.h"
#include "worker/train/fault_points.h"

namespace phalanx::oracle {
namespace {

using job::FaultPhase;

class SpoiledTest : public testing::TestWithParam<NamedJob> {
 protected:
  // The step that all skip; 0: there is none, or several.
  static int64_t SkippedBy(const std::vector<train::StepSummary>& told) {
    int64_t skipped = 0;
    for (const train::StepSummary& step : told) {
      if (!step.skipped) continue;
      if (skipped > 0) return 0;
      skipped = step.step;
    }
    return skipped;
  }

  static void Spoil(int32_t rank, FaultPhase phase) {
    SCOPED_TRACE(absl::StrCat("rank ", rank, ", ", job::ToString(phase)));
    job::JobSpec spec = GetParam().spec;
    spec.steps = 6;
    std::vector<std::pair<FaultPhase, int64_t>> reached;
    train::FaultPoints faults([&reached](const job::InjectedFault&, FaultPhase where,
                                         int64_t step) { reached.emplace_back(where, step); });
    EpochsInProcess epochs(spec, GetParam().data);
    epochs.SetFaults(rank, faults);
    faults.Inject({.kind = job::FaultKind::kNan, .rank = rank, .at_step = 2, .phase = phase});
    ASSERT_TRUE(epochs.Run(std::nullopt));
    ASSERT_EQ(reached.size(), 1u);
    EXPECT_EQ(reached[0].first, phase);
    EXPECT_GE(reached[0].second, 2);
    for (int32_t other = 0; other < epochs.world(); ++other)
      EXPECT_EQ(SkippedBy(epochs.told(other)), reached[0].second) << "by rank " << other;
    EXPECT_EQ(epochs.step(), spec.steps);
    const NamedTensors parameters = epochs.Held().parameters;  // copies are alike
    for (const auto& [name, parameter] : parameters)
      EXPECT_TRUE(at::isfinite(parameter).all().item<bool>()) << name;
  }
};

TEST_P(SpoiledTest, Step_IsSkippedByAllAndTrainingGoesOn) {
  for (int32_t rank = 0; rank < GetParam().spec.World(); ++rank) {
    for (const FaultPhase phase :
         {FaultPhase::kForward, FaultPhase::kBackward, FaultPhase::kReduce, FaultPhase::kRecord}) {
      Spoil(rank, phase);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SpoiledTest,
    testing::Values(Named("alone", LanguageAlone({}).Batch(4, 2)),
                    Named("one_microbatch", LanguageAlone({.dp = 2}).Batch(4, 2)),
                    Named("tp2_dp2", LanguageAlone({.tp = 2, .dp = 2}).Batch(8, 2)),
                    Named("tied_head_pp2_dp2",
                          LanguageAlone({.dp = 2, .pp = 2}, {.tied_head = true}).Batch(8, 2)),
                    Named("zero_bubble_tp2_pp2", LanguageAlone({.tp = 2, .pp = 2})
                                                     .Batch(8, 2)
                                                     .Schedule(job::ScheduleName::kZeroBubbleH1)),
                    Named("vision_dp2_language_tp2",
                          VisionAndLanguage({.dp = 2}, {.tp = 2}).Batch(8, 2))),
    NameOf);

}  // namespace
}  // namespace phalanx::oracle
