#include "core/schedule/execution.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/schedule/device_queues.h"
#include "core/schedule/step_index.h"

namespace phalanx::schedule {
namespace {

constexpr int64_t kNone = kNoInstruction;

struct Rendezvous {
  bool posted = false;  // at the head of its queue, with all that it needs
  int32_t senders = 0;  // of a receive: how many of its sends are posted
  int32_t missing = 0;  // peers, less those that came; without the former until it comes itself
  bool arrived = false;
  double ready = 0;  // when the last of those who are there was ready
};

struct CrewPass {
  int32_t missing = 0;  // members that have not come
  double ready = 0;
};

struct Group {
  int32_t missing = 0;
  double ready = 0;
  std::vector<std::pair<int32_t, int64_t>> arrived;  // member, instruction
};

class Engine {
 public:
  Engine(ExecutionModel model, const Pipeline& pipeline, const Wiring& wiring,
         const std::vector<const Program*>& programs, const std::vector<PartCost>& seconds,
         double message_seconds)
      : model_(model),
        wiring_(wiring),
        programs_(programs),
        seconds_(seconds),
        message_seconds_(message_seconds),
        index_(pipeline, wiring, programs),
        queues_(index_, model == ExecutionModel::kPaced),
        positions_(programs.size()),
        ends_(programs.size()),
        done_(index_.size(), 0),
        rendezvous_(index_.size()),
        is_awake_(programs.size(), 0) {
    execution_.first = index_.first();
    execution_.begin.assign(index_.size(), 0);
    execution_.end.assign(index_.size(), 0);
    MakeGroups();
  }

  Execution Run() {
    for (int32_t member = wiring_.members - 1; member >= 0; --member) Wake(member);
    while (!awake_.empty()) {
      const int32_t member = awake_.back();
      awake_.pop_back();
      is_awake_[static_cast<size_t>(member)] = false;
      if (model_ == ExecutionModel::kBlocking) {
        AdvanceBlocking(member);
      } else {
        AdvanceStreams(member);
      }
    }
    ReportStalls();
    return std::move(execution_);
  }

 private:
  const Instruction& At(int64_t id) const { return index_.At(id); }
  bool Done(int64_t id) const { return done_[static_cast<size_t>(id)] != 0; }
  size_t PositionOf(int32_t member, const Instruction& instruction) const {
    return index_.PositionOf(member, instruction.module, instruction.chunk);
  }

  void MakeGroups() {
    const size_t groups = wiring_.group_sizes.size();
    groups_.resize(kGroupOps * groups + 1);
    for (size_t i = 0; i < kGroupOps * groups; ++i) {
      groups_[i].missing = wiring_.group_sizes[i / kGroupOps];
    }
    groups_.back().missing = wiring_.members;
    const auto microbatches = static_cast<size_t>(wiring_.microbatches);
    for (const std::vector<int32_t>& crew : wiring_.crews) {
      crew_passes_.resize(crew_passes_.size() + kPassOps * microbatches,
                          {.missing = static_cast<int32_t>(crew.size())});
    }
  }

