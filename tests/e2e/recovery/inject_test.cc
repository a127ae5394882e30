// Faults on demand: asked for with `phalanx inject`, brought about by real processes.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::StartsWith;

constexpr int kNotAllowed = 77, kUsage = 2;

// A job of four replicas whose ladder lets it go on without some.
JobOptions AJob(int64_t steps) {
  return {.steps = steps,
          .precision = "fp64",
          .vision = "",
          .language = "ranks: 4",
          .batch = 7,
          .output = "out"};
}

class InjectTest : public testing::Test {
 protected:
  std::vector<Metric> Metrics() const {
    return ReadMetrics((std::filesystem::path(data_.path) / "out").string());
  }
  int64_t Train(Cluster& cluster, const JobOptions& options) const {
    const int64_t job = cluster.Submit(Document(data_, options)).id();
    cluster.AwaitStep(job, 1);
    return job;
  }

  const DataFolder data_ = MakeData({.samples = 30, .words = 4});
};

TEST_F(InjectTest, WhereItIsNotAllowed_IsRefusedAndNothingHappens) {
  Cluster cluster;
  const int64_t job = Train(cluster, AJob(10));
  for (const int64_t any : {job, int64_t{99}}) {
    const support::Finished refused = Inject(cluster, any, 0, {"--fault", "kill"});
    EXPECT_EQ(refused.exit_code, kNotAllowed);
    EXPECT_EQ(refused.out, "");
    EXPECT_EQ(refused.talk,
              "error: this coordinator brings no faults about on demand: it runs without "
              "--allow-inject; ask an operator for one that has it\n");
  }
  EXPECT_EQ(cluster.AwaitEnd(job).phase(), v1::JOB_PHASE_SUCCEEDED);
  EXPECT_THAT(EventsOf(cluster, job, "FaultInjected"), IsEmpty());
}

TEST_F(InjectTest, WhatIsNotThere_IsNamed) {
  Cluster cluster({.coordinator_flags = {"--allow-inject"}});
  const int64_t job = Train(cluster, AJob(kForEver));
  const support::Finished wrong = Inject(
      cluster, job, 0, {"--fault", "kill", "--phase", "lunch", "--at-step", "0", "--for", "2s"});
  EXPECT_EQ(wrong.exit_code, kUsage);
  EXPECT_EQ(wrong.talk,
            "--at-step: 0: must be a step from 1 on\n"
            "--phase: lunch: must be one of forward, backward, reduce, mirror, record, optimizer, "
            "gather, checkpoint, recovery\n"
            "--for: 2s: kill is for good; only stop, hang, slow and partition end\n"
            "3 violations\n");
  const support::Finished no_job = Inject(cluster, 99, 0, {"--fault", "kill"});
  EXPECT_EQ(no_job.exit_code, 1);
  EXPECT_EQ(no_job.talk,
            "error: there is no job \"job-99\"\n"
            "what to do: phalanx list shows the jobs that there are\n");
  const support::Finished no_rank = Inject(cluster, job, 4, {"--fault", "kill"});
  EXPECT_EQ(no_rank.exit_code, 1);
  EXPECT_EQ(no_rank.talk,
            absl::StrCat("error: job-", job, " has no rank 4; its ranks are 0 to 3\n"));
  cluster.Cancel(job);
  cluster.AwaitEnd(job);
  const support::Finished ended = Inject(cluster, job, 0, {"--fault", "kill"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.talk, absl::StrCat("error: job-", job,
                                     " is Cancelled; faults are for a job that is Running\n"
                                     "what to do: it has ended: phalanx rerun queues it again, "
                                     "phalanx list shows the jobs that there are\n"));
}

class KillTest : public InjectTest, public testing::WithParamInterface<const char*> {};

TEST_P(KillTest, AtAStepAndAPhase_IsSeenThereAndTheOthersGoOn) {
  constexpr int32_t kRank = 2;
  const std::string phase = GetParam();
  Cluster cluster({.coordinator_flags = {"--allow-inject"}});
  JobOptions options = AJob(kForEver);
  if (phase == "checkpoint") options.checkpoint = "{every: 5}";
  const int64_t job = Train(cluster, options);
  const support::Finished told =
      Inject(cluster, job, kRank, {"--fault", "kill", "--at-step", "20", "--phase", phase});
  EXPECT_EQ(told.exit_code, 0);
  EXPECT_EQ(told.talk, absl::StrCat("job-", job, " epoch 1: rank 2 (node here): kill in ", phase,
                                    " of step 20\n"));
  cluster.Await(job, [&cluster, job](const v1::JobStatus& status) {
    return status.last_step().step() >= 20 && !EventsOf(cluster, job, "Recovered").empty();
  });
  cluster.Cancel(job);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_CANCELLED) << ended.reason() << cluster.WorkerLog();
  EXPECT_GE(ended.epoch(), 2);
  EXPECT_THAT(EventsOf(cluster, job, "FaultInjected"),
              ElementsAre(absl::StrCat("rank 2 (node here): kill in ", phase, " of step 20")));
  EXPECT_THAT(EventsOf(cluster, job, "FaultReached"),
              ElementsAre(MatchesRegex(
                  absl::StrCat("rank 2: kill at step ([2-9][0-9]|[1-9][0-9][0-9]+), ", phase))));
  EXPECT_THAT(EventsOf(cluster, job, "RankFailed"), ElementsAre(HasSubstr("rank 2")));
  EXPECT_THAT(EventsOf(cluster, job, "Recovered"), Contains(StartsWith("rank 2 (node ")));
  const std::vector<Metric> metrics = Metrics();
  ASSERT_GE(metrics.size(), 20u);
  EXPECT_EQ(StepsFault(metrics, static_cast<int64_t>(metrics.size())), "");
}

