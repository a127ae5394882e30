// Checks of devices: one that fails gets no job, and a job never waits for one that is under way.
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class CheckTest : public testing::Test {
 protected:
  static ClusterOptions Options(int32_t devices, const std::string& faults,
                                const std::string& interval) {
    return {.devices = devices,
            .worker_flags = {"--check-interval", interval, "--check-faults", faults}};
  }
  // The node, once a check of the device has failed.
  static v1::NodeStatus AwaitFailed(Cluster& cluster, int32_t device) {
    support::AwaitText(cluster.CoordinatorLogPath(),
                       absl::StrCat("device ", device, " failed its check"), cluster.coordinator());
    return cluster.Nodes().at(0);
  }

  const std::string faults_ = support::MakeFolder("check-faults") + "/faults";
};

TEST_F(CheckTest, DeviceThatFails_GetsNoJob_DescribeSaysWhy_UntilItPasses) {
  const DataFolder data = MakeData();
  support::WriteFile(faults_, "1 arithmetic\n");
  Cluster cluster(Options(2, faults_, "2"));
  const v1::NodeStatus node = AwaitFailed(cluster, 1);
  EXPECT_THAT(node.failed_devices(), ElementsAre(1));
  EXPECT_GT(node.check().loopback().bytes_per_second(), 0);
  const support::Finished described = cluster.Phalanx({"describe", "node", "here"});
  EXPECT_EQ(described.exit_code, 0);
  EXPECT_THAT(described.out, AllOf(HasSubstr("2, 1 free"), HasSubstr("failed"),
                                   HasSubstr("arithmetic: 1 of 65536 entries of a product")));
  const int64_t job = cluster.Submit(Document(data, {.steps = 2})).id();
  EXPECT_EQ(cluster.Get(job).phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_THAT(cluster.Why(job), HasSubstr("device 1 of node here failed its check"));
  support::WriteFile(faults_, "");
  EXPECT_EQ(cluster.AwaitEnd(job).phase(), v1::JOB_PHASE_SUCCEEDED);
}

TEST_F(CheckTest, UncordonedNode_GivesItsDevicesAnotherChance) {
  const DataFolder data = MakeData();
  support::WriteFile(faults_, "0 memory\n");
  Cluster cluster(Options(2, faults_, "600"));
  AwaitFailed(cluster, 0);
  const int64_t job = cluster.Submit(Document(data, {.steps = 2})).id();
  EXPECT_EQ(cluster.Get(job).phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_EQ(cluster.Phalanx({"uncordon", "here"}).exit_code, 0);
  EXPECT_EQ(cluster.AwaitEnd(job).phase(), v1::JOB_PHASE_SUCCEEDED);
}

TEST_F(CheckTest, Assignment_EndsTheCheckThatIsUnderWay) {
  const DataFolder data = MakeData();
  support::WriteFile(faults_, "0 hang\n");
  Cluster cluster(Options(2, faults_, "600"));
  // As it hangs, nothing but the assignment ends it before two minutes are over.
  support::AwaitText(cluster.WorkerLogPath(), "check=1 of 2 devices started", cluster.worker());
  const absl::Time begin = absl::Now();
  const int64_t job = cluster.Submit(Document(data, {.steps = 2})).id();
  EXPECT_EQ(cluster.AwaitEnd(job).phase(), v1::JOB_PHASE_SUCCEEDED);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(100));
  EXPECT_THAT(cluster.WorkerLog(), HasSubstr("check=1 ended devices=0 killed"));
  EXPECT_EQ(cluster.Nodes().at(0).check().devices_size(), 0) << "nobody can say";
}

}  // namespace
}  // namespace phalanx::e2e
