// core/plan/memory_estimate.h: what a rank keeps in its device's memory, and in that of its node,
// from shapes alone. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/activation_estimate.h"
#include "core/plan/part_sizes.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// Of one element's optimizer state: its master and its two moments. At a primary home weights that
// are not narrower than the master are the master (worker/train/state_block.h).
int64_t StateBytes(job::Precision compute);
int64_t PrimaryStateBytes(job::Precision compute);

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
// mirrors; in fp32 and fp64 a primary has no master beside its weights. With parameters and
// gradients count the copies of them that are packed to travel between the tensor ranks, or the
// ends of a tied embedding, of a replica.
//
// Activations: activation_estimate.h.
struct MemoryEstimate {
  int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0;
  HostEstimate host;
  // On the device.
  int64_t total() const { return parameters + gradients + optimizer + activations; }
};
// Zero for a rank in no module, and for modules whose family has no known parameters.
// `samples`: by default those that need most.
MemoryEstimate EstimateMemory(const Plan& plan, Rank rank, const SampleShape& samples = {});
// Of every rank, [world]; ranks that differ only in their replica share the work.
std::vector<MemoryEstimate> EstimateMemory(const Plan& plan, const SampleShape& samples = {});
// The same for who asks of many plans of one job.
std::vector<MemoryEstimate> EstimateMemory(const Plan& plan, const SampleShape& samples,
                                           PartSizes& sizes);
// The same without activations.
std::vector<MemoryEstimate> EstimateState(const Plan& plan, PartSizes& sizes);
// Of every rank of a plan that is whole, its activations of one module alone, which of all that is
// computed again depend on what that module does. The rest of an estimate depends neither on
// samples nor on the micro batch nor on what is computed again.
std::vector<int64_t> EstimateActivations(const Plan& plan, int32_t module,
                                         const SampleShape& samples = {});
// Whether any rank takes memory of its node.
bool TakesHostMemory(const Plan& plan);

}  // namespace phalanx::plan