INSTANTIATE_TEST_SUITE_P(Phases, KillTest,
                         testing::Values("forward", "backward", "reduce", "record", "optimizer",
                                         "mirror", "gather", "checkpoint"),
                         [](const auto& info) { return std::string(info.param); });

// What writes its checkpoint goes on beside the next epoch, which begins its own behind it.
TEST_F(InjectTest, RankAtASlowDisk_KeepsNobodyWaitingWhenAnotherDies) {
  Cluster cluster({.coordinator_flags = {"--allow-inject"}});
  JobOptions options = AJob(kForEver);
  options.checkpoint = "{every: 5}";
  const int64_t job = Train(cluster, options);
  EXPECT_EQ(Inject(cluster, job, 1, {"--fault", "hang", "--phase", "checkpoint", "--for", "20s"})
                .exit_code,
            0);
  cluster.Await(
      job, [&](const v1::JobStatus&) { return !EventsOf(cluster, job, "FaultReached").empty(); });
  const absl::Time killed = absl::Now();
  EXPECT_EQ(Inject(cluster, job, 2, {"--fault", "kill"}).exit_code, 0);
  const v1::JobStatus on = cluster.Await(
      job, [](const v1::JobStatus& status) { return status.last_step().epoch() > 1; });
  EXPECT_LT(absl::Now() - killed, absl::Seconds(10));
  cluster.Await(job, [&](const v1::JobStatus& status) {
    return status.last_checkpoint().step() > on.last_step().step();
  });
  EXPECT_THAT(EventsOf(cluster, job, "RankFailed"), ElementsAre(HasSubstr("rank 2")));
}

// Another rank dies while the loss of the first one is being made up for: before it is known from
// where training goes on, or where state moves.
TEST_F(InjectTest, KillWhileRecovering_IsMadeUpForToo) {
  constexpr int64_t kSteps = 300;
  Cluster cluster({.coordinator_flags = {"--allow-inject"}});
  for (const std::vector<std::string>& where :
       {std::vector<std::string>{}, std::vector<std::string>{"--at-step", "1"}}) {
    const int64_t job = Train(cluster, AJob(kSteps));
    std::vector<std::string> later = {"--fault", "kill", "--phase", "recovery"};
    later.insert(later.end(), where.begin(), where.end());
    // Not one that has the second homes of the other.
    EXPECT_EQ(Inject(cluster, job, 3, later).exit_code, 0);
    EXPECT_EQ(Inject(cluster, job, 1, {"--fault", "kill"}).exit_code, 0);
    const v1::JobStatus ended = cluster.AwaitEnd(job);
    ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster.WorkerLog();
    EXPECT_THAT(EventsOf(cluster, job, "FaultReached"),
                ElementsAre(MatchesRegex("rank 3: kill at step [0-9]*, recovery")));
    EXPECT_THAT(EventsOf(cluster, job, "RankFailed"),
                AllOf(Contains(HasSubstr("rank 1")), Contains(HasSubstr("rank 3"))));
    EXPECT_EQ(StepsFault(Metrics(), kSteps), "");
    std::filesystem::remove_all(std::filesystem::path(data_.path) / "out");
  }
}

