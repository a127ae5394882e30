// Names of nodes and identities of stores: who is who.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;

TEST(NameTest, SecondDaemonOfALiveName_IsToldSoAndEnds_AndTheFirstTrainsOn) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job = cluster.Submit(Document(data, {.steps = kForEver})).id();
  cluster.AwaitStep(job, 2);
  const support::Finished second = support::RunToEnd(
      {support::Program("phalanx-worker"), "--coordinator", cluster.grpc(), "--node", "here",
       "--state", support::MakeFolder("e2e-second") + "/state"});
  EXPECT_EQ(second.exit_code, 78);
  EXPECT_THAT(second.talk, HasSubstr("node here is the name of another worker"));
  const v1::JobStatus later = cluster.AwaitStep(job, cluster.Get(job).last_step().step() + 20);
  EXPECT_EQ(later.epoch(), 1);
}

TEST(StoreTest, CoordinatorOnANewStore_RunsItsFirstJobOnADaemonThatKnowsAnother) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t before = cluster.Submit(Document(data, {.steps = kForEver})).id();
  cluster.AwaitStep(before, 2);
  const std::map<int32_t, support::ProcessWatch> ranks = cluster.Ranks(before);
  cluster.KillCoordinator();
  cluster.ForgetStore();
  cluster.StartCoordinator();
  const int64_t first = cluster.Submit(Document(data, {.name = "first", .steps = 2})).id();
  EXPECT_EQ(first, before) << "numbers begin anew in each store";
  const v1::JobStatus ended = cluster.AwaitEnd(first);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  for (const auto& [rank, watch] : ranks) EXPECT_TRUE(watch.AwaitEnd()) << "rank " << rank;
}

// Nodes know more of its jobs than the store.
TEST(StoreTest, StoreThatWasPutBack_RunsItsJobsAgain_AndKeepsTheirMetrics) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t endless = cluster.Submit(Document(data, {.steps = kForEver})).id();
  cluster.AwaitStep(endless, 2);
  const JobOptions options{.name = "queued", .steps = 3, .output = "queued"};
  const int64_t queued = cluster.Submit(Document(data, options)).id();
  cluster.KillCoordinator();
  cluster.CopyStore();
  cluster.StartCoordinator();
  cluster.Cancel(endless);
  ASSERT_EQ(cluster.AwaitEnd(queued).phase(), v1::JOB_PHASE_SUCCEEDED);
  cluster.KillCoordinator();
  cluster.PutBackStore();
  cluster.StartCoordinator();
  const v1::JobStatus again = cluster.AwaitEnd(queued);
  EXPECT_EQ(again.phase(), v1::JOB_PHASE_SUCCEEDED) << again.reason();
  EXPECT_GT(again.epoch(), 1);
  EXPECT_EQ(StepsFault(ReadMetrics(data.path + "/queued"), options.steps), "");
  EXPECT_EQ(support::ReadText(data.path + "/queued/metrics.1.jsonl").find("{\"step\":1,"), 0u);
}

}  // namespace
}  // namespace phalanx::e2e
