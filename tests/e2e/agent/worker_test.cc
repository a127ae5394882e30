// phalanx-worker as a process: what it does with ranks, signals, logs and descriptors.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/plan/derivation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/agent/fake_coordinator.h"
#include "tests/e2e/agent/worker_process.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;
using ::testing::StartsWith;

// What a fake rank said when it began an epoch.
struct Up {
  pid_t pid = 0, child = 0;
  std::string descriptors, index;
};
pid_t NumberOf(absl::string_view text) {
  pid_t number = -1;
  EXPECT_TRUE(absl::SimpleAtoi(text, &number)) << text;
  return number;
}
Up UpOf(const v1::RankReport& report) {
  Up up;
  for (absl::string_view part : absl::StrSplit(report.event().message(), ' ')) {
    const std::pair<absl::string_view, absl::string_view> entry = absl::StrSplit(part, '=');
    if (entry.first == "pid") up.pid = NumberOf(entry.second);
    if (entry.first == "child") up.child = NumberOf(entry.second);
    if (entry.first == "fds") up.descriptors = std::string(entry.second);
    if (entry.first == "index") up.index = std::string(entry.second);
  }
  return up;
}

class WorkerTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> arguments = {}) {
    worker = std::make_unique<WorkerProcess>(coordinator.address(), std::move(arguments));
    coordinator.AwaitHello();
  }

  Up AwaitUp(int64_t epoch = 1) {
    return UpOf(coordinator.AwaitReport(
        [&](const auto& r) { return r.event().type() == "Up" && r.epoch() == epoch; }));
  }
  void AwaitReady(int64_t epoch = 1) {
    coordinator.AwaitReport([&](const auto& r) { return r.has_ready() && r.epoch() == epoch; });
  }
  v1::RankExited AwaitExit() {
    return coordinator.AwaitReport([](const auto& r) { return r.has_exited(); }).exited();
  }

  // One rank that behaves like this and has begun.
  Up RunOne(const std::string& behaviour, int64_t job = 7, int64_t epoch = 1) {
    const uint64_t number = coordinator.Send(AssignCommandOf(job, epoch, Job(behaviour), {0}));
    EXPECT_EQ(coordinator.AwaitResult(number).code(), 0);
    return AwaitUp(epoch);
  }

  FakeCoordinator coordinator;
  std::unique_ptr<WorkerProcess> worker;
};

TEST_F(WorkerTest, Hello_SaysWhatTheNodeHas) {
  worker = std::make_unique<WorkerProcess>(coordinator.address());
  const v1::WorkerHello hello = coordinator.AwaitHello();
  EXPECT_EQ(hello.node(), "here");
  EXPECT_EQ(hello.device_kind(), "cpu");
  EXPECT_EQ(hello.devices(), 4);
  EXPECT_EQ(hello.labels().at("zone"), "a");
  EXPECT_EQ(hello.protocol_version(), 4u);
  EXPECT_EQ(hello.derivation(), plan::kDerivation);
  EXPECT_NE(hello.incarnation(), 0u);
  EXPECT_EQ(hello.device_memory_size(), 0) << "of slots on cpu nothing is known";
  EXPECT_GT(hello.host_memory(), 0) << "what is available here";
}

TEST_F(WorkerTest, Rank_HasItsFiveDescriptorsAndTheIndex) {
  Start();
  const Up up = RunOne("wait");
  EXPECT_EQ(up.descriptors, "0,1,2,3,4");
  EXPECT_THAT(up.index, StartsWith(worker->state() + "/indexes/"));
  EXPECT_TRUE(std::filesystem::exists(up.index));
}

TEST_F(WorkerTest, Rank_HasTheVariablesAndSecretsOfItsJob_WhichNobodySays) {
  const std::string secrets = support::MakeFolder("agent-secrets");
  support::WriteFile(secrets + "/token", "s3cret\n");
  Start({"--secrets", secrets});
  v1::JobDocument job = Job("wait");
  job.set_text(absl::StrCat(job.text(), "  env: {NCCL_DEBUG: INFO}\n  secrets: {TOKEN: token}\n"));
  const uint64_t number = coordinator.Send(AssignCommandOf(7, 1, job, {0}));
  EXPECT_EQ(coordinator.AwaitResult(number).code(), 0);
  const Up up = AwaitUp();
  const std::vector<std::string> variables = absl::StrSplit(
      support::ReadFile(absl::StrCat("/proc/", up.pid, "/environ")), absl::ByChar('\0'));
  EXPECT_THAT(variables, ::testing::IsSupersetOf({"NCCL_DEBUG=INFO", "TOKEN=s3cret"}));
  EXPECT_THAT(support::ReadFile(absl::StrCat("/proc/", worker->pid(), "/environ")),
              Not(HasSubstr("s3cret")));
}

