#include "worker/comm/farewell.h"

#include "core/base/accused.h"
#include "gtest/gtest.h"

namespace phalanx::comm {
namespace {

TEST(FarewellTest, Failure_AccusesAndSaysWhy) {
  std::string farewell = FarewellOf(Leaving::kFailed, "rank 1 is gone: full disk", Rank{3});
  ASSERT_EQ(farewell.size(), kFarewellBytes);
  const absl::Status passed = Passed(farewell.data());
  EXPECT_TRUE(absl::IsUnavailable(passed));
  EXPECT_EQ(passed.message(), "rank 1 is gone: full disk");
  EXPECT_EQ(AccusedIn(passed), Rank{3});
}

TEST(FarewellTest, Stop_AccusesNobody) {
  std::string farewell = FarewellOf(Leaving::kStopped, "rank 1 was told to stop", Rank{1});
  const absl::Status passed = Passed(farewell.data());
  EXPECT_TRUE(absl::IsAborted(passed));
  EXPECT_FALSE(AccusedIn(passed).has_value());
}

TEST(FarewellTest, HealthyOrNone_IsOk) {
  std::string healthy = FarewellOf(Leaving::kHealthy, "", Rank{1});
  EXPECT_EQ(HowLeft(healthy.data()), Leaving::kHealthy);
  EXPECT_TRUE(Passed(healthy.data()).ok());
  std::string none(kFarewellBytes, '\0');
  EXPECT_EQ(HowLeft(none.data()), Leaving::kNotYet);
  EXPECT_TRUE(Passed(none.data()).ok());
}

// No end of text is in it, and nothing behind it is read.
TEST(FarewellTest, TextThatIsTooLong_IsCut) {
  std::string farewell =
      FarewellOf(Leaving::kFailed, std::string(10 * kFarewellBytes, 'x'), Rank{0x01010101});
  ASSERT_EQ(farewell.size(), kFarewellBytes);
  const absl::Status passed = Passed(farewell.data());
  EXPECT_EQ(passed.message(), std::string(kFarewellBytes - 5, 'x'));
  EXPECT_EQ(AccusedIn(passed), Rank{0x01010101});
}

}  // namespace
}  // namespace phalanx::comm
