// Jobs that end before their last step, each with a checkpoint of the step that it ends with.
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::Contains;
using testing::HasSubstr;

// Far less than ranks that nobody stops would get, on a busy machine too.
constexpr absl::Duration kSoon = absl::Seconds(20);

JobOptions EndlessJob(const std::string& checkpoint) {
  return {.steps = kForEver,
          .precision = "fp64",
          .vision = "ranks: 1",
          .language = "ranks: 2, tp: 2",
          .checkpoint = checkpoint};
}

// The checkpoint of the step that the job ended with is sound, and metrics go as far.
void ExpectEndsWithCheckpoint(const DataFolder& data, const v1::JobStatus& ended) {
  const int64_t step = ended.last_checkpoint().step();
  ASSERT_GT(step, 0) << ended.reason();
  EXPECT_EQ(ended.last_step().step(), step);
  EXPECT_EQ(StepsFault(ReadMetrics(data.path + "/out"), step), "");
  EXPECT_THAT(ended.reason(),
              HasSubstr(absl::StrCat("it ended with step ", step, " of ", kForEver, ", checkpoint ",
                                     ended.last_checkpoint().path())));
  const support::Finished verified = support::RunToEnd(
      {support::Program("phalanx"), "checkpoints", "verify", ended.last_checkpoint().path()});
  EXPECT_EQ(verified.exit_code, 0) << verified.talk;
}

// A job that trained when its worker was told to stop waits for devices.
v1::JobStatus LeaveByWorkersTerm(Cluster& cluster, int64_t job) {
  cluster.AwaitStep(job, 2);
  const absl::Time begin = absl::Now();
  cluster.worker().Signal(SIGTERM);
  EXPECT_EQ(cluster.worker().WaitExitCode(), 0);
  EXPECT_LT(absl::Now() - begin, kSoon);
  return cluster.Await(
      job, [](const v1::JobStatus& status) { return status.phase() == v1::JOB_PHASE_QUEUED; });
}

TEST(EarlyEndTest, TimeLimit_EndsWithACheckpointThatTheNextJobGoesOnFrom) {
  const DataFolder data = MakeData();
  Cluster cluster;
  JobOptions options = EndlessJob("{every: 0, resume_from: latest}");
  options.time_limit = "8s";
  const v1::JobStatus first = cluster.AwaitEnd(cluster.Submit(Document(data, options)).id());
  EXPECT_EQ(first.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(first.failure().cause(), "TimeLimit") << first.failure().message();
  ExpectEndsWithCheckpoint(data, first);

  options.time_limit = "";
  options.steps = first.last_checkpoint().step() + 2;
  const v1::JobStatus second = cluster.AwaitEnd(cluster.Submit(Document(data, options)).id());
  EXPECT_EQ(second.phase(), v1::JOB_PHASE_SUCCEEDED) << second.reason();
  EXPECT_EQ(StepsFault(ReadMetrics(data.path + "/out"), options.steps), "");
}

TEST(EarlyEndTest, CancelWithACheckpoint_LosesNoStep) {
  const DataFolder data = MakeData();
  Cluster cluster;
  const int64_t job = cluster.Submit(Document(data, EndlessJob("{every: 1000}"))).id();
  cluster.AwaitStep(job, 2);
  const support::Finished cancelled =
      cluster.Phalanx({"cancel", absl::StrCat("job-", job), "--checkpoint"});
  EXPECT_EQ(cancelled.exit_code, 0);
  EXPECT_EQ(cancelled.talk, absl::StrCat("job-", job, " saves its state, and then ends\n"));
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_CANCELLED);
  ExpectEndsWithCheckpoint(data, ended);
}

TEST(EarlyEndTest, TermToAWorker_IsADrain_AndItsJobGoesOnWhenOneIsBack) {
  const DataFolder data = MakeData();
  Cluster cluster;
  JobOptions options = EndlessJob("{every: 1000}");
  options.steps = 200;
  const int64_t job = cluster.Submit(Document(data, options)).id();
  const v1::JobStatus left = LeaveByWorkersTerm(cluster, job);
  const int64_t step = left.last_checkpoint().step();
  EXPECT_GE(step, 2);
  EXPECT_THAT(left.reason(), HasSubstr(absl::StrCat("node here is drained: it goes on behind step ",
                                                    step, " once it has devices again")));
  cluster.StartWorker();
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  EXPECT_EQ(StepsFault(ReadMetrics(data.path + "/out"), options.steps), "");
}