TEST_F(WorkerTest, SecretThatIsNotThere_IsAnsweredBeforeAnyProcess) {
  Start();
  v1::JobDocument job = Job("wait");
  job.set_text(absl::StrCat(job.text(), "  secrets: {TOKEN: token}\n"));
  const v1::CommandResult result =
      coordinator.AwaitResult(coordinator.Send(PrepareCommand(7, job)));
  ASSERT_EQ(result.data_violations_size(), 1) << result.message();
  EXPECT_EQ(result.data_violations(0).field(), "spec.secrets.TOKEN");
  EXPECT_THAT(result.data_violations(0).rule(), HasSubstr("--secrets"));
  EXPECT_EQ(worker->Children(), 0);
}

// The coordinator hears of the death, and then how it came.
TEST_F(WorkerTest, Rank_Killed_IsReportedWithItsSignalWithinATenthOfASecond) {
  Start();
  std::vector<absl::Duration> died, exited;
  for (int64_t job = 1; job <= 9; ++job) {
    const Up up = RunOne("wait", job);
    AwaitReady();
    const absl::Time killed = absl::Now();
    kill(up.pid, SIGKILL);
    const v1::RankReport first =
        coordinator.AwaitReport([](const auto& r) { return r.has_died() || r.has_exited(); });
    died.push_back(absl::Now() - killed);
    // Both come at once here, and the exit alone may be found.
    const v1::RankExited exit = first.has_exited() ? first.exited() : AwaitExit();
    exited.push_back(absl::Now() - killed);
    EXPECT_EQ(exit.signal(), SIGKILL);
    EXPECT_FALSE(exit.expected());
    coordinator.AwaitResult(coordinator.Send(StopCommandOf(job, 1, 0)));
  }
  for (auto& [name, delays] : {std::pair("died", &died), std::pair("exited", &exited)}) {
    std::sort(delays->begin(), delays->end());
    RecordProperty(absl::StrCat(name, "_median_us"),
                   static_cast<int>(absl::ToInt64Microseconds((*delays)[4])));
    RecordProperty(absl::StrCat(name, "_max_us"),
                   static_cast<int>(absl::ToInt64Microseconds((*delays)[8])));
    // The median: other programs of a busy machine may hold up one or the other.
    EXPECT_THAT((*delays)[4], Le(absl::Milliseconds(100)));
  }
}

// Nobody has to be asked.
TEST_F(WorkerTest, RankKilled_EndsTheEpochOfTheOthersWithinATenthOfASecond) {
  Start();
  std::vector<absl::Duration> delays;
  const v1::JobDocument job = Job("wait");
  for (int64_t epoch = 1; epoch <= 9; ++epoch) {
    coordinator.AwaitResult(coordinator.Send(AssignCommandOf(7, epoch, job, {0, 1, 2, 3})));
    pid_t victim = 0;
    for (int i = 0; i < 4; ++i) {
      const v1::RankReport report = coordinator.AwaitReport(
          [&](const auto& r) { return r.event().type() == "Up" && r.epoch() == epoch; });
      if (report.rank() == 1) victim = UpOf(report).pid;
    }
    for (int i = 0; i < 4; ++i) AwaitReady(epoch);
    const absl::Time killed = absl::Now();
    kill(victim, SIGKILL);
    for (int i = 0; i < 3; ++i) {
      coordinator.AwaitReport(
          [&](const auto& r) { return r.event().type() == "Stopped" && r.epoch() == epoch; });
    }
    delays.push_back(absl::Now() - killed);
    AwaitExit();
  }
  std::sort(delays.begin(), delays.end());
  RecordProperty("median_us", static_cast<int>(absl::ToInt64Microseconds(delays[4])));
  RecordProperty("max_us", static_cast<int>(absl::ToInt64Microseconds(delays[8])));
  EXPECT_THAT(delays[4], Le(absl::Milliseconds(100)));
}

