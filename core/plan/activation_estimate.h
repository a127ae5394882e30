// core/plan/activation_estimate.h: what a rank keeps of one part between its passes, from shapes
// alone.
//
// Elements a row that a layer keeps, with `in` = mlp, in decoders 2 * mlp (the sharded ones divided
// by the width):
//   recompute none        4 * hidden + 2 * (q + kv) * head_size + in + mlp; frozen layers, which
//                         only pass a gradient on, 2 * hidden + 2 * (q + kv) * head_size + in
//   recompute selective   2 * hidden + 2 * (q + kv) * head_size + in
//   recompute full        hidden
// and of a tensor rank whose KV heads do not all serve as many query heads 2 * q * head_size more,
// but under `full`: keys and values are there once more, for each of these
// (under sequence parallelism hidden is divided by the width, but for the inputs of products whose
// weights' gradients are due) times the microbatches that the schedule keeps alive (activations.h);
// once, what a layer gathers and computes again. Between its backward passes a part keeps as much
// as without recomputation, and hidden whole: where the two are not one (BackwardIsOne), of one
// microbatch; where the schedule delays the second one, of all that it keeps alive. In FP8 on GPUs,
// where weights train, that is half, and what layers keep before the first one may be more and
// counts then: without recomputation inputs of products are kept in half, but for slices of them,
// and attention's output as it is, too. In FP8 on CPUs attention's output is kept twice. Layers
// without a backward pass keep nothing and count as one layer at work. The ends of an encoder and
// projectors keep what their backward reads.
//
// The head keeps its logits, which its backward pass turns into their gradient in place, with the
// rows that it reads and those that the norm before it reads: of each microbatch whose input pass,
// or where weight passes are delayed whose weight pass, is still to come; in modules of several
// chunks, of each that its part may keep. Of the layer before it the outputs of attention that go
// on are kept beside all of them.
//
// Rows: decoders, batch.micro sequences of the full context, or as many as they are dealt
// (SampleShape); encoders, their share of the samples of a microbatch. Messages between parts, of
// the destination's hidden size: those that wait for their pass (activations.h) and one that
// leaves, of each link and direction.
//
// On GPUs the first part of an encoder has pixels or sounds of two microbatches there: those that
// its passes read, and those that are copied ahead of them. Their memory serves nothing else.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "core/plan/plan.h"

namespace phalanx::plan {

// What is run, as far as memory depends on it. By default samples need as much as the job lets
// them.
struct SampleShape {
  // Images or sounds of each, at least 0; nullopt: as many as fit the context, at most
  // data.items_max.
  std::optional<int32_t> items;
  double labelled_share = 1;  // of the language module's rows, those held to labels; [0, 1]
  // Whether each replica has as many samples of a microbatch as it is dealt (samples.h), of which a
  // narrow one is dealt fewer; else batch.micro.
  bool as_dealt = false;
  std::optional<int64_t> microbatches;  // at least 1; nullopt: those of a step
};

// How the layers of a module keep operands that they round.
enum class Rounded : uint8_t {
  kNothing,
  kInFp8,          // in one byte
  kInComputeType,  // on a CPU, beside what is rounded
};
Rounded RoundedOf(const Plan& plan, const job::Module& module);

// Bytes of one element.
int64_t BytesOf(job::Precision precision);

// Bytes of one part at one place, whose family has known parameters.
struct PartActivations {
  int64_t kept = 0;         // of each microbatch, until its last pass
  int64_t head = 0;         // of each microbatch, until its input pass, or as `head_waits` says
  bool head_waits = false;  // until its weight pass
  int64_t once = 0;         // while a backward pass runs, or the forward pass where there is none
  int64_t messages = 0;     // that wait, or leave
  int64_t items = 0;        // pixels or sounds that are read, or are ahead
};
// Samples of one microbatch, at most, on each replica of a module, as it is dealt (samples.h).
std::vector<int64_t> DealtToReplicas(const Plan& plan, int32_t module);
PartActivations ActivationsOfPart(const Plan& plan, const Place& place, int32_t chunk,
                                  const SampleShape& samples);
// All of the module at a place, of as many microbatches as it may keep at any time.
int64_t ActivationBytes(const Plan& plan, const Place& place, const SampleShape& samples);
// Of tensor ranks of one replica those with equal counts keep as many bytes.
std::vector<int64_t> UnitCountsOf(const Plan& plan, const Place& place);

}  // namespace phalanx::plan
