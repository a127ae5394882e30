// core/schedule/work_model.h: what the passes of a plan take on a kind of device.
//
// A layer is its products, its attention, its passes over memory and, of several tensor ranks, what
// they exchange: as much as two all-reduces of its rows each way, none of it hidden. Products for
// gradients of weights are written by a step's first microbatch and added by those behind it, so a
// pass takes their mean. Rows of a decoder are full contexts; an encoder gets so many items a
// sample, and where a microbatch does not divide by its lanes, the lane with most of it counts.
// Recomputation is part of the backward pass: `full` runs the layer again, `selective` its norms
// and its activation. Between nodes, updates and messages go at the rate of the network where the
// profile has one.
//
// Of the language module's rows batch.labelled_share is held to labels. Its head works on those
// alone and, where no edge leaves it, so does what follows attention in its last layer. Under
// precision.linear fp8 the four products of a decoder layer go at the rate of FP8, and what enters
// them is rounded: a pass that writes both forms and, where the kernel that made it has not found
// its largest magnitude, one that does; of what is computed again each form in a pass of its own;
// weights once a step, in its first forward pass. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "core/job/job_spec.h"
#include "core/schedule/profile.h"

namespace phalanx::schedule {

// Seconds of one microbatch on one tensor rank, on average over a step, and what of them is
// recomputation and exchange between tensor ranks.
struct PassSeconds {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double recompute = 0, tensor = 0;
  double written = 0;  // what weights' products take less where they are written; 0 of a part
  double total() const { return forward + backward_input + backward_weight; }
  PassSeconds& operator+=(const PassSeconds& other);
  PassSeconds operator*(double factor) const;
};

// What a pipeline part has of its module.
struct PartShape {
  int32_t module = 0;
  int32_t layers = 0;
  bool first = false, last = false;  // of the module's parts
  int32_t width = 1;                 // tensor ranks
  bool sequence = false;             // Parallel::sequence
  double rows = 0;                   // of a microbatch
  job::Recompute recompute = job::Recompute::kNone;
  int64_t microbatches = 1;  // of a step
};

// Samples of a microbatch over all lanes of a module, on average, of a step of so many
// microbatches: those of the batch, of the language module as many in each replica as in the
// fullest.
double SamplesOfMicrobatch(const job::JobSpec& spec, int32_t module, int32_t language_replicas,
                           int64_t microbatches);

// Not thread-safe: it keeps what it has worked out.
class WorkModel {
 public:
  // `items`: images or sounds of a sample, for each encoder that reads their kind. What the
  // modules' layouts are in `spec` does not matter. Keeps references to both.
  // Every module must be of a known family.
  WorkModel(const job::JobSpec& spec, const DeviceProfile& profile, int32_t items);

  PassSeconds OfPart(const PartShape& part);
  // Of the weights of so many layers of a module, on one of `width` tensor ranks, once a step: 0
  // where they do not enter products in FP8.
  double RoundingSeconds(int32_t module, int32_t layers, int32_t width) const;
  // Of all layers and both ends, on one rank.
  PassSeconds OfModule(PartShape part);

  // Rows of a microbatch on one lane of a module that has `lanes`, of `samples` samples over all.
  double RowsOfLane(int32_t module, double samples, int32_t lanes) const;

 private:
  // Of one layer, without recomputation, and what that adds.
  struct LayerSeconds {
    PassSeconds pass;
    double selective = 0, full = 0;
  };
  struct Sizes;

  // `rows_on`: of those, how many go on behind the attention.
  const LayerSeconds& OfLayer(const PartShape& part, double rows_on);
  LayerSeconds LayerOf(const PartShape& part, double rows_on) const;
  // Whether the largest magnitudes of what enters it forward and backward are known: in FP8 it is
  // rounded. nullopt: a product in the compute type.
  struct Rounded {
    bool input, gradient;
  };
  PassSeconds Products(double rows, double inputs, double outputs,
                       std::optional<Rounded> rounded = std::nullopt) const;
  // Of the last layer of a module.
  double RowsOn(const PartShape& part) const;
  double LabelledRows(const PartShape& part) const;
  bool InFp8(int32_t module) const;
  PassSeconds OfEmbedding(const PartShape& part) const;
  PassSeconds OfHead(const PartShape& part) const;
  PassSeconds OfProjectors(const PartShape& part) const;
  const job::Architecture& ArchitectureOf(int32_t module) const;

  const job::JobSpec& spec_;
  const DeviceProfile& profile_;
  const int32_t items_;
  const double bytes_;                // of one element
  std::vector<bool> trained_before_;  // of each module: something that feeds it trains
  std::map<std::tuple<int32_t, int32_t, bool, double, double>, LayerSeconds> layers_;
};

}  // namespace phalanx::schedule
