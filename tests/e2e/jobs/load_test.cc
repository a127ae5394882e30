// A coordinator that is killed again and again while much is asked of it.
#include "tests/e2e/jobs/load.h"

#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "gtest/gtest.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

void AwaitMoreJobs(Cluster& cluster, size_t count) {
  const absl::Time deadline = absl::Now() + support::kPatience;
  const size_t enough = cluster.List().size() + count;
  while (cluster.List().size() < enough) {
    support::Require(absl::Now() < deadline, "too few jobs");
    // The list is long, and the coordinator has other things to do.
    cluster.coordinator().watch().AwaitEnd(absl::Milliseconds(10));
  }
}

TEST(LoadTest, CoordinatorKilledUnderLoad_KeepsAllThatItAcknowledged_AndNoJobIsStuck) {
  constexpr int kKills = 6;
  Load load;
  Prng prng(4);
  for (int kill = 0; kill < kKills; ++kill) {
    // The short jobs are cut by the kills behind them.
    if (kill % 3 == 0) load.SubmitShort();
    AwaitMoreJobs(load.cluster(), 15 + prng.Below(20));
    load.cluster().KillCoordinator();
    load.cluster().StartCoordinator();
  }
  const Outcome outcome = load.Finish();

  const Acknowledged& acknowledged = outcome.acknowledged;
  const Kept& kept = outcome.kept;
  EXPECT_GT(acknowledged.submits.size(), 60u);
  EXPECT_EQ(kept.missing, 0) << "of " << acknowledged.submits.size();
  EXPECT_EQ(kept.doubled, 0);
  EXPECT_GT(acknowledged.cancels.size(), 10u);
  EXPECT_EQ(kept.cancels_missing, 0) << "of " << acknowledged.cancels.size();
  EXPECT_GT(acknowledged.deletes.size(), 4u);
  EXPECT_EQ(kept.deletes_missing, 0) << "of " << acknowledged.deletes.size();
  EXPECT_GT(acknowledged.suspends.size(), 10u);
  EXPECT_EQ(kept.suspends_missing, 0) << "of " << acknowledged.suspends.size();
  EXPECT_GT(acknowledged.resumes.size(), 4u);
  EXPECT_EQ(kept.resumes_missing, 0) << "of " << acknowledged.resumes.size();
  EXPECT_GT(acknowledged.marks, 2);
  EXPECT_GT(acknowledged.drains, 0);
  EXPECT_EQ(kept.marks_missing, 0) << "of " << acknowledged.marks;
  EXPECT_GT(acknowledged.reserves, 1);
  EXPECT_EQ(kept.reserves_missing, 0) << "of " << acknowledged.reserves;
  EXPECT_GT(acknowledged.tokens.size(), 3u);
  int64_t joined = 0, revoked = 0;
  for (const auto& [id, token] : acknowledged.tokens) {
    joined += token.joined;
    revoked += token.revoked;
  }
  EXPECT_GT(joined, 0);
  EXPECT_GT(revoked, 0);
  EXPECT_EQ(kept.tokens_missing, 0) << "of " << acknowledged.tokens.size();
  EXPECT_EQ(kept.refused, 0);

  EXPECT_EQ(outcome.short_jobs, 2);
  EXPECT_EQ(outcome.short_jobs_wrong, 0);
  EXPECT_EQ(outcome.short_ranks_again, 0);
  EXPECT_EQ(outcome.epoch, 1);
  EXPECT_EQ(outcome.ranks_lost, 0);
  EXPECT_EQ(outcome.step_fault, "");
  EXPECT_TRUE(outcome.good());
}

}  // namespace
}  // namespace phalanx::e2e
