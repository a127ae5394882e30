// Where errors of devices come from: a file, and a library in NVML's place.
#include "worker/agent/device_events.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

using Faults = std::vector<std::pair<int32_t, int32_t>>;

class DeviceEventsTest : public ::testing::Test {
 protected:
  // The next `count` of them.
  Faults Await(size_t count) {
    Faults faults;
    while (faults.size() < count) {
      pollfd entry{inbox.fd(), POLLIN, 0};
      if (poll(&entry, 1, 20'000) != 1) break;
      for (const Event& event : inbox.TakeAll()) {
        const auto& fault = std::get<DeviceFaulted>(event);
        faults.emplace_back(fault.device, fault.xid);
      }
    }
    return faults;
  }

  Inbox inbox;
  const std::string path = support::MakeFolder("device-events") + "/events";
};

TEST_F(DeviceEventsTest, File_IsFollowedFromItsBeginningAsItGrows) {
  std::ofstream file(path);
  file << "1 xid 79\n" << std::flush;
  const auto events = FollowDeviceFile(path, 4, inbox);
  EXPECT_THAT(Await(1), ElementsAre(Pair(1, 79)));
  file << "0 xid 31\n3 xi" << std::flush;
  EXPECT_THAT(Await(1), ElementsAre(Pair(0, 31)));
  file << "d 48\n" << std::flush;
  EXPECT_THAT(Await(1), ElementsAre(Pair(3, 48)));
}

TEST_F(DeviceEventsTest, FileThatIsMadeLater_IsFollowed) {
  const auto events = FollowDeviceFile(path, 4, inbox);
  std::ofstream(path) << "1 xid 79\n";
  EXPECT_THAT(Await(1), ElementsAre(Pair(1, 79)));
}

TEST_F(DeviceEventsTest, Fifo_IsFollowedThroughItsWriters) {
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto events = FollowDeviceFile(path, 4, inbox);
  for (const int32_t device : {2, 1}) {
    std::ofstream(path) << device << " xid 79\n";
    EXPECT_THAT(Await(1), ElementsAre(Pair(device, 79)));
  }
}

TEST_F(DeviceEventsTest, LinesOfNoDevice_ArePassedOver) {
  std::ofstream(path) << "\n4 xid 79\n-1 xid 79\n0 xid\n0 xid 0\n0 xid x\n0 79\nmuch talk\n"
                      << std::string(100'000, 'x') << "\n0  xid\t13\r\n";
  const auto events = FollowDeviceFile(path, 4, inbox);
  EXPECT_THAT(Await(1), ElementsAre(Pair(0, 13)));
}

TEST_F(DeviceEventsTest, Temperatures_AreTheLastThatTheFileSays) {
  std::ofstream(path) << "1 temperature 50\n1 temperature 61\n0 temperature 0\n"
                      << "2 temperature 5000\n0 xid 13\n";
  const auto events = FollowDeviceFile(path, 3, inbox);
  EXPECT_THAT(Await(1), ElementsAre(Pair(0, 13)));
  EXPECT_THAT(events->Temperatures(), ElementsAre(0, 61, 0));
}

TEST_F(DeviceEventsTest, Temperatures_ThatNothingSays_AreUnknown) {
  EXPECT_THAT(FollowDeviceFile(path, 3, inbox)->Temperatures(), IsEmpty());
}

class NvmlEventsTest : public DeviceEventsTest {
 protected:
  auto Follow(const char* sizes, const char* xids, GpuSelection selection) {
    setenv("FAKE_NVML_GIB", sizes, 1);
    setenv("FAKE_NVML_XIDS", xids, 1);
    if (selection.library == GpuSelection{}.library) selection.library = PHALANX_FAKE_NVML;
    return FollowNvml(selection, inbox);
  }
};

TEST_F(NvmlEventsTest, Errors_AreToldByOurNumberOfTheDevice) {
  const auto events = Follow("80 80 80", "1:79 0:31 2:13", {.devices = 2, .visible = "2,1"});
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_THAT(Await(2), ElementsAre(Pair(1, 79), Pair(0, 13)));
}

TEST_F(NvmlEventsTest, GpuThatIsLostWithoutAnEvent_HasFallenOffTheBusOnce) {
  const auto events = Follow("80 80", "lost:1 lost:1 0:31", {.devices = 2});
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_THAT(Await(2), ElementsAre(Pair(1, 79), Pair(0, 31)));
}

TEST_F(NvmlEventsTest, WhatTheDriverWantsDone_IsAskedWhereItSaysThatItChanged) {
  const auto action_of = [this](const char* xids, const char* number) {
    if (number != nullptr) setenv("FAKE_NVML_ACTION", number, 1);
    RecoveryAction action = RecoveryAction::kUnknown;
    {
      const auto events = Follow("80", xids, {.devices = 1});
      EXPECT_TRUE(events.ok()) << events.status();
      pollfd entry{inbox.fd(), POLLIN, 0};
      EXPECT_EQ(poll(&entry, 1, 20'000), 1);
      for (const Event& event : inbox.TakeAll()) action = std::get<DeviceFaulted>(event).action;
    }
    unsetenv("FAKE_NVML_ACTION");  // nobody reads it any more
    return action;
  };
  EXPECT_EQ(action_of("0:154", "1"), RecoveryAction::kReset);
  EXPECT_EQ(action_of("0:154", "2"), RecoveryAction::kReboot);
  EXPECT_EQ(action_of("0:154", "4"), RecoveryAction::kDrain);
  EXPECT_EQ(action_of("0:154", "0"), RecoveryAction::kUnknown);
  EXPECT_EQ(action_of("0:154", "77"), RecoveryAction::kUnknown);
  EXPECT_EQ(action_of("0:154", nullptr), RecoveryAction::kUnknown);
  EXPECT_EQ(action_of("0:31", "1"), RecoveryAction::kUnknown) << "it is the other error's to say";
}

TEST_F(NvmlEventsTest, Temperatures_AreThoseOfTheSelectedDevices) {
  const auto events = Follow("80 80 80", "2:31", {.devices = 2, .visible = "2,1"});
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_THAT(Await(1), ElementsAre(Pair(0, 31)));  // they are read before errors are waited for
  EXPECT_THAT((*events)->Temperatures(), ElementsAre(43, 42));
}

TEST_F(NvmlEventsTest, UsedMemory_IsThatOfTheSelectedDevices) {
  const auto events = Follow("80 80 80", "2:31", {.devices = 2, .visible = "2,1"});
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_THAT(Await(1), ElementsAre(Pair(0, 31)));  // it is read before errors are waited for
  constexpr int64_t kGib = int64_t{1} << 30;
  EXPECT_THAT((*events)->UsedMemory(), ElementsAre(6 * kGib, 4 * kGib));
}

TEST_F(NvmlEventsTest, DriverThatIsWedged_IsNoneThatAnswers_AndItsFiguresAreUnknown) {
  std::ofstream(path) << "";
  setenv("FAKE_NVML_HANGS", path.c_str(), 1);
  setenv("FAKE_NVML_GIB", "80", 1);
  setenv("FAKE_NVML_XIDS", "", 1);
  {
    const auto events = FollowNvml({.devices = 1, .library = PHALANX_FAKE_NVML}, inbox,
                                   /*silence=*/absl::Milliseconds(300));
    ASSERT_TRUE(events.ok()) << events.status();
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    const auto await = [&](bool answers) {
      while ((*events)->Answers() != answers && absl::Now() < deadline) std::this_thread::yield();
      return (*events)->Answers() == answers;
    };
    ASSERT_TRUE(await(false));
    EXPECT_THAT((*events)->Temperatures(), IsEmpty());
    EXPECT_THAT((*events)->UsedMemory(), IsEmpty());
    unlink(path.c_str());
    ASSERT_TRUE(await(true));
    EXPECT_THAT((*events)->Temperatures(), ElementsAre(41));
  }
  unsetenv("FAKE_NVML_HANGS");  // nobody reads it any more
}

TEST_F(NvmlEventsTest, DriverWithoutEvents_IsUnavailable) {
  EXPECT_EQ(Follow("80", "", {.devices = 1, .library = PHALANX_FAKE_NVML_OLD}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Follow("80", "", {.devices = 1, .library = "/nonexistent.so"}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Follow("80", "", {.devices = 2}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(NvmlEventsTest, Source_ThatGoes_TellsNothingMore) {
  { const auto events = Follow("80", "", {.devices = 1}); }
  EXPECT_THAT(inbox.TakeAll(), IsEmpty());
}

}  // namespace
}  // namespace phalanx::agent
