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

// Of one element: its master and its two moments.
int64_t StateBytes(job::Precision compute);

// Layers of each of `parts` pipeline parts, balanced by cost (the head and the embedding weigh in),
// each part with at least one layer.
std::vector<int32_t> BalanceLayers(const job::Module& module, int32_t parts);

// FLOPs of the whole model for one step over `tokens` language positions (sequences of equal
// length, batch.global of them), and images and sounds of full size, each in every encoder that
// reads its kind.
double StepFlops(const Plan& plan, double tokens, double images, double sounds);

// Bytes on one rank. Parameters in the compute type; gradients, masters and two moments in
// max(fp32, compute), of what trains alone, the last three divided by the replicas and of what the
// rank leads (copies.h); where replicas have several widths, of what it is the home of (shares.h),
// and with the gradients what its largest bucket sends and receives. Optimizer state counts once
// for each home that is a rank (its own and mirrors). With parameters and gradients count the
// copies of them that are packed to travel between the tensor ranks, or the ends of a tied
// embedding, of a replica.
//
// Activations, elements a row that a layer keeps, with `in` = mlp, in decoders 2 * mlp (the sharded
// ones divided by the width):
//   recompute none        4 * hidden + 2 * (q + kv) * head_size + in + mlp; frozen layers, which
//                         only pass a gradient on, 2 * hidden + 2 * (q + kv) * head_size + in
//   recompute selective   2 * hidden + (q + 2 * kv) * head_size + in
//   recompute full        hidden
// (under sequence parallelism hidden is divided by the width, but for the inputs of products whose
// weights' gradients are due)
// times the microbatches that the schedule keeps alive (activations.h; chunks of a stage are taken
// to be alike); with recomputation, what one layer computes again, once. Layers without a backward
// pass keep nothing and count as one layer at work. The ends of an encoder and projectors keep what
// their backward reads; the head adds its logits once. Rows: decoders, batch.micro sequences of the
// full context; encoders, their share of the samples of a microbatch with as many items as fit the
// context, at most data.items_max. Messages between parts, of the destination's hidden size: those
// that wait for their pass (activations.h) and one that leaves, of each link and direction.
struct MemoryEstimate {
  int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0;
  int64_t total() const { return parameters + gradients + optimizer + activations; }
};
// Zero for a rank in no module, and for modules whose family has no known parameters.
MemoryEstimate EstimateMemory(const Plan& plan, Rank rank);
// Of every rank, [world]; ranks that differ only in their replica share the work.
std::vector<MemoryEstimate> EstimateMemory(const Plan& plan);

}  // namespace phalanx::plan
