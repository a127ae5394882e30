#include "core/schedule/execution.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/schedule/execution_state.h"
#include "core/schedule/stalls.h"

namespace phalanx::schedule {
namespace {

struct CrewPass {
  int32_t missing = 0;  // members that have not come
  double ready = 0;
};

class Engine {
 public:
  Engine(ExecutionModel model, const Pipeline& pipeline, const Wiring& wiring,
         const std::vector<const Program*>& programs, const MemberCosts& seconds,
         const std::vector<double>& message_seconds)
      : state_(model, pipeline, wiring, programs),
        seconds_(seconds),
        message_seconds_(message_seconds),
        ends_(programs.size()),
        last_reduction_(programs.size(), kNoInstruction),
        is_awake_(programs.size(), 0) {
    MakeGroups();
  }

  Execution Run() {
    for (int32_t member = state_.wiring.members - 1; member >= 0; --member) Wake(member);
    while (!awake_.empty()) {
      const int32_t member = awake_.back();
      awake_.pop_back();
      is_awake_[static_cast<size_t>(member)] = false;
      if (state_.model == ExecutionModel::kBlocking) {
        AdvanceBlocking(member);
      } else {
        AdvanceStreams(member);
      }
    }
    state_.execution.stalls = StallsOf(state_);
    return std::move(state_.execution);
  }

 private:
  void MakeGroups() {
    const size_t groups = state_.wiring.group_sizes.size();
    state_.groups.resize(kGroupOps * groups + 1);
    for (size_t i = 0; i < kGroupOps * groups; ++i) {
      state_.groups[i].missing = state_.wiring.group_sizes[i / kGroupOps];
    }
    state_.groups.back().missing = state_.wiring.members;
    const auto microbatches = static_cast<size_t>(state_.wiring.microbatches);
    for (const std::vector<int32_t>& crew : state_.wiring.crews) {
      crew_passes_.resize(crew_passes_.size() + kPassOps * microbatches,
                          {.missing = static_cast<int32_t>(crew.size())});
    }
  }

  void Wake(int32_t member) {
    if (is_awake_[static_cast<size_t>(member)]) return;
    is_awake_[static_cast<size_t>(member)] = true;
    awake_.push_back(member);
  }

  void Finish(int64_t id, double begin, double end) {
    state_.execution.begin[static_cast<size_t>(id)] = begin;
    state_.execution.end[static_cast<size_t>(id)] = end;
    state_.done[static_cast<size_t>(id)] = 1;
  }

  double Duration(int32_t member, const Instruction& instruction) const {
    if (!IsPass(instruction.op) && !IsUpdate(instruction.op)) return 0;
    return SecondsOf(CostOf(member, instruction), instruction.op);
  }
  const PartCost& CostOf(int32_t member, const Instruction& instruction) const {
    return seconds_[static_cast<size_t>(member)][state_.PositionOf(member, instruction)];
  }

  // When a reduction would have to begin, without a pause, to end when its last slice does;
  // `ready`: with all that the whole of it needs.
  double ReductionReady(int32_t member, const Instruction& reduce, double ready) const {
    const PartCost& cost = CostOf(member, reduce);
    if (cost.slices.empty()) return ready;
    const size_t position = state_.PositionOf(member, reduce);
    const int64_t weights = state_.index.LastWeightsAt(member, position);
    const int64_t inputs =
        state_.index.PassAt(member, position, Op::kBackwardInput, state_.At(weights).microbatch);
    if (inputs == kNoInstruction || inputs < last_reduction_[static_cast<size_t>(member)])
      return ready;
    const double begin = state_.execution.begin[static_cast<size_t>(inputs)];
    const double end = state_.execution.end[static_cast<size_t>(weights)];
    double before = 0, latest = 0;  // of all slices; when it has to begin for this one
    for (const UpdateSlice& slice : cost.slices) {
      const double complete = slice.complete < 1 ? begin + slice.complete * (end - begin) : ready;
      latest = std::max(latest, complete - before * cost.reduce);
      before += slice.share;
    }
    return latest;
  }

  double NormSeconds(int32_t member) const {
    double seconds = 0;
    for (const PartCost& cost : seconds_[static_cast<size_t>(member)]) seconds += cost.norm;
    return seconds;
  }

  // A fold or a spread ends once all that hold the other ends have come to theirs.
  void ArriveAtTie(int32_t member, int64_t id, double ready) {
    const Instruction& instruction = state_.At(id);
    const std::vector<Wiring::Tie>& ties = state_.wiring.ties_of[static_cast<size_t>(member)];
    const auto [own, is_new] =
        state_.at_ties.try_emplace({member, instruction.module, instruction.op}, ready);
    for (const Wiring::Tie& tie : ties) {
      if (is_new && IsOf(tie, instruction)) Wake(tie.member);
    }
    for (const Wiring::Tie& tie : ties) {
      if (!IsOf(tie, instruction)) continue;
      const auto there = state_.at_ties.find({tie.member, instruction.module, instruction.op});
      if (there == state_.at_ties.end()) return;
      ready = std::max(ready, there->second);
    }
    Finish(id, std::max(ready, own->second), std::max(ready, own->second));
  }

