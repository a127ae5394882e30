// A rank that dies.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(RankTest, KilledWhileTraining_IsNamedAndItsJobEnds_AndTheDevicesAreFree) {
  const DataFolder data = MakeData();
  Cluster cluster;
  const JobOptions options{.name = "victim",
                           .steps = kForEver,
                           .vision = "ranks: 2",
                           .language = "ranks: 4, tp: 2, pp: 2",
                           .recovery = kNoRecovery};
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 3);
  const std::map<int32_t, support::ProcessWatch> ranks = cluster.Ranks(job);
  ASSERT_EQ(ranks.size(), 6u) << cluster.WorkerLog();
  kill(ranks.at(4).pid(), SIGKILL);

  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(failed.failure().cause(), "RankKilled");
  EXPECT_EQ(failed.failure().rank(), 4);
  EXPECT_EQ(failed.failure().node(), "here");
  EXPECT_EQ(failed.failure().signal(), 9);
  for (const auto& [rank, watch] : ranks) EXPECT_TRUE(watch.AwaitEnd()) << "rank " << rank;

  const auto names_it = AllOf(HasSubstr("rank 4"), HasSubstr("node here"), HasSubstr("signal 9"));
  EXPECT_THAT(cluster.Why(job), names_it);
  const support::Finished why = cluster.Phalanx({"why", "victim"}),
                          story = cluster.Phalanx({"describe", "victim"});
  EXPECT_EQ(why.exit_code, 0);
  EXPECT_THAT(why.out, names_it);
  EXPECT_EQ(story.exit_code, 0);
  EXPECT_THAT(story.out, names_it);
  EXPECT_THAT(story.out, AllOf(HasSubstr("Device:        slot 4 of node here\n"),
                               HasSubstr("Tried:         nothing: no loss came before this one\n"),
                               HasSubstr("Failure:       what to do: ")));
  EXPECT_EQ(cluster.Phalanx({"watch", "victim"}).exit_code, 100);

  // All six devices again.
  JobOptions second = options;
  second.name = "second";
  second.steps = 2;
  EXPECT_EQ(cluster.AwaitEnd(cluster.Submit(Document(data, second)).id()).phase(),
            v1::JOB_PHASE_SUCCEEDED);
}

// An operator, a scheduler or a clean-up script; not the program, and another attempt may go well.
TEST(RankTest, TerminatedWhileTraining_IsKilledByThatSignal) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2});
  const int64_t job =
      cluster
          .Submit(Document(
              data,
              {.steps = kForEver, .vision = "", .language = "ranks: 2", .recovery = kNoRecovery}))
          .id();
  cluster.AwaitStep(job, 3);
  kill(cluster.Ranks(job).at(1).pid(), SIGTERM);
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.failure().cause(), "RankKilled") << failed.failure().message();
  EXPECT_EQ(failed.failure().rank(), 1);
  EXPECT_EQ(failed.failure().signal(), SIGTERM);
  EXPECT_THAT(failed.failure().message(), HasSubstr("SIGTERM"));
}

}  // namespace
}  // namespace phalanx::e2e