TEST_F(WorkerTest, RankThatIsDeadAndCannotBeReaped_IsReportedDead_AndLaterHowItEnded) {
  Start();
  const Up up = RunOne("linger");
  AwaitReady();
  kill(up.pid, SIGUSR2);
  coordinator.AwaitReport([](const auto& r) { return r.has_died(); });
  EXPECT_FALSE(support::ProcessWatch(up.pid).HasEnded());
  kill(up.pid, SIGKILL);
  EXPECT_EQ(AwaitExit().signal(), SIGKILL);
}

TEST_F(WorkerTest, DeviceOfADeadRank_IsGivenToAnotherOnlyOnceItIsReaped) {
  Start();
  const Up dead = RunOne("linger");
  AwaitReady();
  kill(dead.pid, SIGUSR2);
  coordinator.AwaitReport([](const auto& r) { return r.has_died(); });
  const uint64_t number = coordinator.Send(AssignCommandOf(8, 1, Job("wait"), {0}));
  coordinator.AwaitResult(coordinator.Send(PrepareCommand(9, Job("wait"))));
  EXPECT_FALSE(support::ProcessWatch(dead.pid).HasEnded());
  kill(dead.pid, SIGKILL);
  AwaitExit();
  EXPECT_EQ(coordinator.AwaitResult(number).code(), 0);
  AwaitUp();
}

TEST_F(WorkerTest, Rank_ThatExits_IsReportedWithCodeAndLogTail) {
  Start();
  RunOne("exit-3");
  const v1::RankExited exited = AwaitExit();
  EXPECT_EQ(exited.exit_code(), 3);
  EXPECT_EQ(exited.signal(), 0);
  EXPECT_EQ(exited.log_tail(), "about to exit with 3\n");
}

TEST_F(WorkerTest, Rank_ThatCrashes_IsReportedWithItsSignal) {
  Start();
  RunOne("crash");
  EXPECT_EQ(AwaitExit().signal(), SIGSEGV);
}

// Who sees the signal alone looks for a killer outside.
TEST_F(WorkerTest, RankWhoseChannelFails_IsEndedAndSaysWhatItDid) {
  Start();
  int64_t job = 0;
  for (const auto& [behaviour, did] : std::map<std::string, std::string>{
           {"shut", "closed by the rank"}, {"flood", "a frame of 2147483648 bytes"}}) {
    RunOne(behaviour, ++job);
    const v1::RankReport report =
        coordinator.AwaitReport([](const auto& r) { return r.has_error(); });
    EXPECT_THAT(report.error().message(), HasSubstr(did));
    EXPECT_THAT(report.error().message(), HasSubstr("its worker ended it"));
    EXPECT_EQ(report.error().kind(), v1::FAILURE_KIND_RANK_HUNG);
    EXPECT_EQ(AwaitExit().signal(), SIGKILL);
  }
}

