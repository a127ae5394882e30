// Properties of the queue over random arrivals. A failing seed prints and replays:
//   PHALANX_SIM_SEED=N runs that one; PHALANX_SIM_SEEDS=N runs so many.
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "tests/sim/coordinator/queue_world.h"

namespace phalanx::coordinator {
namespace {

constexpr int kSeconds = 600;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

TEST(QueueSimulation, RandomArrivals_KeepThePropertiesAndEverybodyEnds) {
  const int64_t only = FromEnvironment("PHALANX_SIM_SEED", -1);
  const int64_t first = only >= 0 ? only : 1;
  const int64_t count = only >= 0 ? 1 : FromEnvironment("PHALANX_SIM_SEEDS", 100);
  QueueWorld::Counts counts;
  for (int64_t seed = first; seed < first + count; ++seed) {
    QueueWorld world(static_cast<uint64_t>(seed));
    for (int i = 0; i < kSeconds && world.violations().empty(); ++i) world.Act();
    const bool ends = world.violations().empty() && world.Finish();
    ASSERT_TRUE(world.violations().empty())
        << "seed " << seed << ": " << world.violations().front() << "\n"
        << world.Describe();
    ASSERT_TRUE(ends) << "seed " << seed << ": somebody starves\n" << world.Describe();
    counts.ahead += world.counts().ahead;
    counts.preempted += world.counts().preempted;
    counts.went_on += world.counts().went_on;
    counts.drained += world.counts().drained;
    counts.kept += world.counts().kept;
    counts.turns += world.counts().turns;
    counts.left += world.counts().left;
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

}  // namespace
}  // namespace phalanx::coordinator
