// tests/unit/core/plan/must_plan.h: plans of specs that have one, and lists of ranks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/plan/plan.h"
#include "gtest/gtest.h"

namespace phalanx::plan {

// Epoch 1 on one node; where there is none the test fails and the plan is empty.
inline Plan MustPlan(const job::JobSpec& spec, int32_t devices = 64) {
  auto plan = MakePlan(spec, MakeCluster(1, devices), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan();
}

inline RankList Ranks(const std::vector<int32_t>& numbers) {
  RankList ranks;
  for (const int32_t number : numbers) ranks.push_back(Rank{number});
  return ranks;
}
inline std::vector<int32_t> Numbers(const RankList& ranks) {
  std::vector<int32_t> numbers;
  for (Rank rank : ranks) numbers.push_back(rank.value);
  return numbers;
}

}  // namespace phalanx::plan
