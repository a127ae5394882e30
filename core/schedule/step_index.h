// core/schedule/step_index.h: finds instructions of a step by what they name, across its members.
//
// Internal to execution. Instructions are numbered through all programs, one after the other. Every
// message has a slot at each member of both its ends and every pass one at each of its members, so
// peers and needs are found without search. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/schedule/pipeline.h"
#include "core/schedule/program.h"
#include "core/schedule/wiring.h"

namespace phalanx::schedule {

inline constexpr int64_t kNoInstruction = -1;

// The streams of a rank.
enum Queue : size_t {
  kCompute,  // and the control communicator, for which it always waits
  kForwardMessages,
  kBackwardMessages,
  kReductions,  // and gathers
  kQueues
};
// Of IsPass(op).
constexpr size_t kPassOps = 3;
constexpr size_t PassIndexOf(Op op) {
  return op == Op::kForward ? 0 : op == Op::kBackwardInput ? 1 : 2;
}
constexpr Queue QueueOf(Op op) {
  if (IsForwardMessage(op)) return kForwardMessages;
  if (IsBackwardMessage(op)) return kBackwardMessages;
  return op == Op::kReduce || op == Op::kGather ? kReductions : kCompute;
}
// Of IsUpdate(op).
constexpr size_t kUpdateOps = 3;
constexpr size_t UpdateIndexOf(Op op) {
  return op == Op::kReduce ? 0 : op == Op::kOptimize ? 1 : 2;
}
// Those of them that run in a data group.
constexpr size_t kGroupOps = 2;
constexpr size_t GroupIndexOf(Op op) { return op == Op::kReduce ? 0 : 1; }

// Immutable; safe to read from any thread. Programs, pipeline and wiring must outlive it.
class StepIndex {
 public:
  StepIndex(const Pipeline& pipeline, const Wiring& wiring,
            const std::vector<const Program*>& programs);

  size_t size() const { return instructions_.size(); }
  const std::vector<size_t>& first() const { return first_; }  // of each member, and the end
  const Instruction& At(int64_t id) const { return *instructions_[static_cast<size_t>(id)]; }

  // The instruction at a place of a member's queue, or kNoInstruction past its end.
  int64_t Queued(int32_t member, size_t queue, size_t place) const {
    const auto& first = queue_first_[static_cast<size_t>(member)];
    const size_t at = first[queue] + place;
    return at < first[queue + 1] ? queued_[at] : kNoInstruction;
  }

  // Position of a part among those of the member; their number if it has no such part.
  size_t PositionOf(int32_t member, int32_t module, int32_t chunk) const;
  int32_t PeerCount(int32_t member, const Instruction& message) const;

  // Calls visit(member, instruction or kNoInstruction) for the peers of a message.
  template <typename Visit>
  void ForPeers(int32_t member, const Instruction& message, Visit visit) const {
    const Seat& seat = SeatOf(member, message);
    const PeerLists& lists = PeersOf(seat, message.microbatch);
    const auto& ends = seat.at_to ? wiring_.from : wiring_.to;
    const std::vector<int32_t>& members = ends[static_cast<size_t>(seat.link)].members;
    const auto i = static_cast<size_t>(seat.position);
    for (int32_t k = lists.offsets[i]; k < lists.offsets[i + 1]; ++k) {
      const int32_t position = lists.peers[static_cast<size_t>(k)];
      const Seat other = {seat.link, !seat.at_to, position};
      visit(members[static_cast<size_t>(position)],
            message_at_[MessageSlot(other, IsBackwardMessage(message.op), message.microbatch)]);
    }
  }

  // What an instruction needs from this member itself and its queue does not order: the receives of
  // a pass, the pass of a send, the last weight pass
  // and the fold of a reduction, all reductions of the record, the optimizer of a gather, the
  // gathers of a spread. Calls need(instruction or kNoInstruction).
  template <typename Need>
  void ForNeeds(int32_t member, const Instruction& instruction, Need need) const {
    if (instruction.op == Op::kForward || instruction.op == Op::kBackwardInput) {
      const bool backward = instruction.op == Op::kBackwardInput;
      const size_t position = PositionOf(member, instruction.module, instruction.chunk);
      const Part& part = PartAt(member, position);
      for (int32_t link : backward ? part.links_out : part.links_in) {
        need(message_at_[MessageSlot(SeatAt(member, link, !backward), backward,
                                     instruction.microbatch)]);
      }
    } else if (IsSend(instruction.op)) {
      const LinkParts& link = pipeline_.links[static_cast<size_t>(instruction.link)];
      const bool backward = instruction.op == Op::kSendBackward;
      const Part& part = pipeline_.parts[static_cast<size_t>(backward ? link.to : link.from)];
      need(PassAt(member, PositionOf(member, part.module, part.chunk),
                  backward ? Op::kBackwardInput : Op::kForward, instruction.microbatch));
    } else if (instruction.op == Op::kReduce) {
      const size_t position = PositionOf(member, instruction.module, instruction.chunk);
      need(last_weights_[part_base_[static_cast<size_t>(member)] + position]);
      if (PartAt(member, position).tied >= 0) need(folds_.at({member, instruction.module}));
    } else if (instruction.op == Op::kGather) {
      need(UpdateAt(member, PositionOf(member, instruction.module, instruction.chunk),
                    Op::kOptimize));
    } else if (instruction.op == Op::kRecord || instruction.op == Op::kSpread) {
      ForUpdates(member, instruction, need);
    }
  }

