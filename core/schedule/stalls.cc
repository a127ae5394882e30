#include "core/schedule/stalls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::schedule {
namespace {

class StallReport {
 public:
  explicit StallReport(const ExecutionState& state) : state_(state) {}

  std::vector<std::string> Report() {
    for (int32_t member = 0; member < state_.wiring.members; ++member) {
      const auto m = static_cast<size_t>(member);
      if (state_.model == ExecutionModel::kBlocking) {
        if (state_.positions[m] < state_.programs[m]->size()) {
          Add(member, static_cast<int64_t>(state_.execution.first[m] + state_.positions[m]));
        }
        continue;
      }
      for (size_t q = 0; q < kQueues; ++q) Add(member, state_.Head(member, q));
    }
    return std::move(stalls_);
  }

 private:
  void Add(int32_t member, int64_t id) {
    if (id == kNoInstruction || stalls_.size() == kStallsMax) return;
    const std::string reason = Reason(member, id);
    if (reason.empty()) return;
    stalls_.push_back(absl::StrCat(Name(member), " at ", ToString(state_.At(id)), " ", reason));
  }

  std::string Name(int32_t member) const { return absl::StrCat("rank ", member); }

  // What the member has at the head of a queue, for "which is at ...".
  std::string WhereIs(int32_t member, size_t queue) const {
    int64_t id = kNoInstruction;
    if (state_.model != ExecutionModel::kBlocking) {
      id = state_.Head(member, queue);
    } else {
      const auto m = static_cast<size_t>(member);
      if (state_.positions[m] < state_.programs[m]->size()) {
        id = static_cast<int64_t>(state_.execution.first[m] + state_.positions[m]);
      }
    }
    return id == kNoInstruction ? "its end" : ToString(state_.At(id));
  }

  // Why the instruction cannot run, or "" if only because of another one on the same member that
  // has its own line.
  std::string Reason(int32_t member, int64_t id) const {
    const Instruction& instruction = state_.At(id);
    const size_t queue = QueueOf(instruction.op);
    std::string reason;
    state_.index.ForNeeds(member, instruction, [&](int64_t need) {
      if (!reason.empty() || (need != kNoInstruction && state_.Done(need))) return;
      if (need == kNoInstruction) {
        reason = "needs an instruction that its program does not have";
      } else if (state_.model == ExecutionModel::kBlocking || IsPass(instruction.op)) {
        reason = absl::StrCat("waits for its ", ToString(state_.At(need)));
      }
    });
    if (!reason.empty() || state_.NeedsReady(member, instruction) < 0) return reason;
    if (IsMessage(instruction.op)) {
      state_.index.ForPeers(member, instruction, [&](int32_t peer, int64_t other) {
        if (!reason.empty()) return;
        if (other == kNoInstruction) {
          reason =
              absl::StrCat("waits for ", Name(peer), ", whose program does not have the other end");
        } else if (!state_.Done(other) && !state_.rendezvous[static_cast<size_t>(other)].arrived) {
          reason = absl::StrCat("waits for ", Name(peer), ", which is at ", WhereIs(peer, queue));
        }
      });
    } else if (IsCollective(instruction.op)) {
      reason = GroupReason(member, instruction);
    } else if (const int32_t crew = state_.CrewOf(member, instruction); crew >= 0) {
      for (int32_t other : state_.wiring.crews[static_cast<size_t>(crew)]) {
        const int64_t there = state_.index.PassAt(other, state_.PositionOf(other, instruction),
                                                  instruction.op, instruction.microbatch);
        if (!reason.empty()) break;
        if (there == kNoInstruction) {
          reason =
              absl::StrCat("waits for ", Name(other), ", whose program does not have the pass");
        } else if (!state_.rendezvous[static_cast<size_t>(there)].arrived) {
          reason = absl::StrCat("waits for ", Name(other), " of its tensor group, which is at ",
                                WhereIs(other, queue));
        }
      }
    }
    return reason;
  }

  std::string TieReason(int32_t member, const Instruction& instruction) const {
    for (const Wiring::Tie& tie : state_.wiring.ties_of[static_cast<size_t>(member)]) {
      if (!IsOf(tie, instruction) ||
          state_.at_ties.contains({tie.member, instruction.module, instruction.op})) {
        continue;
      }
      return absl::StrCat("waits for ", Name(tie.member),
                          ", which has the other end of an embedding and is at ",
                          WhereIs(tie.member, kCompute));
    }
    return "";
  }

  std::string GroupReason(int32_t member, const Instruction& instruction) const {
    if (IsTie(instruction.op)) return TieReason(member, instruction);
    const size_t group = state_.GroupOf(member, instruction);
    const auto& arrived = state_.groups[group].arrived;
    for (int32_t other = 0; other < state_.wiring.members; ++other) {
      if (instruction.op != Op::kRecord) {
        const size_t position = state_.PositionOf(other, instruction);
        if (position == state_.wiring.parts_of[static_cast<size_t>(other)].size()) continue;
        if (state_.GroupOf(other, instruction) != group) continue;
      }
      const bool there = std::any_of(arrived.begin(), arrived.end(),
                                     [other](const auto& entry) { return entry.first == other; });
      if (!there)
        return absl::StrCat("waits for ", Name(other), ", which is at ",
                            WhereIs(other, QueueOf(instruction.op)));
    }
    return "waits for its group";
  }

  const ExecutionState& state_;
  std::vector<std::string> stalls_;
};

}  // namespace

std::vector<std::string> StallsOf(const ExecutionState& state) {
  return StallReport(state).Report();
}

}  // namespace phalanx::schedule
