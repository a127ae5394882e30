// Data that do not come, of a step or of an evaluation, for longer than any rank may stand still: a
// wait that its rank tells of, and no alarm.
#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/e2e/recovery/held_reads.h"
#include "tests/e2e/recovery/trouble.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::IsEmpty;

// Longer than the 5 s in which a rank may stand still and the 10 s in which all may wait.
constexpr absl::Duration kHeld = absl::Seconds(13);
constexpr int64_t kSteps = 30;

TEST(HeldDataTest, RankWhoseDataDoNotCome_IsWaitedFor) {
  const DataFolder data = MakeSmallData();
  HeldReads reads;
  Cluster cluster;
  JobOptions options{.steps = kForEver, .vision = "", .language = "ranks: 2", .batch = 4};
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 5);
  const support::ProcessWatch rank(cluster.Ranks(job).at(1).pid());
  reads.Hold(rank.pid(), "set-");
  ASSERT_FALSE(rank.AwaitEnd(kHeld / 8)) << "what was read ahead is trained on first";
  const int64_t step = cluster.Get(job).last_step().step();
  EXPECT_FALSE(rank.AwaitEnd(kHeld));
  EXPECT_LE(cluster.Get(job).last_step().step(), step + 1) << "it was not held";
  reads.Release();
  cluster.AwaitStep(job, step + 5);
  EXPECT_EQ(cluster.Get(job).epoch(), 1);
  EXPECT_THAT(cluster.Incidents(job), IsEmpty());
}

TEST(HeldDataTest, EvaluationWhoseDataDoNotCome_IsWaitedFor) {
  const DataFolder data = MakeSmallData();
  HeldReads reads;
  Cluster cluster;
  const JobOptions options{
      .steps = kSteps, .vision = "", .language = "ranks: 2", .batch = 4, .validation = true};
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 1);
  const support::ProcessWatch rank(cluster.Ranks(job).at(1).pid());
  reads.Hold(rank.pid(), "validation-");
  cluster.AwaitStep(job, kSteps);
  EXPECT_FALSE(rank.AwaitEnd(kHeld)) << "it was not held, or was taken for one that hangs";
  reads.Release();
  const v1::JobStatus last = cluster.AwaitEnd(job);
  EXPECT_EQ(last.phase(), v1::JOB_PHASE_SUCCEEDED) << last.failure().message();
  EXPECT_EQ(last.epoch(), 1);
  EXPECT_THAT(cluster.Incidents(job), IsEmpty());
}

}  // namespace
}  // namespace phalanx::e2e
