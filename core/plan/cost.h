// core/plan/cost.h: floating-point operations, and bytes that an update moves, from shapes alone.
// Pure.
//
// FLOPs: 2 a multiply-add; causal attention counts half; head included; forward and executed
// backward; no recomputation.
//
// Some rows of the language module are held to labels. Its head works on those alone and, where no
// edge leaves the module, so does what follows attention in its last layer. FLOPs *of all rows*
// count both for every row, as others count theirs; FLOPs *as executed* for the labelled ones.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"

namespace phalanx::plan {

// Whether the labelled rows of a module alone go on behind the attention of its last layer.
bool LabelledAloneLeave(const job::JobSpec& spec, int32_t module);

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
// gradients that nobody asks for. Of the rows, this share is held to labels; without it as executed
// with what the job says of its data, batch.labelled_share.
PassCost PartCost(const Plan& plan, const PartId& part, int32_t width, double rows, double length,
                  double labelled_share);
PassCost PartCost(const Plan& plan, const PartId& part, int32_t width, double rows, double length);

// What buckets that passes are through with together (bucket_order.h) have of an update.
struct UpdateShare {
  double of_all = 1;            // of its bytes
  int32_t complete_behind = 0;  // as in BucketOrder
  int32_t needed_before = 0;    // likewise
};
// Bytes that one rank of a pipeline part moves once a step.
struct UpdateBytes {
  // Gradients, over its links: reduce-scatter of a ring, or all-reduce where all replicas get sums.
  double reduced = 0;
  double normed = 0;    // of its memory: sums of its share, for the norm of gradients
  double updated = 0;   // of its memory, by the optimizer: gradient, master, moments, weights
  double gathered = 0;  // updated weights, over its links
  // Beside passes that do not wait for them: sums that mirrors are given, over its links, and
  // masters and moments that it follows as a mirror, of its memory, where it writes no weights.
  double mirror_sums = 0, mirror_updates = 0;
  // In storage order, where replicas sum and gather by collectives: they have one width. Together
  // all of it. Where copies of a tensor group are folded first and spread behind, it is one.
  std::vector<UpdateShare> shares = {};
};
// Of the tensor rank that has most. Zero where nothing trains, and for modules whose family has no
// known parameters. Gradients are not cleared: their first product is written.
UpdateBytes UpdateCost(const Plan& plan, const PartId& part);

// Layers of each of `parts` pipeline parts of a module, balanced by cost as executed (the head and
// the embedding weigh in), each part with at least one layer.
std::vector<int32_t> BalanceLayers(const job::JobSpec& spec, int32_t module, int32_t parts);

// What a step works on: language positions (sequences of equal length, batch.global of them), those
// of them that are held to labels, and images and sounds of full size, each in every encoder that
// reads its kind.
struct StepRows {
  double tokens = 0, labelled = 0, images = 0, sounds = 0;
};
// FLOPs of the whole model for one step.
struct StepFlops {
  double all_rows = 0, executed = 0;
};
StepFlops FlopsOf(const Plan& plan, const StepRows& rows);

}  // namespace phalanx::plan
