// The whole cluster under random faults. A failing seed prints and replays:
//   PHALANX_SIM_SEED=N runs that one; PHALANX_SIM_SEEDS=N runs so many.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "tests/sim/cluster/cluster.h"

namespace phalanx::sim {
namespace {

constexpr absl::Duration kFaultyTime = absl::Minutes(10);
constexpr int64_t kSeeds = 1200;  // some 60 s of one core
constexpr size_t kLines = 100;    // of the trace of a seed that fails

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

TEST(ClusterSimulation, RandomFaults_ViolateNothingAndEverythingEnds) {
  const int64_t only = FromEnvironment("PHALANX_SIM_SEED", -1);
  const int64_t first = only >= 0 ? only : 1;
  const int64_t count = only >= 0 ? 1 : FromEnvironment("PHALANX_SIM_SEEDS", kSeeds);
  Planner planner;
  Cluster::Counts total;
  std::map<std::string, int64_t> failures;
  for (int64_t seed = first; seed < first + count; ++seed) {
    Cluster cluster(planner, {.seed = static_cast<uint64_t>(seed)});
    cluster.Run(kFaultyTime);
    cluster.Settle();
    ASSERT_TRUE(cluster.violations().empty()) << cluster.Describe(kLines);
    total += cluster.counts();
    for (const auto& [kind, times] : cluster.failures()) failures[kind] += times;
  }
  std::printf("%s\n", total.ToString().c_str());
  for (const auto& [kind, times] : failures)
    std::printf("  %lld jobs: %s\n", static_cast<long long>(times), kind.c_str());
  if (only >= 0) return;
  EXPECT_GT(total.faults, 5 * count) << "the faults are too rare to mean anything";
  EXPECT_GT(total.succeeded, count) << "too few jobs train to their end";
  EXPECT_GT(total.recovered, count) << "too few epochs go on from others' state";
  EXPECT_GT(total.from_copies, count / 5) << "too few of them from copies in host memory";
  EXPECT_GT(total.lent, count / 10) << "too few devices are lent";
  EXPECT_GT(total.standby, count) << "too few of them have standby communicators";
  EXPECT_GT(total.older, count / 10) << "too few daemons come upon a coordinator that is behind";
}

// A rank whose daemon did not run came to the output folder when the writer of the next epoch was
// dead already (docs/decisions/0051-epochs-of-the-output-folder.md).
TEST(ClusterSimulation, RankOfAnEpochThatIsOver_WritesNoMetrics) {
  Planner planner;
  Cluster cluster(
      planner,
      {.seed = 1319, .reserves = false, .manages = false, .behind = false, .copies = false});
  cluster.Run(kFaultyTime);
  cluster.Settle();
  EXPECT_TRUE(cluster.violations().empty()) << cluster.Describe(kLines);
  EXPECT_GT(cluster.counts().refused, 0) << "another seed is wanted: in this one none comes late";
}

// Found by 4,000 seeds behind those that are run above (docs/simulator.md).
TEST(ClusterSimulation, SeedsThatFoundSomething_ViolateNothing) {
  Planner planner;
  for (const uint64_t seed : {3686u, 3855u, 5437u}) {
    Cluster cluster(planner, {.seed = seed, .copies = false});
    cluster.Run(kFaultyTime);
    cluster.Settle();
    EXPECT_TRUE(cluster.violations().empty()) << cluster.Describe(kLines);
  }
}

// Its ladder has left a job on one rank, which alone has its state; two others come back, whose
// layout has no work for it.
TEST(ClusterSimulation, RanksThatComeBack_LeaveTheOnlyHolderOfStateItsWork) {
  Planner planner;
  Cluster cluster(planner, {.seed = 1929});
  cluster.Run(kFaultyTime);
  cluster.Settle();
  EXPECT_TRUE(cluster.violations().empty()) << cluster.Describe(kLines);
}

// Ranks need nobody but each other for a step, and daemons keep what they say.
TEST(ClusterSimulation, CoordinatorThatIsAwayForTenMinutes_DisturbsNoTraining_AndThenKnowsAll) {
  constexpr absl::Duration kAway = absl::Minutes(10), kStep = absl::Seconds(1);
  Planner planner;
  int64_t followed = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Cluster cluster(planner, {.seed = seed, .nodes = 3, .step_time = kStep, .steps = 2000});
    cluster.RunQuietly(absl::Minutes(5));
    const std::map<JobId, Cluster::Training> before = cluster.training();
    cluster.StopCoordinator();
    cluster.RunQuietly(kAway);
    const std::map<JobId, Cluster::Training> away = cluster.training();
    cluster.StartCoordinator();
    cluster.RunQuietly(absl::Minutes(1));
    const std::map<JobId, Cluster::Training> after = cluster.training();
    for (const auto& [job, begin] : before) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ToString(job));
      EXPECT_GT(away.at(job).decided - begin.decided, kAway / kStep / 2);
      const auto now = after.find(job);
      if (now == after.end()) continue;  // somebody has cancelled it
      ++followed;
      EXPECT_EQ(now->second.epoch, begin.epoch);
      EXPECT_GE(now->second.told, away.at(job).decided);
    }
    cluster.Settle();
    ASSERT_TRUE(cluster.violations().empty()) << cluster.Describe(kLines);
  }
  EXPECT_GT(followed, 4) << "too few jobs train meanwhile to mean anything";
}

