// core/plan/cost.h: floating-point operations and memory, from shapes alone. Pure.
//
// FLOPs: 2 a multiply-add; causal attention counts half; head included; forward and executed
// backward; no recomputation.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"

namespace phalanx::plan {

struct PassCost {
  double forward = 0, backward_input = 0, backward_weight = 0;  // FLOPs
};
// Cost of one layer, and of the ends of a module, for `rows` token rows in sequences of `length`.
PassCost LayerCost(const job::Module& module, double rows, double length);
PassCost EmbeddingCost(const job::Module& module, double rows);
PassCost HeadCost(const job::Module& module, double rows);

// Layers of each of `parts` pipeline parts, balanced by cost (the head and the embedding weigh in),
// each part with at least one layer.
std::vector<int32_t> BalanceLayers(const job::Module& module, int32_t parts);

// FLOPs of the whole model for one step over `tokens` language positions and `items` images.
double StepFlops(const Plan& plan, double tokens, double items);

// Bytes on one rank.
struct MemoryEstimate {
  int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0;
  int64_t total() const { return parameters + gradients + optimizer + activations; }
};
MemoryEstimate EstimateMemory(const Plan& plan, Rank rank);

}  // namespace phalanx::plan