// The checkpoint cannot be written: that is said, and the end does not wait for it.
TEST(EarlyEndTest, TermToAWorkerWithoutAFolderForIt_LosesWhatWasTrained) {
  const DataFolder data = MakeData();
  support::WriteFile(data.path + "/file", "");
  Cluster cluster;
  const int64_t job = cluster.Submit(Document(data, EndlessJob("{directory: file}"))).id();
  const v1::JobStatus left = LeaveByWorkersTerm(cluster, job);
  EXPECT_THAT(left.reason(), HasSubstr("it goes on behind step 0 once it has devices again"));
  EXPECT_THAT(left.reason(), HasSubstr("without a checkpoint: rank "));
  EXPECT_THAT(left.reason(), HasSubstr("/file: Not a directory"));
  std::vector<std::string> failed;
  for (const v1::JobEvent& event : cluster.Events(job)) {
    if (event.type() == "CheckpointFailed") failed.push_back(event.message());
  }
  EXPECT_THAT(failed, Contains(HasSubstr("/file: Not a directory")));
}

// Whoever takes the word that it has succeeded looks for what it trained.
TEST(EarlyEndTest, LastCheckpointThatCannotBeWritten_IsNoSuccess) {
  const DataFolder data = MakeData();
  support::WriteFile(data.path + "/file", "");
  Cluster cluster;
  const int64_t job =
      cluster
          .Submit(Document(data,
                           {.steps = 4, .vision = "", .checkpoint = "{directory: file, every: 2}"}))
          .id();
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(ended.failure().kind(), v1::FAILURE_KIND_CHECKPOINT_UNAVAILABLE);
  EXPECT_THAT(ended.reason(), HasSubstr("all ranks have done 4 steps, and there is no checkpoint "
                                        "of the last one: rank 0: step 4: "));
  EXPECT_EQ(StepsFault(ReadMetrics(data.path + "/out"), 4), "");
}

TEST(EarlyEndTest, TermToRun_CancelsWithACheckpoint) {
  const DataFolder data = MakeData();
  support::WriteFile(data.path + "/job.yaml", JobText(data, EndlessJob("{every: 1000}")));
  const std::string mark = support::NewMark();
  support::Process run({support::Program("phalanx"), "run", data.path + "/job.yaml"}, mark,
                       data.path + "/run.out", data.path + "/run.talk");
  support::AwaitFile(data.path + "/out", run);
  support::AwaitFile(data.path + "/out/metrics.jsonl", run);
  support::AwaitText(data.path + "/out/metrics.jsonl", "\"step\"", run);
  run.Signal(SIGTERM);
  EXPECT_EQ(run.WaitExitCode(), 103) << support::ReadText(data.path + "/run.talk");
  EXPECT_TRUE(support::ProcessesMarked(mark).empty());
  const std::vector<Metric> metrics = ReadMetrics(data.path + "/out");
  const auto step = static_cast<int64_t>(metrics.size());
  EXPECT_EQ(StepsFault(metrics, step), "");
  const support::Finished list =
      support::RunToEnd({support::Program("phalanx"), "checkpoints", "list",
                         data.path + "/checkpoints", "-o", "name"});
  EXPECT_THAT(support::ReadText(data.path + "/run.talk"),
              HasSubstr(absl::StrCat("cancelled on request; it ended with step ", step, " of ",
                                     kForEver, ", checkpoint ", data.path, "/checkpoints/step-")));
  const support::Finished verified =
      support::RunToEnd({support::Program("phalanx"), "checkpoints", "verify",
                         list.out.substr(0, list.out.find('\n'))});
  EXPECT_EQ(verified.exit_code, 0) << verified.talk;
}

}  // namespace
}  // namespace phalanx::e2e