// A job of one replica on two nodes: what a rank holds has its second home in its node's daemon.
class OneReplica {
 public:
  static constexpr JobId kJob{1};
  struct Shape {
    std::string parallel, more;
    std::vector<int32_t> devices;
  };

  OneReplica(uint64_t seed, const std::string& recovery)
      : OneReplica(seed, recovery, {"{ranks: 4, tp: 2, pp: 2}", "", {2, 2}}) {}
  OneReplica(uint64_t seed, const std::string& recovery, const Shape& shape)
      : cluster_(planner_, {.seed = seed,
                            .step_time = absl::Seconds(1),
                            .devices = shape.devices,
                            .users = false}) {
    cluster_.RunQuietly(absl::Seconds(10));
    cluster_.Submit(Planner::MakeRequest(
        shape.parallel, "  recovery: {" + recovery + "}\n" + shape.more, "job", 1000));
    // At another moment of a step for each seed.
    cluster_.RunQuietly(absl::Minutes(2) + absl::Milliseconds(130) * static_cast<double>(seed));
  }

  Cluster& cluster() { return cluster_; }
  Cluster::Training training() const {
    const std::map<JobId, Cluster::Training> all = cluster_.training();
    const auto found = all.find(kJob);
    return found == all.end() ? Cluster::Training() : found->second;
  }

 private:
  Planner planner_;
  Cluster cluster_;
};

// The epoch without it finds that state is lost, the next one goes back, and in the last it is
// there again. Where both ranks of a node have left each other, that one begins from copies, too:
// nobody works on that node meanwhile, and so nobody asks its daemon.
TEST(ClusterSimulation, RankThatHasTheOnlyHomeOfState_IsLost_AndItsCopyIsGoneBackTo) {
  int64_t again = 0;
  for (const int64_t every : {1, 3}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(testing::Message() << "a copy every " << every << " steps, seed " << seed);
      OneReplica job(seed, "state_every: " + std::to_string(every));
      const Cluster::Training before = job.training();
      ASSERT_TRUE(job.cluster().KillRank(OneReplica::kJob, static_cast<int32_t>(seed % 4)));
      job.cluster().RunQuietly(absl::Minutes(1));
      const Cluster::Counts counts = job.cluster().counts();
      EXPECT_EQ(job.training().epoch.value, before.epoch.value + 2)
          << job.cluster().Describe(kLines);
      EXPECT_GT(job.training().decided, before.decided);
      EXPECT_GE(counts.from_copies, 1);
      EXPECT_LE(counts.from_copies, 2);
      EXPECT_LE(counts.steps_of_copies, counts.from_copies * (every + 1));
      again += counts.steps_of_copies;
      ASSERT_TRUE(job.cluster().violations().empty()) << job.cluster().Describe(kLines);
    }
  }
  EXPECT_GT(again, 0) << "in another moment some step would be done again";
}

// It has the place of a rank of another node, whose daemon has the copies.
TEST(ClusterSimulation, SpareOnAnotherNode_GoesOnFromTheCopiesThatAreWhereTheRankWas) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    OneReplica job(seed, "ladder: [spare]",
                   {"{ranks: 2, pp: 2}", "  resources: {spares: 1}\n", /*devices=*/{2, 1}});
    const Cluster::Training before = job.training();
    ASSERT_TRUE(job.cluster().KillRank(OneReplica::kJob, static_cast<int32_t>(seed % 2)));
    job.cluster().RunQuietly(absl::Minutes(1));
    EXPECT_GT(job.training().decided, before.decided);
    EXPECT_EQ(job.cluster().counts().from_copies, 1);
    ASSERT_TRUE(job.cluster().violations().empty()) << job.cluster().Describe(kLines);
  }
}

// Copies do not outlive the daemon.
TEST(ClusterSimulation, DaemonThatHasTheOnlyCopies_IsLost_AndTheJobEndsForLackOfState) {
  OneReplica job(1, "ladder: [restart]");
  job.cluster().KillNode(1);
  job.cluster().RunQuietly(absl::Minutes(2));
  const coordinator::FailureCause* cause = job.cluster().coordinator().CauseOf(OneReplica::kJob);
  ASSERT_NE(cause, nullptr) << job.cluster().Describe(kLines);
  EXPECT_EQ(cause->kind, job::FailureKind::kStateLost) << cause->message;
  EXPECT_EQ(job.cluster().counts().from_copies, 0);
  EXPECT_TRUE(job.cluster().violations().empty()) << job.cluster().Describe(kLines);
}

