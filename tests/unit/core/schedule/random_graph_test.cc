#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/base/prng.h"
#include "core/schedule/checker.h"
#include "core/schedule/program.h"
#include "core/schedule/simulator.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

constexpr uint64_t kSeed = 20240817;

// PHALANX_RANDOM_GRAPHS raises the number of graphs for a one-time run.
uint64_t GraphCount() {
  const char* count = std::getenv("PHALANX_RANDOM_GRAPHS");
  return count == nullptr ? 300 : std::strtoull(count, nullptr, 10);
}

TEST(RandomGraphTest, BuildStep_AnyGraph_PassesTheChecker) {
  for (uint64_t i = 0; i < GraphCount(); ++i) {
    Prng prng(Hash64(kSeed, 1, i));
    const plan::Plan plan = PlanOf(RandomGraph(prng, /*shared_ranks=*/true));
    const auto report = CheckStep(plan, Programs(plan));
    ASSERT_TRUE(report.ok()) << "graph " << i << ": " << report.status();
  }
}

TEST(RandomGraphTest, BuildEvaluationOf_AnyGraph_DoesNotDeadlock) {
  for (uint64_t i = 0; i < GraphCount(); ++i) {
    Prng prng(Hash64(kSeed, 2, i));
    const plan::Plan plan = PlanOf(RandomGraph(prng, /*shared_ranks=*/true));
    std::vector<Program> programs;
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      programs.push_back(BuildEvaluationOf(plan, Rank{rank}, 7));
    }
    const absl::Status status = CheckEvaluation(plan, programs, 7);
    ASSERT_TRUE(status.ok()) << "graph " << i << ": " << status;
  }
}

// Costs that the builder was not told of: only the order of messages depends on its own.
TEST(RandomGraphTest, Simulate_UnequalGraphs_StayNearTheBound) {
  std::vector<double> ratios;
  for (uint64_t i = 0; i < GraphCount(); ++i) {
    Prng prng(Hash64(kSeed, 3, i));
    const plan::Plan plan = PlanOf(RandomGraph(prng, /*shared_ranks=*/false));
    const Simulation simulation = Simulate(plan, Programs(plan), RandomCosts(plan, prng));
    ratios.push_back((1 - simulation.lower_bound) / (1 - simulation.bubble));
    EXPECT_GE(ratios.back(), 1 - 1e-9) << "graph " << i;
  }
  std::sort(ratios.begin(), ratios.end());
  const auto near = static_cast<double>(
      std::count_if(ratios.begin(), ratios.end(), [](double r) { return r <= 1.05; }));
  std::printf("step over bound, %zu graphs: within 5 %% %.1f %%, p99 %.3f, worst %.3f\n",
              ratios.size(), 100 * near / static_cast<double>(ratios.size()),
              ratios[ratios.size() * 99 / 100], ratios.back());
  EXPECT_GE(near, 0.9 * static_cast<double>(ratios.size()));
  EXPECT_LE(ratios.back(), 1.3);
}

}  // namespace
}  // namespace phalanx::schedule
