// core/plan/cost.h: floating-point operations, and bytes that an update moves, from shapes alone.
// Pure.
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
  double total() const { return forward + backward_input + backward_weight; }
};
// Cost of one layer, and of the ends of a module, for `rows` token rows in sequences of `length`.
PassCost LayerCost(const job::Module& module, double rows, double length);
PassCost AttentionCost(const job::Module& module, double rows, double length);  // of a layer's
PassCost MlpCost(const job::Module& module, double rows);                       // of a layer's
PassCost EmbeddingCost(const job::Module& module, double rows);
PassCost HeadCost(const job::Module& module, double rows);
// The projector of an edge, for `rows` rows of its source.
PassCost ProjectorCost(const job::JobSpec& spec, const job::Edge& edge, double rows);
// Everything that one of `width` tensor ranks of a pipeline part computes, with the largest share
// of units of each kind that one of them has: its layers, ends and projectors. Passes that training
// leaves out (ModulePlan::TrainsOf) cost nothing: no weight gradients of what is frozen, no input
// gradients that nobody asks for.
PassCost PartCost(const Plan& plan, const PartId& part, int32_t width, double rows, double length);

// Bytes that one rank of a pipeline part moves once a step.
struct UpdateBytes {
  double reduced = 0;   // gradients, over its links: reduce-scatter of a ring
  double updated = 0;   // of its memory, by the optimizer: gradient, master, moments, weights
  double gathered = 0;  // updated weights, over its links
};
// Of the tensor rank that has most. Zero where nothing trains, and for modules whose family has no
// known parameters.
UpdateBytes UpdateCost(const Plan& plan, const PartId& part);

// Layers of each of `parts` pipeline parts, balanced by cost (the head and the embedding weigh in),
// each part with at least one layer.
std::vector<int32_t> BalanceLayers(const job::Module& module, int32_t parts);

// FLOPs of the whole model for one step over `tokens` language positions (sequences of equal
// length, batch.global of them), and images and sounds of full size, each in every encoder that
// reads its kind.
double StepFlops(const Plan& plan, double tokens, double images, double sounds);

}  // namespace phalanx::plan
