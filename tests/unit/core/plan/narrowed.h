// tests/unit/core/plan/narrowed.h: plans with a stage whose replicas have given widths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {

// The replicas of one stage of module 0 keep the first so many of their ranks.
inline Plan WithWidths(const job::JobSpec& spec, int32_t pp, const std::vector<int32_t>& widths) {
  const Plan healthy = MustPlan(spec, spec.World());
  Layout layout = healthy.layout;
  for (size_t i = 0; i < widths.size(); ++i) {
    const auto dp = static_cast<int32_t>(i);
    RankList ranks = healthy.TensorGroup(0, dp, pp);
    ranks.resize(static_cast<size_t>(widths[i]));
    layout.modules[0].changes.push_back({.dp = dp, .pp = pp, .ranks = std::move(ranks)});
  }
  absl::StatusOr<Plan> plan = Expand(spec, std::move(layout));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan();
}

// A small one in which every rule about units shows: three stages of one layer each; in the middle
// one replica 0 has three ranks and replica 1 two. 6 query heads of size 4, 2 KV heads, hidden size
// 16, 5 MLP blocks of 4 columns, so a unit of attention, of keys and values, of the MLP and of what
// is replicated has 128, 128, 192 and 32 elements.
inline Plan Narrowed() {
  job::Architecture architecture = support::Llama(
      {.hidden_size = 16, .layers = 3, .heads = 6, .kv_heads = 2, .mlp_size = 20, .block = 4});
  architecture.head_size = 4;
  return WithWidths(
      support::AJob().Module("language", architecture, {.tp = 3, .dp = 2, .pp = 3}).Batch(4, 1), 1,
      {3, 2});
}

}  // namespace phalanx::plan