  // The last weight pass of the part at a position of the member, or kNoInstruction.
  int64_t LastWeightsAt(int32_t member, size_t position) const {
    return last_weights_[part_base_[static_cast<size_t>(member)] + position];
  }
  // A pass of the part at a position of the member, or kNoInstruction.
  int64_t PassAt(int32_t member, size_t position, Op op, int32_t microbatch) const {
    return pass_at_[PassSlot(member, position, op, microbatch)];
  }

 private:
  // A member's seat at one end of a link.
  struct Seat {
    int32_t link = 0;
    bool at_to = false;
    int32_t position = 0;
  };

  void NumberInstructions();
  void LayOutSlots();
  void FillQueues(size_t member);
  void Enter(int32_t member, const Instruction& instruction, int64_t id);

  size_t MessageSlot(const Seat& seat, bool backward, int32_t microbatch) const {
    return message_base_[2 * static_cast<size_t>(seat.link) + (seat.at_to ? 1 : 0)] +
           (2 * static_cast<size_t>(seat.position) + (backward ? 1 : 0)) * microbatches_ +
           static_cast<size_t>(microbatch);
  }
  // As ForNeeds: reductions of all parts before kRecord, gathers of the tied ones before kSpread.
  template <typename Need>
  void ForUpdates(int32_t member, const Instruction& instruction, Need need) const {
    for (size_t i = 0; i < wiring_.parts_of[static_cast<size_t>(member)].size(); ++i) {
      const Part& part = PartAt(member, i);
      if (!part.trains.weights) continue;
      if (instruction.op == Op::kRecord) {
        need(UpdateAt(member, i, Op::kReduce));
      } else if (part.module == instruction.module && part.tied >= 0) {
        need(UpdateAt(member, i, Op::kGather));
      }
    }
  }
  const Part& PartAt(int32_t member, size_t position) const {
    const int32_t part = wiring_.parts_of[static_cast<size_t>(member)][position];
    return pipeline_.parts[static_cast<size_t>(part)];
  }
  // kReduce, kOptimize or kGather of the part at a position of the member, or kNoInstruction.
  int64_t UpdateAt(int32_t member, size_t position, Op op) const {
    return update_at_[UpdateSlot(member, position, op)];
  }
  size_t UpdateSlot(int32_t member, size_t position, Op op) const {
    return kUpdateOps * (part_base_[static_cast<size_t>(member)] + position) + UpdateIndexOf(op);
  }
  size_t PassSlot(int32_t member, size_t position, Op op, int32_t microbatch) const {
    return pass_base_[static_cast<size_t>(member)] +
           (kPassOps * position + PassIndexOf(op)) * microbatches_ +
           static_cast<size_t>(microbatch);
  }
  // The end of the link at which this member sends or receives that message.
  const Seat& SeatOf(int32_t member, const Instruction& message) const {
    const bool at_to = message.op == Op::kReceiveForward || message.op == Op::kSendBackward;
    return SeatAt(member, message.link, at_to);
  }
  const Seat& SeatAt(int32_t member, int32_t link, bool at_to) const;
  const PeerLists& PeersOf(const Seat& seat, int32_t microbatch) const {
    const auto& ends = seat.at_to ? wiring_.to : wiring_.from;
    return ends[static_cast<size_t>(seat.link)]
        .of_pattern[static_cast<size_t>(wiring_.PatternOf(microbatch))];
  }

  const Pipeline& pipeline_;
  const Wiring& wiring_;
  const std::vector<const Program*>& programs_;
  const size_t microbatches_;

  std::vector<size_t> first_;
  std::vector<const Instruction*> instructions_;
  std::vector<std::vector<Seat>> seats_;  // of each member
  std::vector<size_t> message_base_;      // of each end of each link, into message_at_
  std::vector<int64_t> message_at_;
  std::vector<size_t> part_base_;  // of each member: parts of those before it
  std::vector<int64_t> update_at_;
  std::vector<int64_t> last_weights_;                     // of each part of each member
  std::map<std::pair<int32_t, int32_t>, int64_t> folds_;  // by member, module
  std::vector<size_t> pass_base_;                         // of each member, into pass_at_
  std::vector<int64_t> pass_at_;
  std::vector<int64_t> queued_;  // of each member by queue, in program order
  std::vector<std::array<size_t, kQueues + 1>> queue_first_;
};

}  // namespace phalanx::schedule
