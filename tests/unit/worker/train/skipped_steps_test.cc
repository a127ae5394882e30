// Steps without an update: what they are told as, and when.
#include "worker/train/skipped_steps.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

using testing::HasSubstr;

Decision Step(int64_t step, Verdict verdict, double counted_tokens) {
  return {.step = step, .verdict = verdict, .counted_tokens = counted_tokens};
}

TEST(SkippedStepsTest, StepsWithoutACountedToken_AreToldAsThat) {
  SkippedSteps skipped(3);
  EXPECT_TRUE(skipped.Add(Step(1, Verdict::kSkipped, 0)).ok());
  EXPECT_TRUE(skipped.Add(Step(2, Verdict::kSkipped, 0)).ok());
  const absl::Status status = skipped.Add(Step(3, Verdict::kSkipped, 0));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the last 3 steps up to step 3 had no token that counts in the loss"));
}

TEST(SkippedStepsTest, GradientsThatAreNotFinite_AreCountedOverEmptySteps) {
  SkippedSteps skipped(2);
  EXPECT_TRUE(skipped.Add(Step(1, Verdict::kSkipped, 7)).ok());
  EXPECT_TRUE(skipped.Add(Step(2, Verdict::kSkipped, 0)).ok());
  const absl::Status status = skipped.Add(Step(3, Verdict::kSkipped, 7));
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(status.message(), "the last 2 steps up to step 3 had gradients that are not finite");
}

TEST(SkippedStepsTest, AnUpdate_BeginsAnew) {
  SkippedSteps skipped(2);
  EXPECT_TRUE(skipped.Add(Step(1, Verdict::kSkipped, 7)).ok());
  EXPECT_TRUE(skipped.Add(Step(2, Verdict::kCommitted, 7)).ok());
  EXPECT_TRUE(skipped.Add(Step(3, Verdict::kSkipped, 7)).ok());
  EXPECT_TRUE(skipped.Add(Step(4, Verdict::kSkipped, 0)).ok());
  EXPECT_TRUE(skipped.Add(Step(5, Verdict::kCommitted, 7)).ok());
}

}  // namespace
}  // namespace phalanx::train
