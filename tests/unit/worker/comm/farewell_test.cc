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

// What peers read of the end of a transport of rank 1.
TEST(FarewellTest, EndOfATransport_IsToldWithItsOwnNameOrPassedOn) {
  const auto told = [](const absl::Status& reason, Blame blame) {
    return Passed(FarewellOf(1, reason, blame).data());
  };
  const absl::Status own = told(absl::InternalError("full disk"), Blame::kSelf);
  EXPECT_EQ(own.message(), "rank 1 is gone: full disk");
  EXPECT_EQ(AccusedIn(own), Rank{1});
  const absl::Status of_peer =
      told(Accusing(Rank{2}, absl::UnavailableError("rank 2 is gone: reset")), Blame::kPeer);
  EXPECT_EQ(of_peer.message(), "rank 2 is gone: reset");
  EXPECT_EQ(AccusedIn(of_peer), Rank{2});
  const absl::Status stopped = told(absl::CancelledError("asked to"), Blame::kNobody);
  EXPECT_EQ(stopped.message(), "rank 1 was told to stop: asked to");
  EXPECT_TRUE(absl::IsAborted(stopped));
  const absl::Status passed_on =
      told(absl::AbortedError("rank 2 was told to stop"), Blame::kNobody);
  EXPECT_EQ(passed_on.message(), "rank 2 was told to stop");
  EXPECT_TRUE(told(absl::OkStatus(), Blame::kSelf).ok());
}

TEST(FarewellTest, BrokenConnection_IsToldWithoutThePlaceInGloosSource) {
  EXPECT_EQ(Gone(4, "[pair.cc:12] reset").message(), "rank 4 is gone: reset");
  EXPECT_EQ(Gone(4, "reset [by] all").message(), "rank 4 is gone: reset [by] all");
  EXPECT_EQ(AccusedIn(Gone(4, "reset")), Rank{4});
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
