// core/schedule/program.h: what each rank does in one step, as data.
//
// A builder turns a plan into a program per rank; the checker proves the programs together, the
// simulator times them, the rank executes its own (worker/train/executor.h). A step never depends
// on call order between ranks: every message is named by (link, direction, microbatch) and every
// communicator executes its operations in the order of their tickets.
//
// How a rank executes a program:
//   - Two message communicators: kSendForward and kReceiveForward run on one, kSendBackward and
//     kReceiveBackward on the other, each in program order, which is ticket order.
//   - A receive may stand some instructions before the pass that needs it: any later, and a message
//     behind it in the same communicator would be held up. It waits for no pass of this rank: if it
//     did, ranks could wait for one another in a circle. A pass waits for its own receives.
//   - A send waits for its own pass alone, and holds up no pass. It may stand some passes
//     behind its own: a message stands where its last producer has finished.
//   - A host that waits before a pass, so as not to run too far ahead of its device, goes on with
//     the messages behind it once the device stands still: sends of passes that it has enqueued,
//     and one receive at a time until that has come (docs/decisions/0011).
//   - A send and a receive with the same ticket stand next to each other: the rank is on both ends
//     of the link, and the two are one exchange (some of it with itself).
//   - A message may have no peers in a microbatch (plan::LinkMessages); the instruction is there
//     all the same and does nothing, so programs do not depend on data.
//   - The part of a pass is its (module, chunk). A rank may hold consecutive parts and then sends
//     to itself.
//   - kBackwardWeight stands anywhere behind the kBackwardInput of its microbatch, and until then
//     keeps what it needs of the activation and of the gradient. It never stands before it. Where
//     plan::BackwardIsOne, kBackwardInput does both and kBackwardWeight finds nothing left to do.
//   - kReduce and kGather run on the data communicator of their module, kRecord on the control
//     communicator. kReduce stands where the part's last weight pass has run on all its ranks, and
//     on a device holds up no pass behind it: only kRecord waits for it. kGather holds up what uses
//     the parameters next: kSpread, and the part's first pass of the next step. Copies inside a
//     tensor group (plan/copies.h) are folded at the beginning of kReduce and spread at the end of
//     kGather, on the tensor communicator.
//   - kFold and kSpread are of a tied embedding whose ends are two parts that train: every rank
//     with one of the ends has both, once for the module. They run on the control communicator, or
//     inside a rank that has both ends. All weight passes of both ends stand before kFold, and
//     kFold before the kReduce of both, which sums in place; kSpread stands behind all gathers of
//     the two parts.
//
// What trains (plan::Trains) decides what is there. kBackwardInput exists where anything at or
// before the part trains (on a part with weights but nothing before it, it computes what the weight
// pass needs), kBackwardWeight, kReduce, kOptimize and kGather where the part has weights that
// train, kFold and kSpread where both ends do. A link carries gradients only if the part at its
// source has a backward pass. Every rank has kRecord and kDecide.
//
// A pass of a part of tensor width above 1 has collectives among its tensor group. All members run
// such passes in the same order, also on ranks that modules share.
//
// Schedules, over any module graph; s is the stage of a part in the graph of S stages, M the number
// of microbatches. How many activations each keeps: plan/activations.h. kBackwardWeight follows its
// kBackwardInput, the input gradient being sent between the two, where nothing else is said.
//   1f1b            min(S - s - 1, M) forwards, then one forward and one backward in turn, then the
//                   backwards that are left.
//   zero_bubble_h1  the same order of forwards and backwards; weight passes run where the rank
//                   would wait, or where it may keep no more activations.
//   interleaved     several chunks a rank: microbatches in rounds of at least as many as the module
//                   has stages, a round through all chunks; forwards until the first backward can
//                   run, then one forward and one backward in turn.
//   zero_bubble_v   two chunks a rank in a V (plan::ChunkPath), weight passes as under H1.
//   three_phase     encoders on the ranks of the language module forward everything first, then the
//                   others run 1f1b (interleaved with several chunks), then those encoders run all
//                   backwards. With encoder chunks only the first chunk is forwarded before; the
//                   others run where ranks would wait, at the latest when they are needed, and
//                   backwards of a chunk where ranks wait once all its gradients are there.
// After the last pass of a rank: what is left of kFold and kReduce by ticket, kRecord, kDecide,
// kOptimize and kGather of each part, kSpread.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
  kFold,             // module: gradients of a tied head join those of the embedding
  kReduce,           // module, chunk: gradients summed over replicas; each rank keeps its share
  kRecord,           // the rank's record of the step joins everyone's
  kDecide,           // every record checked: commit or not, norm, token count
  kOptimize,         // module, chunk: predicated on the decision
  kGather,           // module, chunk: parameters gathered from their shares, if not there
  kSpread,           // module: a tied head takes the embedding's parameters
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

absl::string_view OpName(Op op);  // "ReceiveForward", ...
// "Forward(module 0, chunk 0, microbatch 3)", "SendForward(link 2, microbatch 3)", "Record".
std::string ToString(const Instruction& instruction);

constexpr bool IsForwardMessage(Op op) {
  return op == Op::kReceiveForward || op == Op::kSendForward;
}
constexpr bool IsBackwardMessage(Op op) {
  return op == Op::kReceiveBackward || op == Op::kSendBackward;
}
constexpr bool IsMessage(Op op) { return IsForwardMessage(op) || IsBackwardMessage(op); }
constexpr bool IsSend(Op op) { return op == Op::kSendForward || op == Op::kSendBackward; }
constexpr bool IsReceive(Op op) { return IsMessage(op) && !IsSend(op); }
constexpr bool IsCollective(Op op) {
  return op == Op::kFold || op == Op::kReduce || op == Op::kRecord || op == Op::kGather ||
         op == Op::kSpread;
}
// Between the ends of a tied embedding.
constexpr bool IsTie(Op op) { return op == Op::kFold || op == Op::kSpread; }
constexpr bool IsPass(Op op) {
  return op == Op::kForward || op == Op::kBackwardInput || op == Op::kBackwardWeight;
}

// Once a step for each part that has weights which train.
constexpr bool IsUpdate(Op op) {
  return op == Op::kReduce || op == Op::kOptimize || op == Op::kGather;
}

// Instructions of one rank, in order.
using Program = std::vector<Instruction>;

// Programs of all ranks of the plan, [world]; idle ranks have only kRecord and kDecide. Every plan
// has programs: the status is always ok. `auto` that nobody has resolved (choice.h) counts as 1f1b.
absl::StatusOr<std::vector<Program>> BuildStep(const plan::Plan& plan);
// The program of one rank, without building the others.
absl::StatusOr<Program> BuildStepOf(const plan::Plan& plan, Rank rank);
// Forward passes only, `microbatches` of them, for validation: no record, no decision; empty for an
// idle rank.
Program BuildEvaluationOf(const plan::Plan& plan, Rank rank, int64_t microbatches);

}  // namespace phalanx::schedule