  // Comes to a collective that could begin at `ready`. False while not all of its group are there.
  bool Collect(int32_t member, int64_t id, double ready) {
    if (IsTie(state_.At(id).op)) {
      ArriveAtTie(member, id, ready);
    } else {
      ArriveInGroup(member, id, ready);
    }
    return state_.Done(id);
  }

  // The last member to come lets all go on.
  void ArriveInGroup(int32_t member, int64_t id, double ready) {
    Rendezvous& own = state_.rendezvous[static_cast<size_t>(id)];
    if (own.arrived) return;
    own.arrived = true;
    Group& group = state_.groups[state_.GroupOf(member, state_.At(id))];
    group.ready = std::max(group.ready, ready);
    group.arrived.emplace_back(member, id);
    if (--group.missing != 0) return;
    const double end = group.ready + Duration(member, state_.At(id));
    for (const auto& [other, instruction] : group.arrived) {
      Finish(instruction, group.ready, end);
      Wake(other);
    }
  }

  // As ArriveInGroup, for a pass that the members of a crew run together.
  void ArriveInCrew(int32_t crew, int32_t member, int64_t id, double ready) {
    Rendezvous& own = state_.rendezvous[static_cast<size_t>(id)];
    if (own.arrived) return;
    own.arrived = true;
    const Instruction& pass = state_.At(id);
    const auto t = static_cast<size_t>(crew);
    CrewPass& waiting = crew_passes_[(t * kPassOps + PassIndexOf(pass.op)) *
                                         static_cast<size_t>(state_.wiring.microbatches) +
                                     static_cast<size_t>(pass.microbatch)];
    waiting.ready = std::max(waiting.ready, ready);
    if (--waiting.missing != 0) return;
    const double end = waiting.ready + Duration(member, pass);
    for (int32_t other : state_.wiring.crews[t]) {
      Finish(state_.index.PassAt(other, state_.PositionOf(other, pass), pass.op, pass.microbatch),
             waiting.ready, end);
      if (other != member) Wake(other);
    }
  }

  // Runs a pass, or another instruction without peers, that could begin at `ready`. False while its
  // crew is not complete.
  bool Compute(int32_t member, int64_t id, double ready) {
    const int32_t crew = state_.CrewOf(member, state_.At(id));
    if (crew >= 0) {
      ArriveInCrew(crew, member, id, ready);
    } else {
      Finish(id, ready, ready + Duration(member, state_.At(id)));
    }
    return state_.Done(id);
  }

  double MessageSeconds(int64_t id) const {
    if (message_seconds_.empty()) return 0;
    return message_seconds_[static_cast<size_t>(state_.At(id).link)];
  }

  void FinishMessage(int64_t id) {
    const double ready = state_.rendezvous[static_cast<size_t>(id)].ready;
    Finish(id, ready, ready + MessageSeconds(id));
  }

  // Posts the messages at the head of a queue. Whether they wait for no sender any more.
  bool PostMessages(int32_t member, size_t queue, size_t size) {
    bool has_senders = true;
    for (size_t i = 0; i < size; ++i) {
      const int64_t id = state_.Head(member, queue, i);
      Rendezvous& own = state_.rendezvous[static_cast<size_t>(id)];
      if (!IsSend(state_.At(id).op)) {
        has_senders &= own.senders >= state_.index.PeerCount(member, state_.At(id));
      } else if (!std::exchange(own.posted, true)) {
        state_.index.ForPeers(member, state_.At(id), [&](int32_t peer_member, int64_t peer) {
          if (peer == kNoInstruction) return;
          ++state_.rendezvous[static_cast<size_t>(peer)].senders;
          Wake(peer_member);
        });
      }
    }
    return has_senders;
  }

