// A job leaves its devices for one of larger priority, and goes on afterwards: with the same
// numbers.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"
#include "tests/support/files.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kHighSteps = 4;

JobOptions Low() {
  return {.name = "low",
          .steps = kForEver,
          .precision = "fp64",
          .vision = "",
          .language = "ranks: 2, tp: 2",
          .batch = 29,
          // None is due before it is told to leave.
          .checkpoint = "{every: 1000000, directory: checkpoints-low}",
          .preemptible = true,
          .output = "low"};
}

JobOptions High() {
  return {.name = "high",
          .steps = kHighSteps,
          .vision = "",
          .language = "ranks: 2",
          .priority = 10,
          .output = "high"};
}

TEST(PreemptTest, JobOfLargerPriority_TakesTheDevices_AndNoStepOfTheOtherIsLost) {
  const DataFolder data = MakeSmallData();
  Cluster cluster({.devices = 2});
  const int64_t low = cluster.Submit(Document(data, Low())).id();
  cluster.AwaitStep(low, 5);
  const int64_t high = cluster.Submit(Document(data, High())).id();
  const v1::JobStatus away = cluster.Await(
      low, [](const v1::JobStatus& status) { return status.phase() == v1::JOB_PHASE_QUEUED; });
  // It ended at the boundary of a step, and what it saved is of that step.
  EXPECT_GE(away.last_step().step(), 5);
  EXPECT_EQ(away.last_checkpoint().step(), away.last_step().step());
  EXPECT_THAT(away.reason(), HasSubstr("of a larger priority, needs its devices"));
  EXPECT_THAT(away.reason(),
              HasSubstr(absl::StrCat("it goes on behind step ", away.last_step().step(), " once")));
  EXPECT_THAT(away.reason(), Not(HasSubstr("done again")));

  const v1::JobStatus done = cluster.AwaitEnd(high);
  ASSERT_EQ(done.phase(), v1::JOB_PHASE_SUCCEEDED) << done.reason() << cluster.WorkerLog();
  EXPECT_EQ(StepsFault(MetricsOf(data, "high"), kHighSteps), "");
  const v1::JobStatus back = cluster.Await(low, [&](const v1::JobStatus& status) {
    return status.epoch() > away.epoch() && status.last_step().step() > away.last_step().step();
  });
  EXPECT_EQ(back.epoch(), 2);
  EXPECT_THAT(cluster.Incidents(low), testing::IsEmpty()) << "nothing was lost";
  ASSERT_NO_FATAL_FAILURE(
      ExpectCurvesOfAnUndisturbedRun(cluster, data, Low(), low, back.last_step().step() + 5));
}

TEST(PreemptTest, JobThatIsNotPreemptible_KeepsItsDevices) {
  const DataFolder data = MakeSmallData();
  Cluster cluster({.devices = 2});
  JobOptions options = Low();
  options.preemptible = false;
  const int64_t low = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(low, 5);
  const int64_t high = cluster.Submit(Document(data, High())).id();
  const int64_t step = cluster.Get(low).last_step().step();
  const v1::JobStatus later = cluster.AwaitStep(low, step + 20);
  EXPECT_EQ(later.epoch(), 1);
  EXPECT_EQ(later.phase(), v1::JOB_PHASE_RUNNING) << later.reason();
  EXPECT_EQ(cluster.Get(high).phase(), v1::JOB_PHASE_QUEUED);
  cluster.Cancel(low);
  EXPECT_EQ(cluster.AwaitEnd(high).phase(), v1::JOB_PHASE_SUCCEEDED);
}

// The folder of its checkpoints is gone when it is to leave, and there again when it is asked once
// more.
TEST(PreemptTest, JobThatIsSuspendedAndCannotSaveItsState_TrainsOnWithAllSteps) {
  const DataFolder data = MakeSmallData();
  Cluster cluster({.devices = 2});
  JobOptions options = Low();
  options.checkpoint = "{every: 1000000, directory: place/checkpoints}";
  const std::string place = data.path + "/place";
  support::WriteFile(place, "");
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 5);
  const std::string name = absl::StrCat("job-", job);
  EXPECT_EQ(cluster.Phalanx({"suspend", name}).exit_code, 0);
  const v1::JobStatus on = cluster.Await(job, [](const v1::JobStatus& status) {
    return status.epoch() == 2 && status.last_step().epoch() == 2;
  });
  EXPECT_EQ(on.phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_FALSE(on.suspended());
  EXPECT_THAT(on.reason(), HasSubstr("and its state cannot be saved: rank "));
  EXPECT_THAT(on.reason(), HasSubstr("place/checkpoints: Not a directory"));
  EXPECT_THAT(cluster.Incidents(job), testing::IsEmpty()) << "nothing was lost";
  cluster.AwaitStep(job, on.last_step().step() + 5);
  std::filesystem::remove(place);
  EXPECT_EQ(cluster.Phalanx({"suspend", name}).exit_code, 0);
  const v1::JobStatus away = cluster.Await(
      job, [](const v1::JobStatus& status) { return status.phase() == v1::JOB_PHASE_QUEUED; });
  EXPECT_EQ(away.last_checkpoint().step(), away.last_step().step());
  EXPECT_THAT(away.reason(), Not(HasSubstr("done again")));
  EXPECT_EQ(cluster.Phalanx({"resume", name}).exit_code, 0);
  const v1::JobStatus back = cluster.AwaitStep(job, away.last_step().step() + 3);
  ASSERT_NO_FATAL_FAILURE(
      ExpectCurvesOfAnUndisturbedRun(cluster, data, options, job, back.last_step().step() + 3));
}

}  // namespace
}  // namespace phalanx::e2e
