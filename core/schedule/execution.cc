#include "core/schedule/execution.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

namespace phalanx::schedule {
namespace {

constexpr int64_t kNone = -1;
constexpr size_t kQueues = 3;  // compute, forward messages, backward messages

size_t QueueOf(Op op) { return IsForwardMessage(op) ? 1 : IsBackwardMessage(op) ? 2 : 0; }

// A member's seat at one end of a link.
struct Seat {
  int32_t link = 0;
  bool at_to = false;
  int32_t position = 0;
};

struct Rendezvous {
  int32_t missing = 0;  // peers that are not there yet
  bool arrived = false;
  double ready = 0;     // when the last of those who are there was ready
};

struct Group {
  int32_t missing = 0;
  double ready = 0;
  std::vector<std::pair<int32_t, int64_t>> arrived;  // member, instruction
};

class Engine {
 public:
  Engine(const Pipeline& pipeline, const Wiring& wiring,
         const std::vector<const Program*>& programs, const std::vector<PartSeconds>& seconds,
         double message_seconds)
      : pipeline_(pipeline),
        wiring_(wiring),
        programs_(programs),
        seconds_(seconds),
        message_seconds_(message_seconds),
        microbatches_(wiring.microbatches) {
    NumberInstructions();
    LayOutSlots();
    IndexInstructions();
    MakeGroups();
  }

  Execution Run(ExecutionModel model) {
    model_ = model;
    for (int32_t member = wiring_.members - 1; member >= 0; --member) Wake(member);
    while (!awake_.empty()) {
      const int32_t member = awake_.back();
      awake_.pop_back();
      is_awake_[static_cast<size_t>(member)] = false;
      if (model_ == ExecutionModel::kStreams) {
        AdvanceStreams(member);
      } else {
        AdvanceBlocking(member);
      }
    }
    ReportStalls();
    return std::move(execution_);
  }

 private:
  const Instruction& At(int64_t id) const { return *instructions_[static_cast<size_t>(id)]; }
  bool Done(int64_t id) const { return done_[static_cast<size_t>(id)]; }

  void NumberInstructions() {
    size_t count = 0;
    for (const Program* program : programs_) {
      execution_.first.push_back(count);
      count += program->size();
    }
    execution_.first.push_back(count);
    instructions_.reserve(count);
    for (const Program* program : programs_) {
      for (const Instruction& instruction : *program) instructions_.push_back(&instruction);
    }
    execution_.begin.assign(count, 0);
    execution_.end.assign(count, 0);
    done_.assign(count, false);
    rendezvous_.resize(count);
    is_awake_.assign(programs_.size(), false);
    heads_.assign(programs_.size(), {});
    ends_.assign(programs_.size(), {});
  }

  // A slot for every message at every member, and for every pass.
  void LayOutSlots() {
    seats_.resize(programs_.size());
    size_t slots = 0;
    const auto lay_out = [&](int32_t link, bool at_to, const LinkEnd& end) {
      slot_base_.push_back(slots);
      for (size_t i = 0; i < end.members.size(); ++i) {
        seats_[static_cast<size_t>(end.members[i])].push_back(
            {link, at_to, static_cast<int32_t>(i)});
      }
      slots += 2 * end.members.size() * static_cast<size_t>(microbatches_);
    };
    for (size_t link = 0; link < wiring_.from.size(); ++link) {
      lay_out(static_cast<int32_t>(link), false, wiring_.from[link]);
      lay_out(static_cast<int32_t>(link), true, wiring_.to[link]);
    }
    message_at_.assign(slots, kNone);
    slots = 0;
    for (const std::vector<int32_t>& parts : wiring_.parts_of) {
      pass_base_.push_back(slots);
      slots += 2 * parts.size() * static_cast<size_t>(microbatches_);
    }
    pass_at_.assign(slots, kNone);
  }

  size_t MessageSlot(const Seat& seat, bool backward, int32_t microbatch) const {
    return slot_base_[2 * static_cast<size_t>(seat.link) + (seat.at_to ? 1 : 0)] +
           (2 * static_cast<size_t>(seat.position) + (backward ? 1 : 0)) *
               static_cast<size_t>(microbatches_) +
           static_cast<size_t>(microbatch);
  }

