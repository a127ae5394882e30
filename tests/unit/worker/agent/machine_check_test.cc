// Checks of devices that no rank uses: transcripts of the machine.
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kInterval = absl::Minutes(10);

MachineOptions Checking() { return {.check_interval = kInterval}; }

CheckEnded Found(uint64_t check, std::vector<std::pair<int32_t, job::CheckVerdict>> devices,
                 absl::Status status = absl::OkStatus()) {
  CheckEnded ended{.check = CheckNumber{check}, .status = std::move(status)};
  for (const auto& [device, verdict] : devices) {
    ended.devices.push_back({.device = device, .verdict = verdict});
    if (verdict == job::CheckVerdict::kFailed) ended.devices.back().reason = "wrong";
  }
  return ended;
}

// What the next heartbeat says of checks; nullptr: nothing new.
std::shared_ptr<const job::NodeCheck> NextSaid(Harness& h) {
  h.ConfirmAll();
  h.now += absl::Seconds(2);
  for (const Action& action : h.machine.Step(h.now, DeadlineReached{})) {
    const auto* beat = std::get_if<SendHeartbeat>(&action);
    if (beat == nullptr) continue;
    ++h.unconfirmed;
    return beat->check;
  }
  ADD_FAILURE() << "no heartbeat";
  return nullptr;
}

TEST(AgentCheckTest, NodeThatJoins_ChecksItsDevices_AndSaysOnceWhatWasFound) {
  Harness h(2, Checking());
  EXPECT_THAT(h.Welcome(), Contains("StartCheck c1 devices 0,1"));
  EXPECT_EQ(NextSaid(h), nullptr);
  EXPECT_THAT(h.Feed(Found(1, {{0, job::CheckVerdict::kPassed}, {1, job::CheckVerdict::kFailed}})),
              IsEmpty());
  const Instant ended = h.now;
  const auto said = NextSaid(h);
  ASSERT_NE(said, nullptr);
  EXPECT_EQ(said->number, 1u);
  ASSERT_EQ(said->devices.size(), 2u);
  EXPECT_EQ(said->devices[0].verdict, job::CheckVerdict::kPassed);
  EXPECT_EQ(said->devices[1].verdict, job::CheckVerdict::kFailed);
  EXPECT_EQ(said->devices[1].reason, "wrong");
  EXPECT_EQ(said->devices[1].time, ended);
  EXPECT_EQ(NextSaid(h), nullptr);
}

TEST(AgentCheckTest, Verdict_IsSaidAgainInEachSession) {
  Harness h(1, Checking());
  h.Welcome();
  h.Feed(Found(1, {{0, job::CheckVerdict::kFailed}}));
  ASSERT_NE(NextSaid(h), nullptr);
  h.Break();
  h.now += absl::Seconds(10);
  const std::vector<Action> actions = h.machine.Step(h.now, DeadlineReached{});
  ASSERT_EQ(actions.size(), 1u);
  const auto* open = std::get_if<OpenSession>(&actions[0]);
  ASSERT_NE(open, nullptr);
  ASSERT_NE(open->check, nullptr);
  EXPECT_EQ(open->check->devices.at(0).verdict, job::CheckVerdict::kFailed);
}

TEST(AgentCheckTest, IdleDevices_AreCheckedAgainAfterTheInterval) {
  Harness h(2, Checking());
  h.Welcome();
  h.Feed(Found(1, {{0, job::CheckVerdict::kPassed}, {1, job::CheckVerdict::kPassed}}));
  EXPECT_THAT(h.Advance(kInterval - absl::Seconds(1)), Not(Contains(HasSubstr("StartCheck"))));
  EXPECT_THAT(h.Advance(absl::Seconds(2)), Contains("StartCheck c2 devices 0,1"));
}

TEST(AgentCheckTest, WithoutAnInterval_ThereAreNone) {
  Harness h(2);
  EXPECT_THAT(h.Welcome(), Not(Contains(HasSubstr("StartCheck"))));
  EXPECT_THAT(h.Advance(absl::Hours(24)), Not(Contains(HasSubstr("StartCheck"))));
}

TEST(AgentCheckTest, Assignment_EndsTheCheckOfItsDevice_AndStartsWhenItIsGone) {
  Harness h(2, Checking());
  h.Welcome();
  EXPECT_THAT(h.Command(1, h.AnAssign(1, {1})),
              ElementsAre("PrepareData r1 job-7", "KillCheck c1"));
  EXPECT_THAT(h.DataReady(h.last_request), IsEmpty()) << "the check still has the device";
  EXPECT_THAT(h.Feed(Found(1, {{0, job::CheckVerdict::kPassed}}, absl::InternalError("killed"))),
              ElementsAre("StartProcess p1 job-7/1 rank 2 device 1"));
  // What it had done with by then counts.
  const auto said = NextSaid(h);
  ASSERT_NE(said, nullptr);
  ASSERT_EQ(said->devices.size(), 1u);
  EXPECT_EQ(said->devices[0].device, 0);
}