  // When all that it needs from this member is there, or a negative time.
  double NeedsReady(int32_t member, const Instruction& instruction) {
    double ready = 0;
    index_.ForNeeds(member, instruction, [&](int64_t id) {
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
    done_[static_cast<size_t>(id)] = 1;
  }

  double Duration(int32_t member, const Instruction& instruction) const {
    if (!IsPass(instruction.op) && !IsUpdate(instruction.op)) return 0;
    const size_t position = PositionOf(member, instruction);
    const auto part = static_cast<size_t>(wiring_.parts_of[static_cast<size_t>(member)][position]);
    return SecondsOf(seconds_[part], instruction.op);
  }

  Group& GroupOf(int32_t member, const Instruction& instruction) {
    if (instruction.op == Op::kRecord) return groups_.back();
    const size_t position = PositionOf(member, instruction);
    const auto group =
        static_cast<size_t>(wiring_.groups_of[static_cast<size_t>(member)][position]);
    return groups_[kGroupOps * group + GroupIndexOf(instruction.op)];
  }

  // Whether two members are at the ends of the instruction's embedding.
  static bool IsOf(const Wiring::Tie& tie, const Instruction& instruction) {
    return tie.module == instruction.module;
  }

  // A fold or a spread ends once all that hold the other ends have come to theirs.
  void ArriveAtTie(int32_t member, int64_t id, double ready) {
    const Instruction& instruction = At(id);
    const std::vector<Wiring::Tie>& ties = wiring_.ties_of[static_cast<size_t>(member)];
    const auto [own, is_new] =
        at_ties_.try_emplace({member, instruction.module, instruction.op}, ready);
    for (const Wiring::Tie& tie : ties) {
      if (is_new && IsOf(tie, instruction)) Wake(tie.member);
    }
    for (const Wiring::Tie& tie : ties) {
      if (!IsOf(tie, instruction)) continue;
      const auto there = at_ties_.find({tie.member, instruction.module, instruction.op});
      if (there == at_ties_.end()) return;
      ready = std::max(ready, there->second);
    }
    Finish(id, std::max(ready, own->second), std::max(ready, own->second));
  }

  // Comes to a collective that could begin at `ready`. False while not all of its group are there.
  bool Collect(int32_t member, int64_t id, double ready) {
    if (IsTie(At(id).op)) {
      ArriveAtTie(member, id, ready);
    } else {
      ArriveInGroup(member, id, ready);
    }
    return Done(id);
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
    const double end = group.ready + Duration(member, At(id));
    for (const auto& [other, instruction] : group.arrived) {
      Finish(instruction, group.ready, end);
      Wake(other);
    }
  }

  // The crew of a pass, or -1.
  int32_t CrewOf(int32_t member, const Instruction& instruction) const {
    if (!IsPass(instruction.op) || wiring_.crews.empty()) return -1;
    return wiring_.crews_of[static_cast<size_t>(member)][PositionOf(member, instruction)];
  }

  // As ArriveInGroup, for a pass that the members of a crew run together.
  void ArriveInCrew(int32_t crew, int32_t member, int64_t id, double ready) {
    Rendezvous& own = rendezvous_[static_cast<size_t>(id)];
    if (own.arrived) return;
    own.arrived = true;
    const Instruction& pass = At(id);
    const auto t = static_cast<size_t>(crew);
    CrewPass& waiting = crew_passes_[(t * kPassOps + PassIndexOf(pass.op)) *
                                         static_cast<size_t>(wiring_.microbatches) +
                                     static_cast<size_t>(pass.microbatch)];
    waiting.ready = std::max(waiting.ready, ready);
    if (--waiting.missing != 0) return;
    const double end = waiting.ready + Duration(member, pass);
    for (int32_t other : wiring_.crews[t]) {
      Finish(index_.PassAt(other, PositionOf(other, pass), pass.op, pass.microbatch), waiting.ready,
             end);
      if (other != member) Wake(other);
    }
  }

  // Runs a pass, or another instruction without peers, that could begin at `ready`. False while its
  // crew is not complete.
  bool Compute(int32_t member, int64_t id, double ready) {
    const int32_t crew = CrewOf(member, At(id));
    if (crew >= 0) {
      ArriveInCrew(crew, member, id, ready);
    } else {
      Finish(id, ready, ready + Duration(member, At(id)));
    }
    return Done(id);
  }

  void FinishMessage(int64_t id) {
    const double ready = rendezvous_[static_cast<size_t>(id)].ready;
    Finish(id, ready, ready + message_seconds_);
  }

  // Posts the messages at the head of a queue. Whether they wait for no sender any more.
  bool PostMessages(int32_t member, size_t queue, size_t size) {
    bool has_senders = true;
    for (size_t i = 0; i < size; ++i) {
      const int64_t id = Head(member, queue, i);
      Rendezvous& own = rendezvous_[static_cast<size_t>(id)];
      if (!IsSend(At(id).op)) {
        has_senders &= own.senders >= index_.PeerCount(member, At(id));
      } else if (!std::exchange(own.posted, true)) {
        index_.ForPeers(member, At(id), [&](int32_t peer_member, int64_t peer) {
          if (peer == kNone) return;
          ++rendezvous_[static_cast<size_t>(peer)].senders;
          Wake(peer_member);
        });
      }
    }
    return has_senders;
  }

  void ArriveAtPeers(int32_t member, int64_t id, double ready) {
    Rendezvous& own = rendezvous_[static_cast<size_t>(id)];
    own.arrived = true;
    own.ready = std::max(own.ready, ready);
    const int32_t peers = index_.PeerCount(member, At(id));
    own.missing += peers;
    index_.ForPeers(member, At(id), [&](int32_t peer_member, int64_t peer) {
      if (peer == kNone) return;
      Rendezvous& other = rendezvous_[static_cast<size_t>(peer)];
      other.ready = std::max(other.ready, ready);
      if (--other.missing == 0 && other.arrived) {
        FinishMessage(peer);
        Wake(peer_member);
      }
    });
    if (peers == 0) {
      Finish(id, ready, ready);
    } else if (own.missing == 0) {
      FinishMessage(id);
    }
  }

  void AdvanceStreams(int32_t member) {
    bool moved = true;
    while (moved) {
      moved = false;
      queues_.Enqueue(member, done_);
      while (AdvanceInOrder(member, kCompute)) moved = true;
      while (AdvanceInOrder(member, kReductions)) moved = true;
      while (AdvanceMessages(member, kForwardMessages)) moved = true;
      while (AdvanceMessages(member, kBackwardMessages)) moved = true;
    }
  }

  int64_t Head(int32_t member, size_t queue, size_t ahead = 0) const {
    return queues_.Head(member, queue, ahead);
  }

  // What stands at the head of a queue of passes and collectives.
  bool AdvanceInOrder(int32_t member, size_t queue) {
    const auto m = static_cast<size_t>(member);
    const int64_t id = Head(member, queue);
    if (id == kNone) return false;
    if (!Done(id)) {
      const Instruction& instruction = At(id);
      const double ready = NeedsReady(member, instruction);
      if (ready < 0) return false;
      const double begin = std::max(ready, ends_[m][queue]);
      if (IsCollective(instruction.op)) {
        if (!Collect(member, id, begin)) return false;
      } else if (!Compute(member, id, begin)) {
        return false;
      }
    }
    ends_[m][queue] = execution_.end[static_cast<size_t>(id)];
    queues_.Pop(member, queue);
    return true;
  }

  bool AdvanceMessages(int32_t member, size_t queue) {
    const auto m = static_cast<size_t>(member);
    if (Head(member, queue) == kNone) return false;
    const size_t size = queues_.HeadSize(member, queue);
    if (!rendezvous_[static_cast<size_t>(Head(member, queue))].arrived) {
      double ready = ends_[m][queue];
      for (size_t i = 0; i < size; ++i) {
        const double needs = NeedsReady(member, At(Head(member, queue, i)));
        if (needs < 0) return false;
        ready = std::max(ready, needs);
      }
      if (!PostMessages(member, queue, size)) return false;
      for (size_t i = 0; i < size; ++i) ArriveAtPeers(member, Head(member, queue, i), ready);
    }
    for (size_t i = 0; i < size; ++i) {
      const int64_t id = Head(member, queue, i);
      if (!Done(id)) return false;
      ends_[m][queue] = std::max(ends_[m][queue], execution_.end[static_cast<size_t>(id)]);
    }
    queues_.Pop(member, queue, size);
    return true;
  }

  // When the messages of a receive have arrived, or a negative time.
  double Arrival(int32_t member, const Instruction& receive) const {
    double arrival = 0;
    index_.ForPeers(member, receive, [&](int32_t, int64_t send) {
      if (send == kNone || !Done(send)) {
        arrival = -1;
      } else if (arrival >= 0) {
        arrival = std::max(arrival, execution_.end[static_cast<size_t>(send)] + message_seconds_);
      }
    });
    return arrival;
  }

  void AdvanceBlocking(int32_t member) {
    const auto m = static_cast<size_t>(member);
    double& now = ends_[m][0];
    for (size_t& position = positions_[m]; position < programs_[m]->size(); ++position) {
      const auto id = static_cast<int64_t>(execution_.first[m] + position);
      const Instruction& instruction = At(id);
      if (IsCollective(instruction.op)) {
        if (NeedsReady(member, instruction) < 0 || !Collect(member, id, now)) return;
      } else if (IsReceive(instruction.op)) {
        const double arrival = Arrival(member, instruction);
        if (arrival < 0) return;
        Finish(id, now, std::max(now, arrival));
      } else {
        if (NeedsReady(member, instruction) < 0) return;
        if (!Done(id) && !Compute(member, id, now)) return;
      }
      now = execution_.end[static_cast<size_t>(id)];
      if (IsSend(instruction.op)) {
        index_.ForPeers(member, instruction, [this](int32_t peer, int64_t) { Wake(peer); });
      }
    }
  }

  // Stalls.

  std::string Name(int32_t member) const { return absl::StrCat("rank ", member); }

  // What the member has at the head of a queue, for "which is at ...".
  std::string WhereIs(int32_t member, size_t queue) const {
    int64_t id = kNone;
    if (model_ != ExecutionModel::kBlocking) {
      id = Head(member, queue);
    } else {
      const auto m = static_cast<size_t>(member);
      if (positions_[m] < programs_[m]->size()) {
        id = static_cast<int64_t>(execution_.first[m] + positions_[m]);
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
    index_.ForNeeds(member, instruction, [&](int64_t need) {
      if (!reason.empty() || (need != kNone && Done(need))) return;
      if (need == kNone) {
        reason = "needs an instruction that its program does not have";
      } else if (model_ == ExecutionModel::kBlocking || IsPass(instruction.op)) {
        reason = absl::StrCat("waits for its ", ToString(At(need)));
      }
    });
    if (!reason.empty() || NeedsReady(member, instruction) < 0) return reason;
    if (IsMessage(instruction.op)) {
      index_.ForPeers(member, instruction, [&](int32_t peer, int64_t other) {
        if (!reason.empty()) return;
        if (other == kNone) {
          reason =
              absl::StrCat("waits for ", Name(peer), ", whose program does not have the other end");
        } else if (!Done(other) && !rendezvous_[static_cast<size_t>(other)].arrived) {
          reason = absl::StrCat("waits for ", Name(peer), ", which is at ", WhereIs(peer, queue));
        }
      });
    } else if (IsCollective(instruction.op)) {
      reason = GroupReason(member, instruction);
    } else if (const int32_t crew = CrewOf(member, instruction); crew >= 0) {
      for (int32_t other : wiring_.crews[static_cast<size_t>(crew)]) {
        const int64_t there = index_.PassAt(other, PositionOf(other, instruction), instruction.op,
                                            instruction.microbatch);
        if (!reason.empty()) break;
        if (there == kNone) {
          reason =
              absl::StrCat("waits for ", Name(other), ", whose program does not have the pass");
        } else if (!rendezvous_[static_cast<size_t>(there)].arrived) {
          reason = absl::StrCat("waits for ", Name(other), " of its tensor group, which is at ",
                                WhereIs(other, queue));
        }
      }
    }
    return reason;
  }

  std::string TieReason(int32_t member, const Instruction& instruction) {
    for (const Wiring::Tie& tie : wiring_.ties_of[static_cast<size_t>(member)]) {
      if (!IsOf(tie, instruction) ||
          at_ties_.contains({tie.member, instruction.module, instruction.op})) {
        continue;
      }
      return absl::StrCat("waits for ", Name(tie.member),
                          ", which has the other end of an embedding and is at ",
                          WhereIs(tie.member, kCompute));
    }
    return "";
  }

  std::string GroupReason(int32_t member, const Instruction& instruction) {
    if (IsTie(instruction.op)) return TieReason(member, instruction);
    const Group& group = GroupOf(member, instruction);
    for (int32_t other = 0; other < wiring_.members; ++other) {
      if (instruction.op != Op::kRecord) {
        const size_t position = PositionOf(other, instruction);
        if (position == wiring_.parts_of[static_cast<size_t>(other)].size()) continue;
        if (&GroupOf(other, instruction) != &group) continue;
      }
      const bool there = std::any_of(group.arrived.begin(), group.arrived.end(),
                                     [other](const auto& entry) { return entry.first == other; });
      if (!there)
        return absl::StrCat("waits for ", Name(other), ", which is at ",
                            WhereIs(other, QueueOf(instruction.op)));
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
        if (positions_[m] < programs_[m]->size()) {
          ReportStall(member, static_cast<int64_t>(execution_.first[m] + positions_[m]));
        }
        continue;
      }
      for (size_t q = 0; q < kQueues; ++q) ReportStall(member, Head(member, q));
    }
  }

  const ExecutionModel model_;
  const Wiring& wiring_;
  const std::vector<const Program*>& programs_;
  const std::vector<PartCost>& seconds_;
  const double message_seconds_;
  const StepIndex index_;

  DeviceQueues queues_;                            // but for kBlocking
  std::vector<size_t> positions_;                  // kBlocking: in the program of each member
  std::vector<std::array<double, kQueues>> ends_;  // when the last operation of each queue ended
  std::vector<char> done_;
  std::vector<Rendezvous> rendezvous_;
  std::map<std::tuple<int32_t, int32_t, Op>, double> at_ties_;  // when who came to what
  std::vector<Group> groups_;          // reduce and gather of each group, then the record
  std::vector<CrewPass> crew_passes_;  // by crew, pass, microbatch
  std::vector<int32_t> awake_;
  std::vector<char> is_awake_;
  Execution execution_;
};

}  // namespace

Execution Execute(ExecutionModel model, const Pipeline& pipeline, const Wiring& wiring,
                  const std::vector<const Program*>& programs, const std::vector<PartCost>& seconds,
                  double message_seconds) {
  return Engine(model, pipeline, wiring, programs, seconds, message_seconds).Run();
}

}  // namespace phalanx::schedule