  // Position of a part among those of the member.
  size_t PositionOf(int32_t member, int32_t module, int32_t chunk) const {
    const std::vector<int32_t>& parts = wiring_.parts_of[static_cast<size_t>(member)];
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part& part = pipeline_.parts[static_cast<size_t>(parts[i])];
      if (part.module == module && part.chunk == chunk) return i;
    }
    return parts.size();
  }

  int64_t& PassAt(int32_t member, size_t position, bool backward, int32_t microbatch) {
    return pass_at_[pass_base_[static_cast<size_t>(member)] +
                    (2 * position + (backward ? 1 : 0)) * static_cast<size_t>(microbatches_) +
                    static_cast<size_t>(microbatch)];
  }

  // The end of the link at which this member sends or receives that message.
  const Seat& SeatOf(int32_t member, const Instruction& message) const {
    const bool at_to = message.op == Op::kReceiveForward || message.op == Op::kSendBackward;
    return SeatAt(member, message.link, at_to);
  }
  const Seat& SeatAt(int32_t member, int32_t link, bool at_to) const {
    const std::vector<Seat>& seats = seats_[static_cast<size_t>(member)];
    for (const Seat& seat : seats) {
      if (seat.link == link && seat.at_to == at_to) return seat;
    }
    return seats.front();  // excluded by the precondition
  }

  void IndexInstructions() {
    queued_.resize(instructions_.size());
    queue_first_.resize(programs_.size());
    for (size_t member = 0; member < programs_.size(); ++member) {
      std::array<size_t, kQueues> counts = {};
      for (const Instruction& instruction : *programs_[member]) ++counts[QueueOf(instruction.op)];
      size_t first = execution_.first[member];
      for (size_t q = 0; q < kQueues; ++q) {
        queue_first_[member][q] = first;
        first += counts[q];
      }
      queue_first_[member][kQueues] = first;
      std::array<size_t, kQueues> filled = {};
      auto id = static_cast<int64_t>(execution_.first[member]);
      for (const Instruction& instruction : *programs_[member]) {
        const size_t q = QueueOf(instruction.op);
        queued_[queue_first_[member][q] + filled[q]++] = id;
        Index(static_cast<int32_t>(member), instruction, id++);
      }
    }
  }

  void Index(int32_t member, const Instruction& instruction, int64_t id) {
    if (IsMessage(instruction.op)) {
      const bool backward = IsBackwardMessage(instruction.op);
      const Seat& seat = SeatOf(member, instruction);
      message_at_[MessageSlot(seat, backward, instruction.microbatch)] = id;
      const PeerLists& lists = PeersOf(seat, instruction.microbatch);
      const auto i = static_cast<size_t>(seat.position);
      rendezvous_[static_cast<size_t>(id)].missing = lists.offsets[i + 1] - lists.offsets[i];
    } else if (instruction.op == Op::kForward || instruction.op == Op::kBackwardInput) {
      const size_t position = PositionOf(member, instruction.module, instruction.chunk);
      PassAt(member, position, instruction.op == Op::kBackwardInput, instruction.microbatch) = id;
    }
  }

  void MakeGroups() {
    const size_t groups = wiring_.group_sizes.size();
    groups_.resize(2 * groups + 1);
    for (size_t i = 0; i < groups; ++i) {
      groups_[2 * i].missing = groups_[2 * i + 1].missing = wiring_.group_sizes[i];
    }
    groups_.back().missing = wiring_.members;
  }

  const PeerLists& PeersOf(const Seat& seat, int32_t microbatch) const {
    const auto& ends = seat.at_to ? wiring_.to : wiring_.from;
    return ends[static_cast<size_t>(seat.link)]
        .of_pattern[static_cast<size_t>(wiring_.PatternOf(microbatch))];
  }

  // Calls visit(member, instruction or kNone) for the peers of a message.
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

  // What a pass or a send needs from this member itself: calls need(instruction or kNone).
  template <typename Need>
  void ForNeeds(int32_t member, const Instruction& instruction, Need need) {
    if (instruction.op == Op::kForward || instruction.op == Op::kBackwardInput) {
      const bool backward = instruction.op == Op::kBackwardInput;
      const size_t position = PositionOf(member, instruction.module, instruction.chunk);
      const Part& part = pipeline_.parts[static_cast<size_t>(
          wiring_.parts_of[static_cast<size_t>(member)][position])];
      for (int32_t link : backward ? part.links_out : part.links_in) {
        need(message_at_[MessageSlot(SeatAt(member, link, !backward), backward,
                                     instruction.microbatch)]);
      }
    } else if (IsSend(instruction.op)) {
      const LinkParts& link = pipeline_.links[static_cast<size_t>(instruction.link)];
      const bool backward = instruction.op == Op::kSendBackward;
      const Part& part = pipeline_.parts[static_cast<size_t>(backward ? link.to : link.from)];
      need(PassAt(member, PositionOf(member, part.module, part.chunk), backward,
                  instruction.microbatch));
    }
  }

