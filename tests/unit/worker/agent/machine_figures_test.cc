// What the daemon's machine counts.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(AgentFiguresTest, Ranks_AreCountedByState_TheirEndsByCause) {
  Harness h;
  h.Welcome();
  EXPECT_EQ(h.machine.Figures().ranks.size(), 6u) << "states of none are 0";
  h.RunJob(1, {0, 1, 2});
  EXPECT_EQ(h.machine.Figures().ranks.at("running"), 3);
  EXPECT_EQ(h.machine.Figures().rank_starts, 3);
  h.Feed(ProcessDied{ProcessNumber{1}});
  EXPECT_EQ(h.machine.Figures().ranks.at("dead"), 1);
  EXPECT_EQ(h.machine.Figures().ranks.at("stopping"), 2);
  h.Exited(1, 0, 9);
  h.Feed(DeviceFaulted{1, 79});
  h.Exited(2, 0, 9);
  h.Exited(3, 1, 0);
  EXPECT_THAT(h.machine.Figures().rank_ends,
              UnorderedElementsAre(Pair("signal", 1), Pair("DeviceFailed", 1), Pair("exited", 1),
                                   Pair("RankHung", 0), Pair("told", 0), Pair("done", 0),
                                   Pair("start_failed", 0)));
}

TEST(AgentFiguresTest, RankThatIsTold_HasNotEndedByItself) {
  Harness h;
  h.Welcome();
  h.RunJob(1, {0});
  h.Command(2, StopCommand{.job = JobId{7}, .epoch = Epoch{1}});
  EXPECT_EQ(h.machine.Figures().ranks.at("ending"), 1);
  h.Exited(1, 0, 15);
  EXPECT_EQ(h.machine.Figures().rank_ends.at("told"), 1);
  EXPECT_EQ(h.machine.Figures().rank_ends.at("signal"), 0);
}

TEST(AgentFiguresTest, Sessions_AreCountedAsTheyOpenBreakAndFail) {
  Harness h;
  h.Welcome();
  EXPECT_TRUE(h.machine.Figures().session_open);
  h.Break();
  EXPECT_FALSE(h.machine.Figures().session_open);
  h.Advance(absl::Seconds(60));  // nobody answers
  EXPECT_GT(h.machine.Figures().session_failures, 1);
  EXPECT_EQ(h.machine.Figures().session_breaks, 1);
  EXPECT_EQ(h.machine.Figures().sessions, 1);
}

TEST(AgentFiguresTest, Heartbeat_ThatWaitedForTheOneBefore_IsLate) {
  Harness h;
  h.Welcome();
  const MachineFigures begin = h.machine.Figures();
  EXPECT_EQ(begin.heartbeats_late, 0);
  h.Advance(absl::Seconds(60));  // the first is not written: no other is sent
  h.ConfirmAll();
  h.Advance(absl::Seconds(1));
  const MachineFigures end = h.machine.Figures();
  EXPECT_GE(end.heartbeats, begin.heartbeats + 1);
  EXPECT_EQ(end.heartbeats_late, 1);
}

TEST(AgentFiguresTest, Devices_KeepTheirErrorsAndTheirLastCheck) {
  Harness h(2, {.check_interval = absl::Minutes(10)});
  h.Welcome();
  h.Feed(CheckEnded{.check = CheckNumber{1},
                    .devices = {{.device = 0, .verdict = job::CheckVerdict::kSlow}}});
  const Instant checked = h.now;
  h.Feed(DeviceFaulted{1, 31});
  h.Feed(DeviceFaulted{1, 48});
  h.Feed(DeviceFaulted{1, 48});
  h.Feed(DeviceFaulted{2, 48});  // there is no such device
  const std::vector<DeviceFigures> devices = h.machine.Figures().devices;
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].verdict, job::CheckVerdict::kSlow);
  EXPECT_EQ(devices[0].checked, checked);
  EXPECT_FALSE(devices[0].lost);
  EXPECT_TRUE(devices[1].lost);
  EXPECT_THAT(devices[1].errors, ElementsAre(0, 1, 2));
  EXPECT_EQ(devices[1].last_xid, 48);
  EXPECT_EQ(devices[1].verdict, job::CheckVerdict::kNone);
}

TEST(AgentFiguresTest, Stall_IsCounted) {
  Harness h;
  h.Welcome();
  h.Feed(Stalled{absl::Seconds(3)});
  EXPECT_EQ(h.machine.Figures().stalled, absl::Seconds(3));
}

}  // namespace
}  // namespace phalanx::agent
