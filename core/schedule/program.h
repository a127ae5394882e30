// core/schedule/program.h: what each rank does in one step, as data.
//
// A builder turns a plan into a program per rank; the checker proves the programs together, the
// simulator times them, the rank executes its own (worker/train/executor.h). A step never depends on
// call order between ranks: every message is named by (link, direction, microbatch) and every
// communicator executes its operations in the order of their tickets.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"

namespace phalanx::schedule {

enum class Op : uint8_t {
  kReceiveForward,   // link, microbatch: activations arrive
  kForward,          // module, chunk, microbatch
  kSendForward,      // link, microbatch
  kReceiveBackward,  // link, microbatch: gradient of what was sent
  kBackwardInput,    // module, chunk, microbatch: gradient of the inputs
  kBackwardWeight,   // module, chunk, microbatch: gradient of the parameters, accumulated
  kSendBackward,     // link, microbatch
  kReduce,           // module, chunk: gradients summed over replicas; each rank keeps its shard
  kRecord,           // the rank's record of the step joins everyone's
  kDecide,           // every record checked: commit or not, norm, token count
  kOptimize,         // module, chunk: predicated on the decision
  kGather,           // module, chunk: parameters gathered from their shards
};

struct Instruction {
  Op op = Op::kForward;
  int32_t module = -1;
  int32_t chunk = 0;
  int32_t link = -1;
  int32_t microbatch = -1;
  // Messages and collectives: place in the one total order; 0 otherwise.
  int64_t ticket = 0;
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

// Instructions of one rank, in order.
using Program = std::vector<Instruction>;

// Programs of all ranks of the plan, [world]; idle ranks have only kRecord and kDecide.
// Errors: Unimplemented for a schedule that no builder makes yet, naming it.
absl::StatusOr<std::vector<Program>> BuildStep(const plan::Plan& plan);
// The program of one rank, without building the others.
absl::StatusOr<Program> BuildStepOf(const plan::Plan& plan, Rank rank);
// Forward passes only, `microbatches` of them, for validation: no record, no decision.
Program BuildEvaluationOf(const plan::Plan& plan, Rank rank, int64_t microbatches);

}  // namespace phalanx::schedule
