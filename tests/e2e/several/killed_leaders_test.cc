// The one of two coordinators that leads is killed again and again while much is asked of it.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "core/posix/waker.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/load.h"
#include "tests/support/etcd.h"
#include "tests/support/process.h"
#include "tests/support/tools.h"

namespace phalanx::e2e {
namespace {

constexpr int kKills = 5;
// From a kill until another one leads and has both workers. A machine that does other things may be
// late with it once: half of the kills at least are followed so soon.
constexpr absl::Duration kFollowedWithin = absl::Seconds(5);

// Until the leader has taken so many more jobs.
void AwaitMoreJobs(Cluster& cluster, size_t leader, size_t count) {
  const absl::Time deadline = absl::Now() + support::kPatience;
  const size_t enough = cluster.List().size() + count;
  while (cluster.List().size() < enough) {
    support::Require(absl::Now() < deadline, "too few jobs");
    // The list is long, and the coordinator has other things to do.
    cluster.coordinator(leader).watch().AwaitEnd(absl::Milliseconds(10));
  }
}

TEST(KilledLeadersTest, LeadersKilledUnderLoad_AreFollowed_AndAllThatTheyAcknowledgedIsKept) {
  PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
  Load load({.store = support::SharedEtcd().NewPlace(), .coordinators = 2});
  Cluster& cluster = load.cluster();
  Prng prng(6);
  std::vector<absl::Duration> all_followed;
  for (int kill = 0; kill < kKills; ++kill) {
    const size_t leader = cluster.AwaitLeader();
    if (kill == 0) load.SubmitShort();  // cut by the kills behind it
    AwaitMoreJobs(cluster, leader, 10 + prng.Below(10));
    cluster.KillCoordinator(leader);
    const SteadyTime killed = SteadyNow();
    load.AwaitWorkers();  // another one leads and has both
    const absl::Duration followed = Since(killed);
    EXPECT_LT(followed, support::kPatience) << cluster.CoordinatorLog(1 - leader);
    all_followed.push_back(followed);
    cluster.StartCoordinator("phalanx-coordinator", leader);
  }
  std::sort(all_followed.begin(), all_followed.end());
  EXPECT_LT(all_followed[all_followed.size() / 2], kFollowedWithin);
  const Outcome outcome = load.Finish();

  const Acknowledged& acknowledged = outcome.acknowledged;
  const Kept& kept = outcome.kept;
  EXPECT_GT(acknowledged.submits.size(), 20u);
  EXPECT_EQ(kept.missing, 0) << "of " << acknowledged.submits.size();
  EXPECT_EQ(kept.doubled, 0);
  EXPECT_GT(acknowledged.cancels.size(), 3u);
  EXPECT_EQ(kept.cancels_missing, 0) << "of " << acknowledged.cancels.size();
  EXPECT_EQ(kept.deletes_missing, 0) << "of " << acknowledged.deletes.size();
  EXPECT_GT(acknowledged.suspends.size(), 3u);
  EXPECT_EQ(kept.suspends_missing, 0) << "of " << acknowledged.suspends.size();
  EXPECT_EQ(kept.resumes_missing, 0) << "of " << acknowledged.resumes.size();
  EXPECT_EQ(kept.marks_missing, 0) << "of " << acknowledged.marks;
  EXPECT_EQ(kept.reserves_missing, 0) << "of " << acknowledged.reserves;
  EXPECT_EQ(kept.tokens_missing, 0) << "of " << acknowledged.tokens.size();
  EXPECT_EQ(kept.refused, 0);

  EXPECT_EQ(outcome.short_jobs_wrong, 0);
  EXPECT_EQ(outcome.short_ranks_again, 0);
  EXPECT_EQ(outcome.epoch, 1);
  EXPECT_EQ(outcome.ranks_lost, 0);
  EXPECT_EQ(outcome.step_fault, "");
  EXPECT_TRUE(outcome.good());
}

}  // namespace
}  // namespace phalanx::e2e