TEST_F(WorkerTest, DeviceThatIsLost_EndsItsRank_WhichSaysWhy_AndIsNotUsedAgain) {
  const std::string path = support::MakeFolder("agent-devices") + "/events";
  Start({"--device-events", path});
  coordinator.AwaitResult(coordinator.Send(AssignCommandOf(7, 1, Job("wait"), {0, 1})));
  for (int rank = 0; rank < 2; ++rank) AwaitReady();
  std::ofstream(path) << "1 xid 79\n";
  const v1::RankReport report =
      coordinator.AwaitReport([](const auto& r) { return r.has_error(); });
  EXPECT_EQ(report.rank(), 1);
  EXPECT_EQ(report.error().kind(), v1::FAILURE_KIND_DEVICE_FAILED);
  EXPECT_THAT(report.error().message(),
              HasSubstr("device 1 of node here reported XID 79 (GPU has fallen off the bus"));
  EXPECT_EQ(AwaitExit().signal(), SIGKILL);
  const v1::CommandResult refused =
      coordinator.AwaitResult(coordinator.Send(AssignCommandOf(8, 1, Job("wait"), {1})));
  EXPECT_EQ(refused.code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(refused.message(), HasSubstr("is not used again before phalanx-worker restarts"));
}

TEST_F(WorkerTest, LogTail_ThatIsNoText_DoesNotBreakTheSession) {
  Start();
  RunOne("binary");
  EXPECT_EQ(AwaitExit().log_tail(), "?? is no text\n");
}

TEST_F(WorkerTest, Stop_EndsARankInGoodOrder) {
  Start();
  const Up up = RunOne("wait");
  const uint64_t stop = coordinator.Send(StopCommandOf(7, 1, 20));
  const v1::RankExited exited = AwaitExit();
  EXPECT_EQ(exited.exit_code(), 0);
  EXPECT_EQ(exited.signal(), 0);
  EXPECT_TRUE(exited.expected());
  EXPECT_EQ(coordinator.AwaitResult(stop).code(), 0);
  EXPECT_TRUE(support::ProcessWatch(up.pid).AwaitEnd());
}

TEST_F(WorkerTest, Stop_KillsARankThatDoesNotListen) {
  Start();
  RunOne("hang");
  const uint64_t stop = coordinator.Send(StopCommandOf(7, 1, 0.2));
  EXPECT_EQ(AwaitExit().signal(), SIGKILL);
  EXPECT_EQ(coordinator.AwaitResult(stop).code(), 0);
}

TEST_F(WorkerTest, Stop_TakesTheRanksChildrenToo) {
  Start();
  const Up up = RunOne("fork");
  ASSERT_GT(up.child, 0);
  const support::ProcessWatch child(up.child);
  coordinator.AwaitResult(coordinator.Send(StopCommandOf(7, 1, 20)));
  EXPECT_TRUE(child.AwaitEnd());
}

TEST_F(WorkerTest, RankKilled_TakesItsChildrenWithIt) {
  Start();
  const Up up = RunOne("fork");
  const support::ProcessWatch child(up.child);
  kill(up.pid, SIGKILL);
  EXPECT_EQ(AwaitExit().signal(), SIGKILL);
  EXPECT_TRUE(child.AwaitEnd());
}

TEST_F(WorkerTest, RankKilled_TakesChildrenThatLeftItsProcessGroup) {
  Start();
  const Up up = RunOne("detach");
  const support::ProcessWatch child(up.child);
  AwaitReady();
  kill(up.pid, SIGKILL);
  EXPECT_TRUE(child.AwaitEnd());
  AwaitExit();
  EXPECT_TRUE(worker->AwaitNoChildren()) << "the child may be reaped behind the rank";
}

TEST_F(WorkerTest, NewerEpoch_RunsInTheSameProcess) {
  Start();
  const Up first = RunOne("wait", 7, 1);
  const Up second = RunOne("wait", 7, 2);
  EXPECT_EQ(first.pid, second.pid);
  EXPECT_TRUE(
      std::filesystem::exists(worker->state() + "/stores/0000000000000000/jobs/7/2/rank-0.log"));
}

TEST_F(WorkerTest, DaemonKilled_TakesItsRanksWithIt) {
  Start();
  const Up up = RunOne("wait");
  const support::ProcessWatch rank(up.pid);
  worker->Signal(SIGKILL);
  EXPECT_TRUE(rank.AwaitEnd());
}

TEST_F(WorkerTest, Terminated_EndsRanks_SaysSo_AndExitsWith0) {
  Start({"--grace", "0.5"});
  const support::ProcessWatch waiting(RunOne("wait").pid);
  const uint64_t number = coordinator.Send(AssignCommandOf(8, 1, Job("hang"), {1}));
  coordinator.AwaitResult(number);
  const support::ProcessWatch hanging(AwaitUp().pid);
  worker->Signal(SIGTERM);
  coordinator.AwaitHeartbeat([](const auto& heartbeat) { return heartbeat.draining(); });
  coordinator.AwaitReport([](const auto& r) { return r.job() == 7 && r.exited().expected(); });
  coordinator.AwaitReport([](const auto& r) { return r.job() == 8 && r.exited().expected(); });
  coordinator.AwaitClose();
  const int status = worker->AwaitEnd();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(waiting.AwaitEnd());
  EXPECT_TRUE(hanging.AwaitEnd());
}

TEST_F(WorkerTest, Log_KeepsItsNewestPartWithinTheCap) {
  constexpr int64_t kCap = 200'000;
  Start({"--log-bytes", absl::StrCat(kCap)});
  RunOne("chatty");
  AwaitReady();
  coordinator.AwaitResult(coordinator.Send(StopCommandOf(7, 1, 20)));
  const std::string path = worker->state() + "/stores/0000000000000000/jobs/7/1/rank-0.log";
  const std::string kept = support::ReadFile(path + ".1") + support::ReadFile(path);
  EXPECT_LE(static_cast<int64_t>(kept.size()), kCap);
  EXPECT_GE(static_cast<int64_t>(kept.size()), kCap / 2);
  EXPECT_TRUE(absl::EndsWith(kept, "line 39999 of much talk about nothing\n"));
  EXPECT_THAT(AwaitExit().log_tail(), StartsWith("line "));
}

// What does not fit is lost; the daemon and its ranks go on.
TEST_F(WorkerTest, EndlessLog_UnderALimitOnFileSizes_EndsNothing) {
  Start();
  constexpr rlim_t kBytesMax = 100'000;  // of a spool that would take more
  const rlimit limit{kBytesMax, kBytesMax};
  ASSERT_EQ(prlimit(worker->pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  const Up up = RunOne("babble");
  AwaitReady();
  const std::string path = worker->state() + "/stores/0000000000000000/jobs/7/1/rank-0.log";
  while (std::filesystem::file_size(path) < kBytesMax)
    coordinator.AwaitHeartbeat([](const auto&) { return true; });
  for (const int64_t step : {1, 2}) {
    kill(up.pid, SIGUSR1);
    coordinator.AwaitReport([&](const auto& r) { return r.step().step() == step; });
  }
  EXPECT_EQ(coordinator.AwaitResult(coordinator.Send(StopCommandOf(7, 1, 20))).code(), 0);
  EXPECT_EQ(AwaitExit().signal(), 0);
  EXPECT_EQ(std::filesystem::file_size(path), kBytesMax);
}

TEST_F(WorkerTest, Cycles_LeaveNoZombieAndNoDescriptor) {
  Start();
  const v1::JobDocument job = Job("wait");
  int32_t before = 0;
  for (int64_t epoch = 1; epoch <= 101; ++epoch) {
    coordinator.AwaitResult(coordinator.Send(AssignCommandOf(7, epoch, job, {0, 3})));
    coordinator.AwaitResult(coordinator.Send(StopCommandOf(7, epoch, 20)));
    if (epoch == 1) before = worker->OpenDescriptors();
  }
  EXPECT_EQ(worker->Children(), 0);
  EXPECT_EQ(worker->OpenDescriptors(), before);
}

TEST_F(WorkerTest, Daemon_WithFourRanks_StaysUnder30MB) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow memory counts too";
#endif
  Start();
  coordinator.AwaitResult(coordinator.Send(AssignCommandOf(7, 1, Job("wait"), {0, 1, 2, 3})));
  for (int rank = 0; rank < 4; ++rank) AwaitReady();
  RecordProperty("resident_bytes", static_cast<int>(worker->ResidentBytes()));
  EXPECT_LT(worker->ResidentBytes(), 30'000'000);
}

TEST_F(WorkerTest, RankProgram_ThatIsGone_FailsTheAssignment) {
  const std::string folder = support::MakeFolder("agent-program");
  const std::string program = folder + "/rank";
  std::filesystem::create_symlink(PHALANX_FAKE_RANK, program);
  Start({"--rank-program", program});
  std::filesystem::remove(program);
  const uint64_t number = coordinator.Send(AssignCommandOf(7, 1, Job("wait"), {0}));
  const v1::CommandResult result = coordinator.AwaitResult(number);
  EXPECT_EQ(result.code(), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_THAT(result.message(), HasSubstr(program));
  EXPECT_EQ(worker->Children(), 0);
}

TEST_F(WorkerTest, StateFolder_OfAnotherWorker_IsRefused) {
  Start();
  const support::Finished second =
      support::RunToEnd({support::Program("phalanx-worker"), "--coordinator", coordinator.address(),
                         "--state", worker->state(), "--rank-program", PHALANX_FAKE_RANK});
  EXPECT_EQ(second.exit_code, 73);
}

}  // namespace
}  // namespace phalanx::agent
