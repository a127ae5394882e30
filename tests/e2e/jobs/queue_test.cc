// Jobs that wait for each other.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(QueueTest, SecondJobWithoutRoom_SaysWhatItWaitsFor_ThenRuns) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 3});
  const int64_t first =
      cluster.Submit(Document(data, {.name = "first", .steps = kForEver, .output = "a"})).id();
  const int64_t second =
      cluster.Submit(Document(data, {.name = "second", .steps = 2, .output = "b"})).id();
  cluster.AwaitStep(first, 1);
  EXPECT_EQ(cluster.Get(second).phase(), v1::JOB_PHASE_QUEUED);
  const support::Finished why = cluster.Phalanx({"why", "second"});
  EXPECT_EQ(why.exit_code, 0);
  EXPECT_THAT(why.out, AllOf(HasSubstr("Queued"), HasSubstr("needs 2 cpu devices"),
                             HasSubstr("1 of 3 are free"), HasSubstr("job-1 (first) holds 2")));
  EXPECT_EQ(cluster.Phalanx({"cancel", "first"}).exit_code, 0);
  EXPECT_EQ(cluster.AwaitEnd(second).phase(), v1::JOB_PHASE_SUCCEEDED);
  EXPECT_EQ(cluster.Get(first).phase(), v1::JOB_PHASE_CANCELLED);
  EXPECT_EQ(StepsFault(ReadMetrics(data.path + "/b"), 2), "");
}

}  // namespace
}  // namespace phalanx::e2e
