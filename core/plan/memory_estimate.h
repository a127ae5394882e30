// core/plan/memory_estimate.h: what a rank keeps in its device's memory, and in that of its node,
// from shapes alone. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"

namespace phalanx::plan {

// Of one element.
int64_t BytesOf(job::Precision precision);
// Of one element's optimizer state: its master and its two moments.
int64_t StateBytes(job::Precision compute);

// How memory of the host is laid out: a page with a header before each copy of optimizer state, and
// sections (of a part its masters, its first moments, ...) at such boundaries.
inline constexpr int64_t kHostHeaderBytes = 4096, kHostSectionAlignment = 64;

// Bytes that one rank takes of its node's memory, beside a device.
struct HostEstimate {
  // Where some optimizer state has its second home in host memory (CopiesToHost): two buffers, each
  // with the masters and moments of what the rank is the primary home of, of all modules.
  int64_t copies = 0;
  // Where the job has a checkpoint section: what the rank writes, copied once. Masters and moments
  // of its primary homes; of what does not train the weights, in the first replica.
  int64_t snapshot = 0;
  int64_t total() const { return copies + snapshot; }
};

// Bytes on one rank. Parameters in the compute type; those of products in FP8 on GPUs once more in
// one byte, twice where their layers have a backward pass, on CPUs once more in the compute type.
// Gradients, masters and two moments in max(fp32, compute), of what trains alone, the last three
// divided by the replicas and of what the rank leads (copies.h); where replicas have several
// widths, of what it is the home of (shares.h), and with the gradients what its largest bucket
// sends and receives. Optimizer state counts at each home that is a rank, its primary and its
// mirrors. With parameters and gradients count the copies of them that are packed to travel between
// the tensor ranks, or the ends of a tied embedding, of a replica.
//
// Activations, elements a row that a layer keeps, with `in` = mlp, in decoders 2 * mlp (the sharded
// ones divided by the width):
//   recompute none        4 * hidden + 2 * (q + kv) * head_size + in + mlp; frozen layers, which
//                         only pass a gradient on, 2 * hidden + 2 * (q + kv) * head_size + in
//   recompute selective   2 * hidden + (q + 2 * kv) * head_size + in
//   recompute full        hidden
// (under sequence parallelism hidden is divided by the width, but for the inputs of products whose
// weights' gradients are due) times the microbatches that the schedule keeps alive (activations.h;
// chunks of a stage are taken to be alike); once, what a layer gathers and computes again. Between
// its backward passes a part keeps as much as without recomputation, and hidden whole: where the
// two are not one (BackwardIsOne), of one microbatch; where the schedule delays the second one, of
// all that it keeps alive. In FP8 on GPUs, where weights train, that is half, and what layers keep
// before the first one may be more and counts then: without recomputation inputs of products are
// kept in half, but for slices of them, and attention's output as it is, too. In FP8 on CPUs
// attention's output is kept twice. Layers without a backward pass keep nothing and count as one
// layer at work. The ends of an encoder and projectors keep what their backward reads; the head
// adds its logits once, and of the layer before it the outputs of attention that go on are kept
// beside all of them. All rows are taken to be held to labels. Rows: decoders, batch.micro
// sequences of the full context; encoders, their share of the samples of a microbatch with as many
// items as fit the context, at most data.items_max. Messages between parts, of the destination's
// hidden size: those that wait for their pass (activations.h) and one that leaves, of each link and
// direction.
struct MemoryEstimate {
  int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0;
  HostEstimate host;
  // On the device.
  int64_t total() const { return parameters + gradients + optimizer + activations; }
};
// Zero for a rank in no module, and for modules whose family has no known parameters.
MemoryEstimate EstimateMemory(const Plan& plan, Rank rank);
// Of every rank, [world]; ranks that differ only in their replica share the work.
std::vector<MemoryEstimate> EstimateMemory(const Plan& plan);
// Whether any rank takes memory of its node.
bool TakesHostMemory(const Plan& plan);

}  // namespace phalanx::plan
