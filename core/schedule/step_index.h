// core/schedule/step_index.h: finds instructions of a step by what they name, across its members.
//
// Internal to execution. Instructions are numbered through all programs, one after the other. Every
// message has a slot at each member of both its ends and every pass one at each of its members, so
// peers and needs are found without search. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/schedule/pipeline.h"
#include "core/schedule/program.h"
#include "core/schedule/wiring.h"

namespace phalanx::schedule {

inline constexpr int64_t kNoInstruction = -1;

// Compute, forward messages, backward messages.
inline constexpr size_t kQueues = 3;
// Of IsPass(op).
constexpr size_t kPassOps = 3;
constexpr size_t PassIndexOf(Op op) {
  return op == Op::kForward ? 0 : op == Op::kBackwardInput ? 1 : 2;
}
constexpr size_t QueueOf(Op op) { return IsForwardMessage(op) ? 1 : IsBackwardMessage(op) ? 2 : 0; }

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

  // What a pass or a send needs from this member itself: the receives of a pass, the pass of a
  // send. Calls need(instruction or kNoInstruction).
  template <typename Need>
  void ForNeeds(int32_t member, const Instruction& instruction, Need need) const {
    if (instruction.op == Op::kForward || instruction.op == Op::kBackwardInput) {
      const bool backward = instruction.op == Op::kBackwardInput;
      const size_t position = PositionOf(member, instruction.module, instruction.chunk);
      const Part& part =
          pipeline_
              .parts[static_cast<size_t>(wiring_.parts_of[static_cast<size_t>(member)][position])];
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
    }
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
  std::vector<size_t> pass_base_;  // of each member, into pass_at_
  std::vector<int64_t> pass_at_;
  std::vector<int64_t> queued_;  // of each member by queue, in program order
  std::vector<std::array<size_t, kQueues + 1>> queue_first_;
};

}  // namespace phalanx::schedule
