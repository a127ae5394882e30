// A coordinator of another version takes over a store while a job of it trains.
#include <string>

#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr char kOther[] = "phalanx-coordinator-other";

JobOptions PipelineJob(const std::string& name) {
  return {.name = name,
          .steps = 150,
          .precision = "fp64",
          .vision = "ranks: 1",
          .language = "ranks: 2, pp: 2",
          .schedule = "{name: auto}",
          .layers = 4,
          .output = name};
}

TEST(UpgradeTest, CoordinatorThatPlansOtherwise_FinishesTheJobThatRuns) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 3});
  const int64_t taken_over = cluster.Submit(Document(data, PipelineJob("taken-over"))).id();
  const std::string digest = cluster.AwaitStep(taken_over, 3).plan_digest();
  const std::map<int32_t, support::ProcessWatch> ranks = cluster.Ranks(taken_over);
  cluster.KillCoordinator();
  cluster.StartCoordinator(kOther);
  const v1::JobStatus ended = cluster.AwaitEnd(taken_over);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  EXPECT_EQ(ended.epoch(), 1);
  EXPECT_EQ(ended.plan_digest(), digest);
  EXPECT_EQ(ranks.size(), 3u);

  // The same job, of which the other coordinator decides everything.
  const int64_t own = cluster.Submit(Document(data, PipelineJob("own"))).id();
  const v1::JobStatus own_ended = cluster.AwaitEnd(own);
  EXPECT_EQ(own_ended.phase(), v1::JOB_PHASE_SUCCEEDED) << own_ended.reason();
  EXPECT_NE(own_ended.plan_digest(), digest) << "this coordinator was to decide otherwise";

  const std::vector<Metric> before = ReadMetrics(data.path + "/taken-over");
  const std::vector<Metric> after = ReadMetrics(data.path + "/own");
  ASSERT_EQ(StepsFault(before, 150), "");
  ASSERT_EQ(StepsFault(after, 150), "");
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_NEAR(before[i].loss, after[i].loss, 1e-9 * after[i].loss) << "step " << i + 1;
  }
}

// What was decided before a rank had started stays too.
TEST(UpgradeTest, JobThatWasPlannedAndHasNotStarted_KeepsItsLayout) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 3});
  const int64_t job = cluster.Submit(Document(data, PipelineJob("planned"))).id();
  const auto is_planned = [](const v1::JobStatus& status) { return !status.plan_digest().empty(); };
  const std::string digest = cluster.Await(job, is_planned).plan_digest();
  cluster.KillCoordinator();
  cluster.StartCoordinator(kOther);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  EXPECT_EQ(ended.plan_digest(), digest);
  EXPECT_EQ(StepsFault(ReadMetrics(data.path + "/planned"), 150), "");
}

}  // namespace
}  // namespace phalanx::e2e
