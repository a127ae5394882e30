// Properties of the queue over random arrivals. A failing seed prints and replays:
//   PHALANX_SIM_SEED=N runs that one; PHALANX_SIM_SEEDS=N runs so many.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/sim/coordinator/from_environment.h"
#include "tests/sim/coordinator/queue_world.h"

namespace phalanx::coordinator {
namespace {

constexpr int kSeconds = 600;

void RunSeed(int64_t seed, QueueWorld::Faults faults, QueueWorld::Counts& counts) {
  QueueWorld world(static_cast<uint64_t>(seed), faults);
  for (int i = 0; i < kSeconds && world.violations().empty(); ++i) world.Act();
  const bool ends = world.violations().empty() && world.Finish();
  ASSERT_TRUE(world.violations().empty())
      << "seed " << seed << ": " << world.violations().front() << "\n"
      << world.Describe();
  ASSERT_TRUE(ends) << "seed " << seed << ": somebody starves\n" << world.Describe();
  counts += world.counts();
}

TEST(QueueSimulation, RandomArrivals_KeepThePropertiesAndEverybodyEnds) {
  const int64_t only = FromEnvironment("PHALANX_SIM_SEED", -1);
  const int64_t first = only >= 0 ? only : 1;
  const int64_t count = only >= 0 ? 1 : FromEnvironment("PHALANX_SIM_SEEDS", 100);
  QueueWorld::Counts counts;
  for (int64_t seed = first; seed < first + count; ++seed) {
    ASSERT_NO_FATAL_FAILURE(RunSeed(seed, {}, counts));
  }
  if (only >= 0) return;
  EXPECT_GT(counts.ahead, count / 4) << "too few jobs go ahead to mean anything";
  EXPECT_GT(counts.preempted, count / 4) << "too few jobs are preempted";
  EXPECT_GT(counts.went_on, count) << "too few jobs go on where they left";
  EXPECT_GT(counts.drained, count / 2) << "too few nodes are drained";
  EXPECT_GT(counts.kept, count) << "too few jobs are kept by quotas";
  EXPECT_GT(counts.turns, count / 4) << "too few jobs go before older ones of other owners";
  EXPECT_GT(counts.left, 0) << "no job goes ahead of one of its owner, who has a quota";
}

// Small jobs never cease to arrive: that everybody ends once nobody comes any more says nothing of
// a wide job that is passed over as long as somebody comes.
void RunCrowded(QueueWorld::Faults faults) {
  faults.crowded = true;
  const int64_t only = FromEnvironment("PHALANX_SIM_SEED", -1);
  const int64_t first = only >= 0 ? only : 1;
  const int64_t count = only >= 0 ? 1 : FromEnvironment("PHALANX_SIM_SEEDS", 100);
  QueueWorld::Counts counts;
  int64_t arrived = 0;
  double part = 0;  // of the bound, at most
  for (int64_t seed = first; seed < first + count; ++seed) {
    QueueWorld world(static_cast<uint64_t>(seed), faults);
    for (int round = 0; round < 3; ++round) {
      const QueueWorld::Wait wait = world.WaitOfTheWidest();
      ASSERT_TRUE(world.violations().empty())
          << "seed " << seed << ": " << world.violations().front() << "\n"
          << world.Describe();
      arrived += wait.arrived;
      part = std::max(part, absl::FDivDuration(wait.waited, wait.bound));
    }
    ASSERT_TRUE(world.Finish()) << "seed " << seed << "\n" << world.Describe();
    counts += world.counts();
  }
  std::printf("%lld small jobs arrived, %lld went ahead; waits of up to %.2f of the bound\n",
              static_cast<long long>(arrived), static_cast<long long>(counts.ahead), part);
  if (only >= 0) return;
  EXPECT_GT(arrived, count) << "too few arrive meanwhile to mean anything";
  EXPECT_GT(counts.ahead, count / 4) << "too few of them go ahead to mean anything";
}

TEST(QueueSimulation, SmallJobsWithoutEnd_DoNotKeepTheWidestFromStartingInTime) { RunCrowded({}); }

// Fair shares and quotas decide who is next, and the widest is in time all the same.
TEST(QueueSimulation, SmallJobsOfSeveralOwnersWithoutEnd_DoNotKeepTheWidestFromStarting) {
  RunCrowded({.owners = true});
}

void RunMixed(QueueWorld::Faults faults) {
  faults.mixed = true;
  const int64_t only = FromEnvironment("PHALANX_SIM_SEED", -1);
  const int64_t first = only >= 0 ? only : 1;
  const int64_t count = only >= 0 ? 1 : FromEnvironment("PHALANX_SIM_SEEDS", 100);
  QueueWorld::Counts counts;
  for (int64_t seed = first; seed < first + count; ++seed)
    ASSERT_NO_FATAL_FAILURE(RunSeed(seed, faults, counts));
  std::printf("apart %lld ahead %lld preempted %lld kept %lld turns %lld went on %lld\n",
              static_cast<long long>(counts.apart), static_cast<long long>(counts.ahead),
              static_cast<long long>(counts.preempted), static_cast<long long>(counts.kept),
              static_cast<long long>(counts.turns), static_cast<long long>(counts.went_on));
  if (only >= 0) return;
  EXPECT_GT(counts.apart, count) << "too few jobs go before others elsewhere to mean anything";
  EXPECT_GT(counts.ahead, count / 10) << "too few jobs go ahead on nodes of others";
  EXPECT_GT(counts.preempted, count / 10) << "too few jobs are preempted";
  EXPECT_GT(counts.kept, count / 2) << "too few jobs are kept by quotas";
  EXPECT_GT(counts.went_on, count / 4) << "too few jobs go on where they left";
}

// Nodes of two kinds with labels that overlap, and jobs that ask for some of them.
TEST(QueueSimulation, NodesOfSeveralKinds_KeepThePropertiesAndNobodyWaitsForWhatIsNotTheirs) {
  RunMixed({});
}
TEST(QueueSimulation, NodesOfSeveralKindsUnderACoordinatorThatDies_KeepTheProperties) {
  RunMixed({.crashes = true});
}
TEST(QueueSimulation, NodesOfSeveralKindsThatAreLost_KeepTheProperties) {
  RunMixed({.losses = true});
}

// One look at the queue starts the second job of an owner and then one of another owner. The check
// once took the share that the first owner has by the former for the one at the turn of a job of
// theirs before it, and the order of the queue for another.
TEST(QueueSimulation, OwnerOfWhomSeveralStartAtOnce_HasTheShareOfEachTurn) {
  QueueWorld::Counts counts;
  RunSeed(293, {}, counts);
  EXPECT_GT(counts.turns, 0) << "another seed is wanted: in this one owners take no turns";
}

// The coordinator dies while nodes register for the first time. Two nodes once had one session
// then, and the machine heard nothing of the one, whose devices the check counted on.
TEST(QueueSimulation, CoordinatorThatDiesWhileNodesRegister_HearsThemAll) {
  QueueWorld::Counts counts;
  RunSeed(1188, {.crashes = true}, counts);
  EXPECT_GT(counts.crashes, 0);
}

// Random arrivals with a coordinator that dies now and then, mostly while it writes.
TEST(QueueSimulation, CoordinatorThatDies_KeepsThePropertiesAndWhatItAnswered) {
  const int64_t only = FromEnvironment("PHALANX_SIM_SEED", -1);
  const int64_t first = only >= 0 ? only : 1;
  const int64_t count = only >= 0 ? 1 : FromEnvironment("PHALANX_SIM_SEEDS", 100);
  QueueWorld::Counts counts;
  for (int64_t seed = first; seed < first + count; ++seed) {
    ASSERT_NO_FATAL_FAILURE(RunSeed(seed, {.crashes = true}, counts));
  }
  std::printf("%lld crashes lost %lld records; %lld answers of jobs and %lld of nodes looked for\n",
              static_cast<long long>(counts.crashes), static_cast<long long>(counts.lost),
              static_cast<long long>(counts.job_answers),
              static_cast<long long>(counts.node_answers));
  if (only >= 0) return;
  EXPECT_GT(counts.crashes, 5 * count) << "too few to mean anything";
  EXPECT_GT(counts.lost, count) << "too few of them meet a write";
  EXPECT_GT(counts.job_answers, 10 * counts.crashes);
  EXPECT_GT(counts.node_answers, counts.crashes);
  EXPECT_GT(counts.ahead, count / 4) << "too few jobs go ahead to mean anything";
  EXPECT_GT(counts.went_on, count / 2) << "too few jobs go on where they left";
  EXPECT_GT(counts.turns, count / 10) << "too few jobs go before older ones of other owners";
}

// Random arrivals where nodes die or are cut off, for a moment or for long, and come back.
TEST(QueueSimulation, NodesThatAreLost_KeepThePropertiesAndEverybodyEndsOrFailsOfIt) {
  const int64_t only = FromEnvironment("PHALANX_SIM_SEED", -1);
  const int64_t first = only >= 0 ? only : 1;
  const int64_t count = only >= 0 ? 1 : FromEnvironment("PHALANX_SIM_SEEDS", 100);
  QueueWorld::Counts counts;
  for (int64_t seed = first; seed < first + count; ++seed) {
    ASSERT_NO_FATAL_FAILURE(RunSeed(seed, {.losses = true}, counts));
  }
  std::printf(
      "%lld nodes died, %lld were cut off; of %lld jobs that were hit %lld recovered, %lld went "
      "back, %lld were queued again, %lld failed; %lld steps again; ahead %lld preempted %lld\n",
      static_cast<long long>(counts.died), static_cast<long long>(counts.cut),
      static_cast<long long>(counts.hit), static_cast<long long>(counts.recovered),
      static_cast<long long>(counts.went_back), static_cast<long long>(counts.queued),
      static_cast<long long>(counts.failed), static_cast<long long>(counts.again),
      static_cast<long long>(counts.ahead), static_cast<long long>(counts.preempted));
  if (only >= 0) return;
  EXPECT_GT(counts.died, count) << "too few to mean anything";
  EXPECT_GT(counts.cut, count) << "too few to mean anything";
  EXPECT_GT(counts.hit, count) << "too few of them meet a job";
  EXPECT_GT(counts.recovered, count / 10) << "too few jobs go on with what they had";
  EXPECT_GT(counts.went_back, count / 10) << "too few jobs go back to a checkpoint";
  EXPECT_GT(counts.queued, count / 10) << "too few jobs wait for other devices";
  EXPECT_GT(counts.ahead, count / 4) << "too few jobs go ahead to mean anything";
  EXPECT_GT(counts.preempted, count / 4) << "too few jobs are preempted";
  EXPECT_GT(counts.kept, count) << "too few jobs are kept by quotas";
  EXPECT_GT(counts.turns, count / 10) << "too few jobs go before older ones of other owners";
}

// The coordinator dies while a checkpoint is being published and the one that the ranks have ended
// with waits for its turn; what is stored is that they have succeeded. A step was once done again.
TEST(QueueSimulation, CoordinatorThatDiesBeforeTheTurnOfTheLastCheckpoint_LosesNoStep) {
  QueueWorld::Counts counts;
  RunSeed(131, {.crashes = true, .losses = true}, counts);
  EXPECT_GT(counts.crashes, 0);
}

// Both at once.
TEST(QueueSimulation, CoordinatorThatDiesWhileNodesAreLost_KeepsTheProperties) {
  const int64_t only = FromEnvironment("PHALANX_SIM_SEED", -1);
  const int64_t first = only >= 0 ? only : 1;
  const int64_t count = only >= 0 ? 1 : FromEnvironment("PHALANX_SIM_SEEDS", 100);
  QueueWorld::Counts counts;
  for (int64_t seed = first; seed < first + count; ++seed) {
    ASSERT_NO_FATAL_FAILURE(RunSeed(seed, {.crashes = true, .losses = true}, counts));
  }
  if (only >= 0) return;
  EXPECT_GT(counts.crashes, 5 * count) << "too few to mean anything";
  EXPECT_GT(counts.hit, count) << "too few losses meet a job";
  EXPECT_GT(counts.ahead, count / 4) << "too few jobs go ahead to mean anything";
}

}  // namespace
}  // namespace phalanx::coordinator
