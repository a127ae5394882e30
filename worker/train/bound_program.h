// worker/train/bound_program.h: a rank's program with everything resolved that does not change from
// step to step: parts, samples of lanes, peers, slices, and what is reduced, among whom and for
// whom.
//
// Which samples of a microbatch a rank works on and what it exchanges about them follow from the
// plan alone; only rows and lengths are those of the samples themselves, and are asked of Batches
// where they are needed.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/plan/copies.h"
#include "core/plan/plan.h"
#include "core/plan/reduction.h"
#include "core/plan/samples.h"
#include "core/schedule/program.h"

namespace phalanx::train {

// A message with an end at this rank.
struct BoundMessage {
  static constexpr int32_t kSelf = -1;  // both ends are here
  int32_t peer = kSelf;                 // of the message communicator
  int64_t place = 0;                    // in the link's list: both ends have the same
  plan::LinkMessage of;                 // as it goes forward
};

struct BoundInstruction {
  schedule::Op op = schedule::Op::kForward;
  int32_t module = -1;
  int32_t part = -1;  // of those of the rank: whose pass or update, or the end of the link here
  int32_t microbatch = -1;
  int32_t link = -1;
  int32_t link_index = -1;  // of a message: the link among those that leave or enter the part here
  plan::UnitRange lane;     // samples of the part in the microbatch
  bool last_use = false;    // nothing behind it names the part in this microbatch
  int32_t exchange = 1;     // instructions from here on that are one exchange
  int32_t behind = -1;  // of a message: where the pass is that must be enqueued before; -1: none
  int32_t sends = 0;    // of a pass: instructions that send what it makes, with messages here
  // Of a backward pass: its part's last one, so that sums over replicas may begin with the
  // gradients that are complete, before kReduce.
  bool completes = false;
  std::vector<BoundMessage> messages;
};

struct BoundProgram {
  std::vector<BoundInstruction> instructions;
  // What kReduce and kGather act on: of each part of the rank. Empty without such instructions.
  std::vector<plan::Reduction> reductions;
  // What kFold and kSpread act on, by module: copies with an end at this rank.
  std::map<int32_t, std::vector<plan::Copy>> ties;
};

// Where parts and peers of a rank are found.
struct BindingTables {
  std::map<std::pair<int32_t, int32_t>, int32_t> part_of;  // module, chunk
  std::vector<plan::Place> places;                         // of each part
  std::map<Rank, int32_t> forward_peers, backward_peers;   // ranks of the message communicators
};

// `microbatches`: those that the program names.
BoundProgram Bind(const plan::Plan& plan, Rank rank, const schedule::Program& program,
                  const BindingTables& tables,
                  const std::vector<plan::MicrobatchSamples>& microbatches);

}  // namespace phalanx::train