  // When all that it needs from this member is there, or a negative time.
  double NeedsReady(int32_t member, const Instruction& instruction) {
    double ready = 0;
    ForNeeds(member, instruction, [&](int64_t id) {
      if (id == kNone || !Done(id)) {
        ready = -1;
      } else if (ready >= 0) {
        ready = std::max(ready, execution_.end[static_cast<size_t>(id)]);
      }
    });
    return ready;
  }

  void Wake(int32_t member) {
    if (is_awake_[static_cast<size_t>(member)]) return;
    is_awake_[static_cast<size_t>(member)] = true;
    awake_.push_back(member);
  }

  void Finish(int64_t id, double begin, double end) {
    execution_.begin[static_cast<size_t>(id)] = begin;
    execution_.end[static_cast<size_t>(id)] = end;
    done_[static_cast<size_t>(id)] = true;
  }

  double Duration(int32_t member, const Instruction& instruction) const {
    if (!IsPass(instruction.op)) return 0;
    const size_t position = PositionOf(member, instruction.module, instruction.chunk);
    const auto part =
        static_cast<size_t>(wiring_.parts_of[static_cast<size_t>(member)][position]);
    const PartSeconds& seconds = seconds_[part];
    return instruction.op == Op::kForward         ? seconds.forward
           : instruction.op == Op::kBackwardInput ? seconds.backward_input
                                                  : seconds.backward_weight;
  }

  Group& GroupOf(int32_t member, const Instruction& instruction) {
    if (instruction.op == Op::kRecord) return groups_.back();
    const size_t position = PositionOf(member, instruction.module, instruction.chunk);
    const auto group =
        static_cast<size_t>(wiring_.groups_of[static_cast<size_t>(member)][position]);
    return groups_[2 * group + (instruction.op == Op::kGather ? 1 : 0)];
  }

  // The last member to come lets all go on.
  void ArriveInGroup(int32_t member, int64_t id, double ready) {
    Rendezvous& own = rendezvous_[static_cast<size_t>(id)];
    if (own.arrived) return;
    own.arrived = true;
    Group& group = GroupOf(member, At(id));
    group.ready = std::max(group.ready, ready);
    group.arrived.emplace_back(member, id);
    if (--group.missing != 0) return;
    for (const auto& [other, instruction] : group.arrived) {
      Finish(instruction, group.ready, group.ready);
      Wake(other);
    }
  }

  void FinishMessage(int64_t id) {
    const double ready = rendezvous_[static_cast<size_t>(id)].ready;
    Finish(id, ready, ready + message_seconds_);
  }

  void ArriveAtPeers(int32_t member, int64_t id, double ready) {
    Rendezvous& own = rendezvous_[static_cast<size_t>(id)];
    own.arrived = true;
    own.ready = std::max(own.ready, ready);
    bool alone = true;
    ForPeers(member, At(id), [&](int32_t peer_member, int64_t peer) {
      alone = false;
      if (peer == kNone) return;
      Rendezvous& other = rendezvous_[static_cast<size_t>(peer)];
      other.ready = std::max(other.ready, ready);
      if (--other.missing == 0 && other.arrived) {
        FinishMessage(peer);
        Wake(peer_member);
      }
    });
    if (alone) {
      Finish(id, ready, ready);
    } else if (own.missing == 0) {
      FinishMessage(id);
    }
  }

  void AdvanceStreams(int32_t member) {
    bool moved = true;
    while (moved) {
      moved = false;
      while (AdvanceCompute(member)) moved = true;
      while (AdvanceMessages(member, 1)) moved = true;
      while (AdvanceMessages(member, 2)) moved = true;
    }
  }

