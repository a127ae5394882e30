// Jobs that go on from the checkpoints of others.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/files.h"

namespace phalanx::e2e {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr int64_t kSteps = 8;

JobOptions ResumedJob(const std::string& language, const std::string& checkpoint) {
  return {.steps = kSteps,
          .precision = "fp64",
          .vision = "ranks: 1",
          .language = language,
          .checkpoint = checkpoint};
}

std::vector<std::string> Messages(Cluster& cluster, int64_t job, const std::string& type) {
  std::vector<std::string> messages;
  for (const v1::JobEvent& event : cluster.Events(job)) {
    if (event.type() == type) messages.push_back(event.message());
  }
  return messages;
}

std::string OutputOf(const DataFolder& data) { return data.path + "/out"; }

TEST(ResumeTest, CheckpointOfAnotherJobAndLayout_GoesOnAsIfNothingHadHappened) {
  const DataFolder data = MakeData();
  Cluster cluster;
  const v1::JobStatus first =
      cluster.Submit(Document(data, ResumedJob("ranks: 4, tp: 2", "{every: 4, keep: 9}")));
  const v1::JobStatus done = cluster.AwaitEnd(first.id());
  ASSERT_EQ(done.phase(), v1::JOB_PHASE_SUCCEEDED) << done.reason();
  const std::string folder = data.path + "/checkpoints";
  EXPECT_EQ(done.last_checkpoint().path(), folder + "/step-00000008.epoch-1");
  const std::vector<Metric> unbroken = ReadMetrics(OutputOf(data));
  ASSERT_EQ(StepsFault(unbroken, kSteps), "");

  const v1::JobStatus second = cluster.Submit(Document(
      data,
      ResumedJob("ranks: 2, pp: 2", "{every: 4, resume_from: checkpoints/step-00000004.epoch-1}")));
  const v1::JobStatus ended = cluster.AwaitEnd(second.id());
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  EXPECT_THAT(Messages(cluster, second.id(), "Resumed"),
              Contains(absl::StrCat("behind step 4, from ", folder, "/step-00000004.epoch-1")));
  EXPECT_EQ(ended.last_checkpoint().path(), folder + "/step-00000008.epoch-1.2");
  const std::vector<Metric> broken = ReadMetrics(OutputOf(data));
  ASSERT_EQ(StepsFault(broken, kSteps), "");
  for (size_t i = 0; i < broken.size(); ++i) {
    const double tolerance = i < 4 ? 0 : 1e-9 * unbroken[i].loss;
    EXPECT_NEAR(broken[i].loss, unbroken[i].loss, tolerance) << "step " << i + 1;
    EXPECT_NEAR(broken[i].gradient_norm, unbroken[i].gradient_norm,
                i < 4 ? 0 : 1e-9 * unbroken[i].gradient_norm)
        << "step " << i + 1;
  }
}

TEST(ResumeTest, Latest_AfterAKilledWorker_GoesOnBehindTheNewest) {
  const DataFolder data = MakeData();
  Cluster cluster;
  JobOptions options = ResumedJob("ranks: 2, tp: 2", "{every: 2, resume_from: latest}");
  options.steps = kForEver;
  options.recovery = kNoRecovery;
  const v1::JobStatus first = cluster.Submit(Document(data, options));
  EXPECT_THAT(Messages(cluster, first.id(), "Resumed"),
              testing::IsSubsetOf({"there is no checkpoint: training begins with its first step"}));
  cluster.Await(first.id(),
                [](const v1::JobStatus& status) { return status.last_checkpoint().step() >= 4; });
  cluster.KillWorker();
  cluster.StartWorker();
  ASSERT_EQ(cluster.AwaitEnd(first.id()).phase(), v1::JOB_PHASE_FAILED);

  const v1::JobStatus second = cluster.Submit(Document(data, options));
  const v1::JobStatus going =
      cluster.Await(second.id(), [](const v1::JobStatus& s) { return s.last_step().step() >= 6; });
  cluster.Cancel(second.id());
  cluster.AwaitEnd(second.id());
  EXPECT_THAT(Messages(cluster, second.id(), "Resumed"), Contains(HasSubstr("behind step ")));
  const std::vector<Metric> metrics = ReadMetrics(OutputOf(data));
  ASSERT_GE(static_cast<int64_t>(metrics.size()), going.last_step().step());
  EXPECT_EQ(StepsFault(metrics, static_cast<int64_t>(metrics.size())), "");
}

TEST(ResumeTest, CheckpointOfTheLastStep_IsThatOfAJobThatIsDone) {
  const DataFolder data = MakeData();
  Cluster cluster;
  const JobOptions options = ResumedJob("ranks: 1", "{every: 8, resume_from: latest}");
  for (int run = 0; run < 2; ++run) {
    const v1::JobStatus job = cluster.Submit(Document(data, options));
    const v1::JobStatus ended = cluster.AwaitEnd(job.id());
    ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
    EXPECT_EQ(StepsFault(ReadMetrics(OutputOf(data)), kSteps), "");
  }
}

TEST(ResumeTest, CheckpointThatCannotBe_FailsTheJob_NamingFieldValueAndRule) {
  const DataFolder data = MakeData();
  Cluster cluster;
  const v1::JobStatus first = cluster.Submit(Document(data, ResumedJob("ranks: 1", "{every: 4}")));
  ASSERT_EQ(cluster.AwaitEnd(first.id()).phase(), v1::JOB_PHASE_SUCCEEDED);
  const std::string path = data.path + "/checkpoints/step-00000004.epoch-1";
  struct Case {
    std::string resume_from, cause, message;
    int32_t layers = 2;
  };
  const std::vector<Case> cases = {
      {path, "CheckpointInvalid", "module language has layers 2, the job's has 3", 3},
      {data.path + "/none", "CheckpointUnavailable", "is no folder"},
  };
  for (const Case& one : cases) {
    JobOptions options =
        ResumedJob("ranks: 1", absl::StrCat("{every: 4, resume_from: ", one.resume_from, "}"));
    options.layers = one.layers;
    const v1::JobStatus job = cluster.Submit(Document(data, options));
    const v1::JobStatus ended = cluster.AwaitEnd(job.id());
    EXPECT_EQ(ended.phase(), v1::JOB_PHASE_FAILED);
    EXPECT_EQ(ended.failure().cause(), one.cause) << ended.failure().message();
    EXPECT_THAT(ended.failure().message(), HasSubstr("spec.checkpoint.resume_from"));
    EXPECT_THAT(ended.failure().message(), HasSubstr(one.message));
    EXPECT_THAT(ended.failure().message(), HasSubstr(one.resume_from));
  }
}

}  // namespace
}  // namespace phalanx::e2e
