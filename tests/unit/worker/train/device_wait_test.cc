#include "worker/train/device_wait.h"

#include <atomic>

#include "core/job/failure.h"
#include "core/posix/activity.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

using testing::HasSubstr;

struct ADevice {
  int polls_until_done = 1 << 30;
  bool stopped = false;
  absl::Status says;
  int checks = 0;
  bool excused = false;

  absl::Status Await(absl::Duration patience) {
    return AwaitDevice({.done = [this] { return --polls_until_done < 0; },
                        .stopped = [this] { return stopped; },
                        .check =
                            [this] {
                              ++checks;
                              return says;
                            },
                        .excused = [this] { return excused; },
                        .patience = patience,
                        .missing = "step 7 is not decided"});
  }
};

TEST(AwaitDeviceTest, WhatIsDone_IsNotWaitedFor) {
  ADevice device{.polls_until_done = 0, .stopped = true, .says = absl::InternalError("broken")};
  EXPECT_TRUE(device.Await(absl::ZeroDuration()).ok());
  EXPECT_EQ(device.checks, 0);
}

TEST(AwaitDeviceTest, DeviceThatComesLater_IsWaitedFor) {
  ADevice device{.polls_until_done = 3};
  EXPECT_TRUE(device.Await(absl::Minutes(1)).ok());
}

TEST(AwaitDeviceTest, Stopped_IsCancelled) {
  ADevice device{.stopped = true};
  EXPECT_TRUE(absl::IsCancelled(device.Await(absl::Minutes(1))));
}

TEST(AwaitDeviceTest, DeviceThatHasFailed_IsNoPeersFault) {
  ADevice device{.says = job::WithKind(job::FailureKind::kDeviceFailed,
                                       absl::InternalError("an illegal memory access"))};
  const absl::Status status = device.Await(absl::Minutes(1));  // long before the time is up
  EXPECT_EQ(job::KindIn(status), job::FailureKind::kDeviceFailed);
  EXPECT_THAT(status.message(), HasSubstr("illegal memory access"));
}

TEST(AwaitDeviceTest, FailureThatIsSeenOnlyAtTheEnd_StandsBeforeTheSilence) {
  ADevice device{.says = job::WithKind(job::FailureKind::kDeviceFailed, absl::InternalError("x"))};
  EXPECT_EQ(job::KindIn(device.Await(absl::ZeroDuration())), job::FailureKind::kDeviceFailed);
}

TEST(AwaitDeviceTest, HealthyDeviceThatDoesNotCome_WaitsForAPeer) {
  ADevice device;
  const absl::Status status = device.Await(absl::ZeroDuration());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(job::KindIn(status), job::FailureKind::kPeerLost);
  EXPECT_THAT(status.message(), HasSubstr("step 7 is not decided after 0"));
  EXPECT_GT(device.checks, 0);
}

// Where all ranks show it, nobody gets any further.
TEST(AwaitDeviceTest, Wait_ShowsThatItNeedsTheDevice_UnlessThatIsExcused) {
  std::atomic<uint64_t> word = 0;
  const ActivityOfThread shown(&word);
  const Working working;
  for (const bool excused : {false, true}) {
    bool needs = excused;
    const absl::Status waited = AwaitDevice({.done =
                                                 [&] {
                                                   needs = ShowsNeed(word);
                                                   return true;
                                                 },
                                             .stopped = [] { return false; },
                                             .check = [] { return absl::OkStatus(); },
                                             .excused = [excused] { return excused; },
                                             .patience = absl::Minutes(1),
                                             .missing = "nothing"});
    EXPECT_TRUE(waited.ok());
    EXPECT_EQ(needs, !excused);
    EXPECT_TRUE(ShowsWork(word));
  }
}

// From then on it counts.
TEST(AwaitDeviceTest, ExcuseThatIsOver_ShowsWhileItWaits) {
  std::atomic<uint64_t> word = 0;
  const ActivityOfThread shown(&word);
  const Working working;
  ADevice device{.excused = true};
  bool needed_before = false;
  const absl::Status waited = AwaitDevice({.done =
                                               [&] {
                                                 if (device.checks == 0) {
                                                   needed_before |= ShowsNeed(word);
                                                   return false;
                                                 }
                                                 return ShowsNeed(word);
                                               },
                                           .stopped = [] { return false; },
                                           .check =
                                               [&] {
                                                 ++device.checks;
                                                 return absl::OkStatus();
                                               },
                                           .excused = [&] { return device.checks == 0; },
                                           .patience = absl::Minutes(1),
                                           .missing = "the end of the excuse"});
  EXPECT_TRUE(waited.ok());
  EXPECT_FALSE(needed_before);
}

}  // namespace
}  // namespace phalanx::train