  // The instruction at the head of a queue, `ahead` behind it, or kNone past its end.
  int64_t Head(int32_t member, size_t queue, size_t ahead = 0) const {
    const auto m = static_cast<size_t>(member);
    const size_t place = queue_first_[m][queue] + heads_[m][queue] + ahead;
    return place < queue_first_[m][queue + 1] ? queued_[place] : kNone;
  }

  bool AdvanceCompute(int32_t member) {
    const auto m = static_cast<size_t>(member);
    const int64_t id = Head(member, 0);
    if (id == kNone) return false;
    if (!Done(id)) {
      const Instruction& instruction = At(id);
      const double ready = NeedsReady(member, instruction);
      if (ready < 0) return false;
      const double begin = std::max(ready, ends_[m][0]);
      if (IsCollective(instruction.op)) {
        ArriveInGroup(member, id, begin);
        if (!Done(id)) return false;
      } else {
        Finish(id, begin, begin + Duration(member, instruction));
      }
    }
    ends_[m][0] = execution_.end[static_cast<size_t>(id)];
    ++heads_[m][0];
    return true;
  }

  // Instructions at the head of a message queue that are one operation: those with one ticket.
  size_t HeadSize(int32_t member, size_t queue) const {
    const int64_t ticket = At(Head(member, queue)).ticket;
    size_t size = 1;
    for (int64_t next; (next = Head(member, queue, size)) != kNone; ++size) {
      if (At(next).ticket != ticket || ticket == 0) break;
    }
    return size;
  }

  bool AdvanceMessages(int32_t member, size_t queue) {
    const auto m = static_cast<size_t>(member);
    if (Head(member, queue) == kNone) return false;
    const size_t size = HeadSize(member, queue);
    if (!rendezvous_[static_cast<size_t>(Head(member, queue))].arrived) {
      double ready = ends_[m][queue];
      for (size_t i = 0; i < size; ++i) {
        const double needs = NeedsReady(member, At(Head(member, queue, i)));
        if (needs < 0) return false;
        ready = std::max(ready, needs);
      }
      for (size_t i = 0; i < size; ++i) ArriveAtPeers(member, Head(member, queue, i), ready);
    }
    for (size_t i = 0; i < size; ++i) {
      const int64_t id = Head(member, queue, i);
      if (!Done(id)) return false;
      ends_[m][queue] = std::max(ends_[m][queue], execution_.end[static_cast<size_t>(id)]);
    }
    heads_[m][queue] += size;
    return true;
  }

  bool AllSent(int32_t member, const Instruction& receive) const {
    bool all = true;
    ForPeers(member, receive, [&](int32_t, int64_t send) { all &= send != kNone && Done(send); });
    return all;
  }

  void AdvanceBlocking(int32_t member) {
    const auto m = static_cast<size_t>(member);
    for (size_t& position = heads_[m][0]; position < programs_[m]->size(); ++position) {
      const auto id = static_cast<int64_t>(execution_.first[m] + position);
      if (Done(id)) continue;
      const Instruction& instruction = At(id);
      if (NeedsReady(member, instruction) < 0) return;
      if (IsCollective(instruction.op)) {
        ArriveInGroup(member, id, 0);
        if (!Done(id)) return;
      } else if (IsMessage(instruction.op) && !IsSend(instruction.op)) {
        if (!AllSent(member, instruction)) return;
      }
      Finish(id, 0, 0);
      if (IsSend(instruction.op)) {
        ForPeers(member, instruction, [this](int32_t peer, int64_t) { Wake(peer); });
      }
    }
  }

  // Stalls.

  std::string Name(int32_t member) const { return absl::StrCat("rank ", member); }

  // What the member has at the head of a queue, for "which is at ...".
  std::string WhereIs(int32_t member, size_t queue) const {
    int64_t id = kNone;
    if (model_ == ExecutionModel::kStreams) {
      id = Head(member, queue);
    } else {
      const auto m = static_cast<size_t>(member);
      if (heads_[m][0] < programs_[m]->size()) {
        id = static_cast<int64_t>(execution_.first[m] + heads_[m][0]);
      }
    }
    return id == kNone ? "its end" : ToString(At(id));
  }

