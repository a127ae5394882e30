// core/schedule/execution_state.h: where an execution is: what has run, and who waits where.
//
// Execute (execution.h) changes it, StallsOf (stalls.h) reads what is left. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "core/schedule/device_queues.h"
#include "core/schedule/execution.h"
#include "core/schedule/step_index.h"

namespace phalanx::schedule {

// Of a message; of a collective and a pass of a crew only `arrived`.
struct Rendezvous {
  bool posted = false;  // at the head of its queue, with all that it needs
  int32_t senders = 0;  // of a receive: how many of its sends are posted
  int32_t missing = 0;  // peers, less those that came; without the former until it comes itself
  bool arrived = false;
  double ready = 0;  // when the last of those who are there was ready
};

// Of a reduction or a gather of a group, and of the record.
struct Group {
  int32_t missing = 0;
  double ready = 0;
  std::vector<std::pair<int32_t, int64_t>> arrived;  // member, instruction
};

// Not thread-safe.
struct ExecutionState {
  ExecutionState(ExecutionModel model, const Pipeline& pipeline, const Wiring& wiring,
                 const std::vector<const Program*>& programs)
      : model(model),
        wiring(wiring),
        programs(programs),
        index(pipeline, wiring, programs),
        queues(index, model == ExecutionModel::kPaced),
        positions(programs.size()),
        done(index.size(), 0),
        rendezvous(index.size()) {
    execution.first = index.first();
    execution.begin.assign(index.size(), 0);
    execution.end.assign(index.size(), 0);
  }
  ExecutionState(const ExecutionState&) = delete;  // `queues` refers to `index`
  ExecutionState& operator=(const ExecutionState&) = delete;

  const Instruction& At(int64_t id) const { return index.At(id); }
  bool Done(int64_t id) const { return done[static_cast<size_t>(id)] != 0; }
  size_t PositionOf(int32_t member, const Instruction& instruction) const {
    return index.PositionOf(member, instruction.module, instruction.chunk);
  }
  int64_t Head(int32_t member, size_t queue, size_t ahead = 0) const {
    return queues.Head(member, queue, ahead);
  }

  // When all that it needs from this member is there, or a negative time.
  double NeedsReady(int32_t member, const Instruction& instruction) const {
    double ready = 0;
    index.ForNeeds(member, instruction, [&](int64_t id) {
      if (id == kNoInstruction || !Done(id)) {
        ready = -1;
      } else if (ready >= 0) {
        ready = std::max(ready, execution.end[static_cast<size_t>(id)]);
      }
    });
    return ready;
  }

  // In `groups`.
  size_t GroupOf(int32_t member, const Instruction& instruction) const {
    if (instruction.op == Op::kRecord) return groups.size() - 1;
    const size_t position = PositionOf(member, instruction);
    const auto group = static_cast<size_t>(wiring.groups_of[static_cast<size_t>(member)][position]);
    return kGroupOps * group + GroupIndexOf(instruction.op);
  }

  // The crew of a pass, or -1.
  int32_t CrewOf(int32_t member, const Instruction& instruction) const {
    if (!IsPass(instruction.op) || wiring.crews.empty()) return -1;
    return wiring.crews_of[static_cast<size_t>(member)][PositionOf(member, instruction)];
  }

  // Constant after construction.
  const ExecutionModel model;
  const Wiring& wiring;
  const std::vector<const Program*>& programs;
  const StepIndex index;

  DeviceQueues queues;            // but for kBlocking
  std::vector<size_t> positions;  // kBlocking: in the program of each member
  std::vector<char> done;
  std::vector<Rendezvous> rendezvous;
  std::map<std::tuple<int32_t, int32_t, Op>, double> at_ties;  // when who came to what
  std::vector<Group> groups;  // reduce and gather of each group, then the record
  Execution execution;
};

// Whether two members are at the ends of the instruction's embedding.
inline bool IsOf(const Wiring::Tie& tie, const Instruction& instruction) {
  return tie.module == instruction.module;
}

}  // namespace phalanx::schedule
