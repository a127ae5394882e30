// The coordinator's machine under random faults. A failing seed prints and replays:
//   PHALANX_SIM_SEED=N runs that one; PHALANX_SIM_SEEDS=N runs so many.
#include <gtest/gtest.h>

#include "tests/sim/coordinator/from_environment.h"
#include "tests/sim/coordinator/world.h"

namespace phalanx::coordinator {
namespace {

constexpr int kActions = 1500;

TEST(CoordinatorSimulation, RandomFaults_ViolateNothingAndEverythingEnds) {
  const int64_t only = FromEnvironment("PHALANX_SIM_SEED", -1);
  const int64_t first = only >= 0 ? only : 1;
  const int64_t count = only >= 0 ? 1 : FromEnvironment("PHALANX_SIM_SEEDS", 400);
  int64_t crashes = 0, ended = 0, succeeded = 0, ended_early = 0, suspicions = 0;
  int64_t left = 0, marked = 0;
  for (int64_t seed = first; seed < first + count; ++seed) {
    World world(static_cast<uint64_t>(seed));
    for (int i = 0; i < kActions && world.violations().empty(); ++i) world.Act();
    ASSERT_TRUE(world.violations().empty())
        << "seed " << seed << ": " << world.violations().front() << "\n"
        << world.Describe();
    ASSERT_TRUE(world.Heal()) << "seed " << seed << " is stuck:\n" << world.Describe();
    ASSERT_TRUE(world.violations().empty())
        << "seed " << seed << ": " << world.violations().front();
    crashes += world.crashes();
    ended += world.ended();
    succeeded += world.succeeded();
    ended_early += world.ended_early();
    suspicions += world.suspicions();
    left += world.left();
    marked += world.marked();
  }
  if (only < 0) {
    EXPECT_GT(crashes, count) << "the faults are too rare to mean anything";
    EXPECT_GT(ended, 5 * count) << "too few jobs get anywhere";
    EXPECT_GT(succeeded, count) << "too few jobs train to their end";
    EXPECT_GT(ended_early, count / 40) << "too few jobs end early with a checkpoint";
    EXPECT_GT(suspicions, count / 4) << "too few nodes fall silent";
    EXPECT_GT(left, count / 100) << "too few jobs leave with their state saved";
    EXPECT_GT(marked, count) << "too few nodes are cordoned or drained";
  }
}

TEST(CoordinatorSimulation, OneSeed_GivesOneRun) {
  const auto run = [](uint64_t seed) {
    World world(seed);
    for (int i = 0; i < kActions; ++i) world.Act();
    return world.fingerprint();
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

}  // namespace
}  // namespace phalanx::coordinator