  // Why the instruction cannot run, or "" if only because of another one on the same member that
  // has its own line.
  std::string Reason(int32_t member, int64_t id) {
    const Instruction& instruction = At(id);
    const size_t queue = QueueOf(instruction.op);
    std::string reason;
    ForNeeds(member, instruction, [&](int64_t need) {
      if (!reason.empty() || (need != kNone && Done(need))) return;
      if (need == kNone) {
        reason = "needs a receive or a pass that its program does not have";
      } else if (model_ == ExecutionModel::kBlocking || !IsSend(instruction.op)) {
        reason = absl::StrCat("waits for its ", ToString(At(need)));
      }
    });
    if (!reason.empty() || NeedsReady(member, instruction) < 0) return reason;
    if (IsMessage(instruction.op)) {
      ForPeers(member, instruction, [&](int32_t peer, int64_t other) {
        if (!reason.empty()) return;
        if (other == kNone) {
          reason = absl::StrCat("waits for ", Name(peer), ", whose program does not have the other end");
        } else if (!Done(other) && !rendezvous_[static_cast<size_t>(other)].arrived) {
          reason = absl::StrCat("waits for ", Name(peer), ", which is at ", WhereIs(peer, queue));
        }
      });
    } else if (IsCollective(instruction.op)) {
      reason = GroupReason(member, instruction);
    }
    return reason;
  }

  std::string GroupReason(int32_t member, const Instruction& instruction) {
    const Group& group = GroupOf(member, instruction);
    for (int32_t other = 0; other < wiring_.members; ++other) {
      if (instruction.op != Op::kRecord) {
        const size_t position = PositionOf(other, instruction.module, instruction.chunk);
        if (position == wiring_.parts_of[static_cast<size_t>(other)].size()) continue;
        if (&GroupOf(other, instruction) != &group) continue;
      }
      const bool there = std::any_of(group.arrived.begin(), group.arrived.end(),
                                     [other](const auto& entry) { return entry.first == other; });
      if (!there) return absl::StrCat("waits for ", Name(other), ", which is at ", WhereIs(other, 0));
    }
    return "waits for its group";
  }

  void ReportStall(int32_t member, int64_t id) {
    if (id == kNone || execution_.stalls.size() == kStallsMax) return;
    const std::string reason = Reason(member, id);
    if (reason.empty()) return;
    execution_.stalls.push_back(absl::StrCat(Name(member), " at ", ToString(At(id)), " ", reason));
  }

  void ReportStalls() {
    for (int32_t member = 0; member < wiring_.members; ++member) {
      const auto m = static_cast<size_t>(member);
      if (model_ == ExecutionModel::kBlocking) {
        if (heads_[m][0] < programs_[m]->size()) {
          ReportStall(member, static_cast<int64_t>(execution_.first[m] + heads_[m][0]));
        }
        continue;
      }
      for (size_t q = 0; q < kQueues; ++q) ReportStall(member, Head(member, q));
    }
  }

  const Pipeline& pipeline_;
  const Wiring& wiring_;
  const std::vector<const Program*>& programs_;
  const std::vector<PartSeconds>& seconds_;
  const double message_seconds_;
  const int32_t microbatches_;
  ExecutionModel model_ = ExecutionModel::kStreams;

  std::vector<const Instruction*> instructions_;  // of all members, one after the other
  std::vector<std::vector<Seat>> seats_;          // of each member
  std::vector<size_t> slot_base_;                 // of each end of each link, into message_at_
  std::vector<int64_t> message_at_;               // instruction of each message at each member
  std::vector<size_t> pass_base_;                 // of each member, into pass_at_
  std::vector<int64_t> pass_at_;                  // instruction of each pass

  std::vector<int64_t> queued_;  // instructions of each member by queue, in program order
  std::vector<std::array<size_t, kQueues + 1>> queue_first_;
  std::vector<std::array<size_t, kQueues>> heads_;  // kBlocking: [0] is the position in the program
  std::vector<std::array<double, kQueues>> ends_;   // when the last operation of each queue ended
  std::vector<char> done_;
  std::vector<Rendezvous> rendezvous_;
  std::vector<Group> groups_;  // reduce and gather of each group, then the record
  std::vector<int32_t> awake_;
  std::vector<char> is_awake_;
  Execution execution_;
};

}  // namespace

Execution Execute(ExecutionModel model, const Pipeline& pipeline, const Wiring& wiring,
                  const std::vector<const Program*>& programs,
                  const std::vector<PartSeconds>& seconds, double message_seconds) {
  return Engine(pipeline, wiring, programs, seconds, message_seconds).Run(model);
}

}  // namespace phalanx::schedule
