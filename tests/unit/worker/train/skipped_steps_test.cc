// Steps without an update: what they are told as, and when.
#include "worker/train/skipped_steps.h"

#include <string>
#include <vector>

#include "core/job/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

using testing::HasSubstr;

// The steps of one epoch as Trainer adds them: the state has counted each before.
absl::Status AddAll(int64_t in_a_row_max, const std::vector<Verdict>& verdicts,
                    int64_t skipped_before = 0) {
  SkippedSteps skipped(in_a_row_max);
  int64_t step = 0, in_a_row = skipped_before;
  absl::Status status;
  for (const Verdict verdict : verdicts) {
    if (verdict != Verdict::kEmpty) in_a_row = verdict == Verdict::kSkipped ? in_a_row + 1 : 0;
    EXPECT_TRUE(status.ok()) << "ended before its last step: " << status;
    status = skipped.Add({.step = ++step, .verdict = verdict}, in_a_row);
  }
  return status;
}

TEST(SkippedStepsTest, StepsWithoutACountedToken_AreToldAsThat) {
  const absl::Status status = AddAll(3, {Verdict::kEmpty, Verdict::kEmpty, Verdict::kEmpty});
  EXPECT_EQ(job::KindOf(status), job::FailureKind::kDataInvalid);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the last 3 steps up to step 3 had no token that counts in the loss"));
}

TEST(SkippedStepsTest, GradientsThatAreNotFinite_AreCountedOverEmptySteps) {
  const absl::Status status = AddAll(2, {Verdict::kSkipped, Verdict::kEmpty, Verdict::kSkipped});
  EXPECT_EQ(job::KindOf(status), job::FailureKind::kNonFinite);
  EXPECT_EQ(status.message(), "the last 2 steps up to step 3 had gradients that are not finite");
}

TEST(SkippedStepsTest, StepThatIsNotFiniteAndHasNoToken_IsNotFinite) {
  SkippedSteps skipped(1);
  const absl::Status status =
      skipped.Add({.step = 1, .verdict = Verdict::kSkipped, .counted_tokens = 0}, 1);
  EXPECT_EQ(job::KindOf(status), job::FailureKind::kNonFinite);
}

TEST(SkippedStepsTest, StepsOfAnEpochBefore_CountAsTheStateCountsThem) {
  EXPECT_TRUE(absl::IsDataLoss(AddAll(3, {Verdict::kSkipped}, /*skipped_before=*/2)));
}

TEST(SkippedStepsTest, AnUpdate_BeginsAnew) {
  EXPECT_TRUE(AddAll(2, {Verdict::kSkipped, Verdict::kCommitted, Verdict::kSkipped, Verdict::kEmpty,
                         Verdict::kCommitted, Verdict::kEmpty})
                  .ok());
}

}  // namespace
}  // namespace phalanx::train