TEST(AgentCheckTest, Device_IsNeverCheckedBesideARank_AndIsOnceThatIsGone) {
  Harness h(2, Checking());
  h.Welcome();
  h.Feed(Found(1, {{0, job::CheckVerdict::kPassed}, {1, job::CheckVerdict::kPassed}}));
  h.RunJob(1, {1});
  EXPECT_THAT(h.Advance(kInterval + absl::Seconds(1)), Contains("StartCheck c2 devices 0"));
  h.Feed(Found(2, {{0, job::CheckVerdict::kPassed}}));
  h.Command(2, StopCommand{.job = JobId{7}, .epoch = Epoch{1}, .grace = absl::Seconds(1)});
  h.Exited(1, 0, 0);
  EXPECT_THAT(h.Advance(absl::Seconds(4)), Not(Contains(HasSubstr("StartCheck"))));
  EXPECT_THAT(h.Advance(absl::Seconds(2)), Contains("StartCheck c3 devices 1"));
}

TEST(AgentCheckTest, CheckThatDoesNotEnd_FailsTheDeviceThatItIsAt) {
  Harness h(3, Checking());
  h.Welcome();
  EXPECT_THAT(h.Advance(absl::Seconds(100)), Not(Contains("KillCheck c1")));
  h.Feed(CheckProgressed{CheckNumber{1}});  // it has done with the first
  EXPECT_THAT(h.Advance(absl::Seconds(100)), Not(Contains("KillCheck c1")));
  EXPECT_THAT(h.Advance(absl::Seconds(100)), Contains("KillCheck c1"));
  h.ConfirmAll();
  h.Feed(Found(1, {{0, job::CheckVerdict::kPassed}}, absl::InternalError("killed")));
  const auto said = NextSaid(h);
  ASSERT_NE(said, nullptr);
  ASSERT_EQ(said->devices.size(), 2u);
  EXPECT_EQ(said->devices[0].verdict, job::CheckVerdict::kPassed);
  EXPECT_EQ(said->devices[1].device, 1);
  EXPECT_EQ(said->devices[1].verdict, job::CheckVerdict::kFailed);
  EXPECT_THAT(said->devices[1].reason, HasSubstr("within 2m"));
  // The one behind it has its turn.
  EXPECT_THAT(h.Advance(absl::Seconds(10)), Contains("StartCheck c2 devices 2"));
}

TEST(AgentCheckTest, CheckThatIsLateAsOthersRan_SaysNothing_AndIsMadeAgainLater) {
  Harness h(2, Checking());
  h.Welcome();
  EXPECT_THAT(h.Advance(absl::Seconds(121)), Contains("KillCheck c1"));
  CheckEnded ended = Found(1, {}, absl::InternalError("killed"));
  ended.starved = absl::Seconds(90);
  h.Feed(ended);
  EXPECT_EQ(NextSaid(h), nullptr);
  EXPECT_THAT(h.Advance(kInterval / 2), Not(Contains(HasSubstr("StartCheck"))));
  EXPECT_THAT(h.Advance(kInterval / 2), Contains("StartCheck c2 devices 0,1"));
}

TEST(AgentCheckTest, DeviceWithoutAVerdict_IsNotTheOneThatALateCheckWasAt) {
  Harness h(3, Checking());
  h.Welcome();
  EXPECT_THAT(h.Advance(absl::Seconds(121)), Contains("KillCheck c1"));
  h.ConfirmAll();
  h.Feed(Found(1, {{0, job::CheckVerdict::kNone}}, absl::InternalError("killed")));
  const auto said = NextSaid(h);
  ASSERT_NE(said, nullptr);
  ASSERT_EQ(said->devices.size(), 1u);
  EXPECT_EQ(said->devices[0].device, 1);
  EXPECT_THAT(h.Advance(absl::Seconds(10)), Contains("StartCheck c2 devices 2"));
}

TEST(AgentCheckTest, CheckThatEndsBehindAFailedDevice_IsFollowedByOneOfTheOthers) {
  Harness h(3, Checking());
  h.Welcome();
  h.Feed(Found(1, {{0, job::CheckVerdict::kFailed}}));
  EXPECT_THAT(h.Advance(absl::Seconds(6)), Contains("StartCheck c2 devices 1,2"));
}