// Its process runs, its peers wait, and nobody but its own daemon can tell.
TEST_F(InjectTest, Hang_IsFoundAndTheOthersGoOn) {
  constexpr int64_t kSteps = 200;
  Cluster cluster({.coordinator_flags = {"--allow-inject"}});
  const int64_t job = Train(cluster, AJob(kSteps));
  EXPECT_EQ(Inject(cluster, job, 2, {"--fault", "hang", "--phase", "reduce"}).exit_code, 0);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster.WorkerLog();
  EXPECT_THAT(EventsOf(cluster, job, "RankFailed"),
              ElementsAre(AllOf(HasSubstr("rank 2"), HasSubstr("its training hangs"))));
  EXPECT_THAT(EventsOf(cluster, job, "Recovered"), Contains(HasSubstr("language dp 4 -> 3")));
  EXPECT_EQ(StepsFault(Metrics(), kSteps), "");
}

// All wait, and nobody is to blame: the same ranks begin again, and no process is another one.
TEST_F(InjectTest, Mute_IsNoProgressAndTheSameRanksGoOn) {
  constexpr int64_t kSteps = 100;
  Cluster cluster({.coordinator_flags = {"--allow-inject", "--heartbeat-interval", "250ms",
                                         "--heartbeat-timeout", "5s"}});
  const int64_t job = Train(cluster, AJob(kSteps));
  EXPECT_EQ(Inject(cluster, job, 2, {"--fault", "mute", "--at-step", "20", "--phase", "reduce"})
                .exit_code,
            0);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster.WorkerLog();
  EXPECT_EQ(ended.epoch(), 2);
  EXPECT_THAT(EventsOf(cluster, job, "NoProgress"), ElementsAre(HasSubstr("all ranks wait")));
  EXPECT_THAT(EventsOf(cluster, job, "RankFailed"), IsEmpty());
  for (const auto& [rank, count] : cluster.Starts(job)) EXPECT_EQ(count, 1) << "rank " << rank;
  EXPECT_EQ(StepsFault(Metrics(), kSteps), "");
}

// What is left of the cluster goes on without the node, which ends its ranks when it is back.
TEST_F(InjectTest, PartitionThatHeals_LosesItsNodeAlone) {
  constexpr int64_t kSteps = 2000;
  Cluster cluster({.devices = 2,
                   .coordinator_flags = {"--allow-inject", "--heartbeat-interval", "500ms",
                                         "--heartbeat-timeout", "1s"}});
  cluster.AddWorker("there", 2);
  const int64_t job = Train(cluster, AJob(kSteps));
  EXPECT_EQ(
      Inject(cluster, job, 3, {"--fault", "partition", "--at-step", "20", "--for", "4s"}).exit_code,
      0);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  EXPECT_THAT(EventsOf(cluster, job, "Recovered"), Contains(HasSubstr("without ranks 2, 3")));
  EXPECT_EQ(StepsFault(Metrics(), kSteps), "");
}