  void ArriveAtPeers(int32_t member, int64_t id, double ready) {
    Rendezvous& own = state_.rendezvous[static_cast<size_t>(id)];
    own.arrived = true;
    own.ready = std::max(own.ready, ready);
    const int32_t peers = state_.index.PeerCount(member, state_.At(id));
    own.missing += peers;
    state_.index.ForPeers(member, state_.At(id), [&](int32_t peer_member, int64_t peer) {
      if (peer == kNoInstruction) return;
      Rendezvous& other = state_.rendezvous[static_cast<size_t>(peer)];
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
      state_.queues.Enqueue(member, state_.done);
      while (AdvanceInOrder(member, kCompute)) moved = true;
      while (AdvanceInOrder(member, kReductions)) moved = true;
      while (AdvanceMessages(member, kForwardMessages)) moved = true;
      while (AdvanceMessages(member, kBackwardMessages)) moved = true;
    }
  }

  // What stands at the head of a queue of passes and collectives.
  bool AdvanceInOrder(int32_t member, size_t queue) {
    const auto m = static_cast<size_t>(member);
    const int64_t id = state_.Head(member, queue);
    if (id == kNoInstruction) return false;
    if (!state_.Done(id)) {
      const Instruction& instruction = state_.At(id);
      double ready = state_.NeedsReady(member, instruction);
      if (ready < 0) return false;
      if (instruction.op == Op::kReduce) ready = ReductionReady(member, instruction, ready);
      double begin = std::max(ready, ends_[m][queue]);
      if (instruction.op == Op::kRecord) begin += NormSeconds(member);
      if (IsCollective(instruction.op)) {
        if (!Collect(member, id, begin)) return false;
      } else if (!Compute(member, id, begin)) {
        return false;
      }
    }
    ends_[m][queue] = state_.execution.end[static_cast<size_t>(id)];
    if (state_.At(id).op == Op::kReduce) last_reduction_[m] = id;
    state_.queues.Pop(member, queue);
    return true;
  }

  bool AdvanceMessages(int32_t member, size_t queue) {
    const auto m = static_cast<size_t>(member);
    if (state_.Head(member, queue) == kNoInstruction) return false;
    const size_t size = state_.queues.HeadSize(member, queue);
    if (!state_.rendezvous[static_cast<size_t>(state_.Head(member, queue))].arrived) {
      double ready = ends_[m][queue];
      for (size_t i = 0; i < size; ++i) {
        const double needs = state_.NeedsReady(member, state_.At(state_.Head(member, queue, i)));
        if (needs < 0) return false;
        ready = std::max(ready, needs);
      }
      if (!PostMessages(member, queue, size)) return false;
      for (size_t i = 0; i < size; ++i) ArriveAtPeers(member, state_.Head(member, queue, i), ready);
    }
    for (size_t i = 0; i < size; ++i) {
      const int64_t id = state_.Head(member, queue, i);
      if (!state_.Done(id)) return false;
      ends_[m][queue] = std::max(ends_[m][queue], state_.execution.end[static_cast<size_t>(id)]);
    }
    state_.queues.Pop(member, queue, size);
    return true;
  }

  // When the messages of a receive have arrived, or a negative time.
  double Arrival(int32_t member, const Instruction& receive) const {
    double arrival = 0;
    state_.index.ForPeers(member, receive, [&](int32_t, int64_t send) {
      if (send == kNoInstruction || !state_.Done(send)) {
        arrival = -1;
      } else if (arrival >= 0) {
        arrival = std::max(arrival,
                           state_.execution.end[static_cast<size_t>(send)] + MessageSeconds(send));
      }
    });
    return arrival;
  }

  void AdvanceBlocking(int32_t member) {
    const auto m = static_cast<size_t>(member);
    double& now = ends_[m][0];
    for (size_t& position = state_.positions[m]; position < state_.programs[m]->size();
         ++position) {
      const auto id = static_cast<int64_t>(state_.execution.first[m] + position);
      const Instruction& instruction = state_.At(id);
      if (IsCollective(instruction.op)) {
        if (state_.NeedsReady(member, instruction) < 0 || !Collect(member, id, now)) return;
      } else if (IsReceive(instruction.op)) {
        const double arrival = Arrival(member, instruction);
        if (arrival < 0) return;
        Finish(id, now, std::max(now, arrival));
      } else {
        if (state_.NeedsReady(member, instruction) < 0) return;
        if (!state_.Done(id) && !Compute(member, id, now)) return;
      }
      now = state_.execution.end[static_cast<size_t>(id)];
      if (IsSend(instruction.op)) {
        state_.index.ForPeers(member, instruction, [this](int32_t peer, int64_t) { Wake(peer); });
      }
    }
  }

  ExecutionState state_;
  const MemberCosts& seconds_;
  const std::vector<double>& message_seconds_;

  std::vector<std::array<double, kQueues>> ends_;  // when the last operation of each queue ended
  std::vector<int64_t> last_reduction_;            // that left the queue of each member
  std::vector<CrewPass> crew_passes_;              // by crew, pass, microbatch
  std::vector<int32_t> awake_;
  std::vector<char> is_awake_;
};

}  // namespace

Execution Execute(ExecutionModel model, const Pipeline& pipeline, const Wiring& wiring,
                  const std::vector<const Program*>& programs, const MemberCosts& seconds,
                  const std::vector<double>& message_seconds) {
  return Engine(model, pipeline, wiring, programs, seconds, message_seconds).Run();
}

}  // namespace phalanx::schedule