// All ranks of its job come to wait for ever, each for another. The same ones begin again behind
// the last step, long before anybody's own patience is over; no process ends.
TEST(ClusterSimulation, MessageThatIsLost_HoldsNobodyUpForLong) {
  constexpr absl::Duration kStep = absl::Seconds(1);
  Planner planner;
  int64_t lost = 0, went_on = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Cluster cluster(planner, {.seed = seed, .nodes = 3, .step_time = kStep, .steps = 2000});
    cluster.RunQuietly(absl::Minutes(5));
    const std::map<JobId, Cluster::Training> before = cluster.training();
    cluster.LoseMessage();
    // Ten of its slowest steps, what its daemons take to see and to say so, and recovering.
    cluster.RunQuietly(absl::Seconds(45));
    lost += cluster.lost_messages();
    const std::map<JobId, Cluster::Training> after = cluster.training();
    for (const auto& [job, begin] : before) {
      const auto now = after.find(job);
      if (now == after.end() || now->second.epoch == begin.epoch) continue;
      ++went_on;
      EXPECT_EQ(now->second.epoch.value, begin.epoch.value + 1) << "seed " << seed;
      EXPECT_GT(now->second.decided, begin.decided) << "seed " << seed;
    }
    cluster.Settle();
    ASSERT_TRUE(cluster.violations().empty()) << cluster.Describe(kLines);
  }
  EXPECT_GT(lost, 4) << "too few jobs train on several ranks";
  EXPECT_GT(went_on, 2) << "too few of them have a ladder";
}

// The only device of its node has the only state of a stage: what the node's daemon has of it goes
// to whoever takes over elsewhere, and nothing but the steps since is lost.
TEST(ClusterSimulation, CopiesOnANodeThatHasNoWorkAnyMore_AreInheritedByOthers) {
  constexpr const char* kSpare =
      "  recovery: {state_home: host, ladder: [spare], rejoin: manual}\n"
      "  resources: {spares: 1}\n";
  constexpr const char* kNarrower =
      "  recovery: {state_home: host, ladder: [shrink], rejoin: manual}\n";
  Planner planner;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const bool spare = seed % 2 == 0;
    Cluster cluster(
        planner,
        {.seed = seed, .step_time = absl::Seconds(1), .devices = {1, 1, 1}, .users = false});
    cluster.RunQuietly(absl::Seconds(10));
    cluster.Submit(Planner::MakeRequest(spare ? "{ranks: 2, pp: 2}" : "{ranks: 2, tp: 2}",
                                        spare ? kSpare : kNarrower, "job", 2000));
    cluster.RunQuietly(absl::Minutes(2));
    constexpr JobId kJob{1};
    ASSERT_TRUE(cluster.training().contains(kJob)) << "seed " << seed;
    const int64_t before = cluster.training().at(kJob).decided;
    ASSERT_TRUE(cluster.KillRank(kJob, seed % 3 == 0 ? 0 : 1));
    cluster.RunQuietly(absl::Minutes(2));
    ASSERT_TRUE(cluster.training().contains(kJob)) << cluster.Describe(kLines);
    EXPECT_GT(cluster.training().at(kJob).decided, before + 30) << "seed " << seed;
    EXPECT_GE(cluster.counts().from_copies, 1) << "seed " << seed;
    EXPECT_LE(cluster.counts().steps_of_copies, 2) << "seed " << seed;
    EXPECT_TRUE(cluster.violations().empty()) << cluster.Describe(kLines);
  }
}

TEST(ClusterSimulation, CoordinatorThatIsKilledOverAndOver_LosesNoAcknowledgedWriteAndNoRank) {
  constexpr int64_t kCount = 20;
  Planner planner;
  Cluster::Counts total;
  for (uint64_t seed = 1; seed <= kCount; ++seed) {
    Cluster cluster(planner, {.seed = seed, .only_crashes = true});
    cluster.Run(kFaultyTime);
    cluster.Settle();
    ASSERT_TRUE(cluster.violations().empty()) << cluster.Describe(kLines);
    total += cluster.counts();
  }
  EXPECT_GT(total.crashes.all, 30 * kCount) << "the kills are too rare to mean anything";
  EXPECT_GT(total.crashes.writing, total.crashes.all / 2) << "too few of them meet a write";
  EXPECT_GT(total.acknowledged.submits, 10 * kCount);
  EXPECT_GT(total.acknowledged.suspensions, kCount);
  EXPECT_GT(total.acknowledged.deletes, kCount);
  EXPECT_GT(total.acknowledged.marks, kCount);
  EXPECT_GT(total.succeeded, 10 * kCount);
  EXPECT_EQ(total.failed, 0);
  EXPECT_EQ(total.steps_given_up, 0);
}

TEST(ClusterSimulation, OneSeed_GivesOneRun) {
  const auto run = [](uint64_t seed) {
    Planner planner;
    Cluster cluster(planner, {.seed = seed});
    cluster.Run(kFaultyTime);
    cluster.Settle();
    return cluster.hash();
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

}  // namespace
}  // namespace phalanx::sim