TEST_F(InjectTest, Nan_SkipsThatStepOnAllRanks) {
  Cluster cluster({.coordinator_flags = {"--allow-inject"}});
  const int64_t job = Train(cluster, AJob(200));
  const support::Finished told =
      Inject(cluster, job, 3, {"--fault", "nan", "--at-step", "60", "-o", "json"});
  EXPECT_EQ(told.exit_code, 0) << told.talk;
  EXPECT_EQ(told.out,
            absl::StrCat("{\n  \"job\": ", job, ",\n  \"epoch\": 1,\n  \"node\": \"here\"\n}\n"));
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  EXPECT_EQ(ended.epoch(), 1);
  const std::vector<Metric> metrics = Metrics();
  ASSERT_EQ(StepsFault(metrics, 200), "");
  std::vector<int64_t> skipped;
  for (const Metric& metric : metrics) {
    if (metric.skipped) skipped.push_back(metric.step);
  }
  EXPECT_THAT(EventsOf(cluster, job, "FaultReached"),
              ElementsAre(absl::StrCat("rank 3: nan at step ", skipped.empty() ? 0 : skipped[0],
                                       ", record")));
  EXPECT_THAT(skipped, testing::SizeIs(1));
}

TEST_F(InjectTest, StopOfTwoSeconds_DoesNoHarm) {
  Cluster cluster({.coordinator_flags = {"--allow-inject"}});
  const int64_t job = Train(cluster, AJob(200));
  EXPECT_EQ(Inject(cluster, job, 1, {"--fault", "stop", "--for", "2s"}).exit_code, 0);
  EXPECT_EQ(Inject(cluster, job, 2,
                   {"--fault", "stop", "--at-step", "2", "--phase", "reduce", "--for", "2s"})
                .exit_code,
            0);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  EXPECT_EQ(ended.epoch(), 1);
  const std::vector<Metric> metrics = Metrics();
  ASSERT_EQ(StepsFault(metrics, 200), "");
  double longest = 0;
  for (const Metric& metric : metrics) longest = std::max(longest, metric.seconds);
  EXPECT_GE(longest, 1.9) << "it was stopped";
}

TEST_F(InjectTest, ExitXidAndOutOfMemory_HaveTheirCauses) {
  Cluster cluster({.coordinator_flags = {"--allow-inject"}});
  JobOptions options = AJob(kForEver);
  options.recovery = kNoRecovery;
  const auto ends_with = [&](const std::vector<std::string>& fault) {
    const int64_t job = Train(cluster, options);
    EXPECT_EQ(Inject(cluster, job, 2, fault).exit_code, 0);
    return cluster.AwaitEnd(job).failure();
  };
  const v1::FailureCause exited = ends_with({"--fault", "exit"});
  EXPECT_EQ(exited.cause(), "RankExited") << exited.message();
  EXPECT_EQ(exited.rank(), 2);
  const v1::FailureCause memory = ends_with({"--fault", "oom"});
  EXPECT_EQ(memory.cause(), "OutOfMemory") << memory.message();
  EXPECT_EQ(memory.rank(), 2);
  // The last one: the device is out of use then.
  const v1::FailureCause driver = ends_with({"--fault", "xid:79", "--phase", "backward"});
  EXPECT_EQ(driver.cause(), "DeviceFailed") << driver.message();
  EXPECT_EQ(driver.rank(), 2);
  EXPECT_THAT(driver.message(), HasSubstr("XID 79"));
}

// Whatever the rank was at: its own report ends the job, which no layout would help.
TEST_F(InjectTest, Exception_IsTheRanksErrorInEverythingThatIsShown) {
  Cluster cluster({.coordinator_flags = {"--allow-inject"}});
  for (const char* phase :
       {"forward", "backward", "reduce", "record", "mirror", "optimizer", "gather"}) {
    SCOPED_TRACE(phase);
    const int64_t job = Train(cluster, AJob(kForEver));
    EXPECT_EQ(Inject(cluster, job, 2, {"--fault", "throw", "--phase", phase}).exit_code, 0);
    const v1::JobStatus failed = cluster.AwaitEnd(job);
    EXPECT_EQ(failed.failure().kind(), v1::FAILURE_KIND_RANK_ERROR) << failed.failure().message();
    EXPECT_EQ(failed.failure().rank(), 2);
    EXPECT_EQ(failed.epoch(), 1) << "no layout is tried";
    const std::string name = absl::StrCat("job-", job);
    for (const char* command : {"describe", "why", "events"}) {
      EXPECT_THAT(cluster.Phalanx({command, name}).out,
                  testing::AllOf(HasSubstr("RankError"), HasSubstr("an exception (on demand)")))
          << command;
    }
  }
}

}  // namespace
}  // namespace phalanx::e2e