TEST(AgentCheckTest, CheckThatSurvivesItsKill_KeepsOutTheDeviceThatItIsAt_UntilItIsGone) {
  Harness h(3, Checking());
  h.Welcome();
  EXPECT_THAT(h.Advance(absl::Seconds(121)), Contains("KillCheck c1"));
  EXPECT_THAT(h.Advance(absl::Seconds(8)), Not(Contains("LeaveCheck c1")));
  EXPECT_THAT(h.Advance(absl::Seconds(3)), Contains("LeaveCheck c1"));
  EXPECT_THAT(h.Advance(absl::Minutes(1)), Not(Contains("LeaveCheck c1")));
  CheckEnded left = Found(1, {{0, job::CheckVerdict::kPassed}});
  left.left = true;
  h.Feed(left);
  EXPECT_THAT(h.Advance(absl::Seconds(6)), Contains("StartCheck c2 devices 2"));
  h.Feed(Found(2, {{2, job::CheckVerdict::kPassed}}));
  EXPECT_THAT(h.Advance(kInterval), Contains("StartCheck c3 devices 0"));
  h.Feed(Found(3, {{0, job::CheckVerdict::kPassed}}));
  h.Advance(absl::Seconds(1));
  h.Feed(Found(4, {{2, job::CheckVerdict::kPassed}}));
  h.Feed(CheckEnded{.check = CheckNumber{1}});
  EXPECT_THAT(h.Advance(absl::Seconds(6)), Contains("StartCheck c5 devices 1"));
}

TEST(AgentCheckTest, CheckThatSurvivesItsKill_IsSaidAtOnce) {
  Harness h(2, Checking());
  h.Welcome();
  h.Advance(absl::Seconds(121));
  h.Advance(absl::Seconds(11));
  CheckEnded left = Found(1, {});
  left.left = true;
  left.starved = absl::Minutes(2);
  std::shared_ptr<const job::NodeCheck> said;
  for (const Action& action : h.machine.Step(h.now, left)) {
    if (const auto* beat = std::get_if<SendHeartbeat>(&action); beat != nullptr) said = beat->check;
  }
  ASSERT_NE(said, nullptr);
  EXPECT_EQ(said->devices.at(0).device, 0);
  EXPECT_EQ(said->devices.at(0).verdict, job::CheckVerdict::kFailed);
  EXPECT_THAT(said->devices.at(0).reason, HasSubstr("did not end within 10s of SIGKILL"));
}

TEST(AgentCheckTest, Assignment_DoesNotWaitForACheckThatSurvivesItsKill) {
  Harness h(2, Checking());
  h.Welcome();
  h.Command(1, h.AnAssign(1, {1}));
  h.DataReady(h.last_request);
  EXPECT_THAT(h.Advance(absl::Seconds(11)), Contains("LeaveCheck c1"));
  CheckEnded left = Found(1, {});
  left.left = true;
  EXPECT_THAT(h.Feed(left), Contains("StartProcess p1 job-7/1 rank 2 device 1"))
      << "the check was at device 0";
}

TEST(AgentCheckTest, AssignmentOfTheDeviceThatAWedgedCheckIsAt_FailsAtOnce_AsDoLaterOnes) {
  Harness h(2, Checking());
  h.Welcome();
  h.Command(1, h.AnAssign(1, {0}));
  h.DataReady(h.last_request);
  h.Advance(absl::Seconds(11));
  CheckEnded left = Found(1, {});
  left.left = true;
  EXPECT_THAT(h.Feed(left), Contains("Result 1 FAILED_PRECONDITION"));
  EXPECT_THAT(h.Command(2, h.AnAssign(2, {0})), Contains("Result 2 FAILED_PRECONDITION"));
}

TEST(AgentCheckTest, CheckThatEndsEarly_SaysNothing) {
  Harness h(1, Checking());
  h.Welcome();
  h.Feed(Found(1, {}, absl::InternalError("exit code 2")));
  EXPECT_EQ(NextSaid(h), nullptr);
  EXPECT_THAT(h.Advance(kInterval / 2), Not(Contains(HasSubstr("StartCheck"))));
}

TEST(AgentCheckTest, DaemonThatDrains_EndsTheCheckAndStartsNone) {
  Harness h(1, Checking());
  h.Welcome();
  EXPECT_THAT(h.Feed(TerminationRequested{}), Contains("KillCheck c1"));
  EXPECT_THAT(h.Feed(Found(1, {})), Not(Contains(HasSubstr("StartCheck"))));
}

TEST(AgentCheckTest, LostDevice_IsNotChecked) {
  Harness h(2, Checking());
  h.Feed(DeviceFaulted{1, 79});
  EXPECT_THAT(h.Welcome(), Contains("StartCheck c1 devices 0"));
}

}  // namespace
}  // namespace phalanx::agent
