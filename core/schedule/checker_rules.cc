#include "core/schedule/checker_rules.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/schedule/step_index.h"

namespace phalanx::schedule {
namespace {

constexpr int32_t kAbsent = -1;

// Tickets of the whole step, gathered from all ranks: one operation has one ticket everywhere, and
// two operations never share one.
class TicketBook {
 public:
  TicketBook(const Pipeline& pipeline, int32_t microbatches)
      : microbatches_(static_cast<size_t>(microbatches)),
        messages_(2 * pipeline.links.size() * microbatches_),
        collectives_(kGroupOps * pipeline.parts.size() + 1) {}

  // The ticket under which the operation is known from an earlier rank, with that rank, if it
  // differs.
  struct Entry {
    int64_t ticket = 0;
    int32_t rank = kAbsent;
  };
  Entry Enter(const Instruction& instruction, int32_t part, int32_t rank) {
    Entry& entry = EntryOf(instruction, part);
    if (entry.rank == kAbsent) {
      entry = {instruction.ticket, rank};
      by_ticket_.emplace_back(instruction.ticket, instruction);
    }
    return entry.ticket == instruction.ticket ? Entry{} : entry;
  }

  // A sentence for each pair of operations with the same ticket.
  std::vector<std::string> Shared() {
    std::vector<std::string> problems;
    std::stable_sort(by_ticket_.begin(), by_ticket_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 1; i < by_ticket_.size(); ++i) {
      if (by_ticket_[i].first != by_ticket_[i - 1].first) continue;
      problems.push_back(absl::StrCat("ticket ", by_ticket_[i].first, " is that of both ",
                                      ToString(by_ticket_[i - 1].second), " and ",
                                      ToString(by_ticket_[i].second)));
    }
    return problems;
  }

 private:
  Entry& EntryOf(const Instruction& instruction, int32_t part) {
    if (IsMessage(instruction.op)) {
      const size_t direction = IsBackwardMessage(instruction.op) ? 1 : 0;
      return messages_[(2 * static_cast<size_t>(instruction.link) + direction) * microbatches_ +
                       static_cast<size_t>(instruction.microbatch)];
    }
    if (instruction.op == Op::kRecord) return collectives_.back();
    if (IsTie(instruction.op)) return ties_[{instruction.module, instruction.op}];
    return collectives_[kGroupOps * static_cast<size_t>(part) + GroupIndexOf(instruction.op)];
  }

  size_t microbatches_;
  std::vector<Entry> messages_, collectives_;
  std::map<std::pair<int32_t, Op>, Entry> ties_;  // by module
  std::vector<std::pair<int64_t, Instruction>> by_ticket_;
};

// Checks one program. Positions of instructions are kept in tables by what they name.
class RankRules {
 public:
  RankRules(const Pipeline& pipeline, const Wiring& wiring, int32_t rank, const Program& program,
            TicketBook& tickets, RuleReport& report)
      : pipeline_(pipeline),
        parts_(wiring.parts_of[static_cast<size_t>(rank)]),
        microbatches_(wiring.microbatches),
        rank_(rank),
        program_(program),
        tickets_(tickets),
        report_(report) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = PartAt(i);
      for (int32_t link : part.links_in) {
        AddMessage(link, Op::kReceiveForward, i);
        if (HasGradients(link)) AddMessage(link, Op::kSendBackward, i);
      }
      for (int32_t link : part.links_out) {
        AddMessage(link, Op::kSendForward, i);
        if (HasGradients(link)) AddMessage(link, Op::kReceiveBackward, i);
      }
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (PartAt(i).tied >= 0) ties_.try_emplace(PartAt(i).module);
    }
    passes_.assign(kPassOps * parts_.size() * Count(), kAbsent);
    ends_.assign(kUpdateOps * parts_.size(), kAbsent);
  }

  void Check() {
    if (!Locate()) return;
    CheckPasses();
    CheckMessages();
    CheckEnd();
    CheckTicketOrder();
    CheckNeeds();
    CountLive();
  }

 private:
  // The messages of one link in one direction at this rank.
  struct Messages {
    int32_t link;
    Op op;
    size_t part;                     // position in parts_ of the part at this end
    std::vector<int32_t> positions;  // of each microbatch
  };

  size_t Count() const { return static_cast<size_t>(microbatches_); }
  const Part& PartAt(size_t i) const { return pipeline_.parts[static_cast<size_t>(parts_[i])]; }
  void AddMessage(int32_t link, Op op, size_t part) {
    messages_.push_back({link, op, part, std::vector<int32_t>(Count(), kAbsent)});
  }

  bool HasGradients(int32_t link) const {
    return pipeline_.links[static_cast<size_t>(link)].gradients;
  }
  // Whether training runs the instruction at all, on a part of this rank.
  static bool IsTrained(const Part& part, Op op) {
    if (op == Op::kForward) return true;
    return op == Op::kBackwardInput ? part.trains.any() : part.trains.weights;
  }

  template <typename... Words>
  void Report(const Words&... words) {
    if (report_.problems.size() == kProblemsMax) return;
    report_.problems.push_back(absl::StrCat("rank ", rank_, ": ", words...));
  }
  std::string At(int32_t position) const {
    return ToString(program_[static_cast<size_t>(position)]);
  }

  size_t PositionOfPart(const Instruction& instruction) const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (PartAt(i).module == instruction.module && PartAt(i).chunk == instruction.chunk) return i;
    }
    return parts_.size();
  }
  Messages* MessagesOf(const Instruction& instruction) {
    for (Messages& messages : messages_) {
      if (messages.link == instruction.link && messages.op == instruction.op) return &messages;
    }
    return nullptr;
  }

  int32_t& PassPosition(size_t part, Op op, int32_t microbatch) {
    return passes_[(kPassOps * part + PassIndexOf(op)) * Count() + static_cast<size_t>(microbatch)];
  }
  // Position of kReduce, kOptimize or kGather of a part.
  int32_t& EndOf(size_t part, Op op) { return ends_[kUpdateOps * part + UpdateIndexOf(op)]; }

  // The table entry of an instruction, or nullptr if it names what this rank has no part in.
  int32_t* EntryOf(const Instruction& instruction) {
    if (instruction.op == Op::kRecord) return &record_;
    if (instruction.op == Op::kDecide) return &decide_;
    if (IsMessage(instruction.op) || IsPass(instruction.op)) {
      if (instruction.microbatch < 0 || instruction.microbatch >= microbatches_) return nullptr;
    }
    if (IsMessage(instruction.op)) {
      Messages* messages = MessagesOf(instruction);
      return messages ? &messages->positions[static_cast<size_t>(instruction.microbatch)] : nullptr;
    }
    if (IsTie(instruction.op)) {
      const auto tie = ties_.find(instruction.module);
      if (tie == ties_.end()) return nullptr;
      return instruction.op == Op::kFold ? &tie->second.fold : &tie->second.spread;
    }
    const size_t part = PositionOfPart(instruction);
    if (part == parts_.size() || !IsTrained(PartAt(part), instruction.op)) return nullptr;
    if (IsPass(instruction.op)) return &PassPosition(part, instruction.op, instruction.microbatch);
    return &EndOf(part, instruction.op);
  }

  std::string WhyNot(const Instruction& instruction) const {
    const auto links = static_cast<int32_t>(pipeline_.links.size());
    if (IsBackwardMessage(instruction.op) && instruction.link >= 0 && instruction.link < links &&
        !HasGradients(instruction.link)) {
      return " carries a gradient to a part that has no backward pass";
    }
    const size_t part = PositionOfPart(instruction);
    if (part < parts_.size() && !IsTrained(PartAt(part), instruction.op)) {
      return ": the part does not train that";
    }
    return " is no business of this rank";
  }

  // Fills the tables. False if the rest cannot be checked.
  bool Locate() {
    bool known = true;
    for (size_t i = 0; i < program_.size(); ++i) {
      int32_t* entry = EntryOf(program_[i]);
      if (entry == nullptr) {
        Report(At(static_cast<int32_t>(i)), WhyNot(program_[i]));
        known = false;
      } else if (*entry != kAbsent) {
        Report(At(static_cast<int32_t>(i)), " stands twice, at ", *entry, " and ", i);
      } else {
        *entry = static_cast<int32_t>(i);
      }
    }
    report_.runnable &= known;
    return known;
  }

  // `first` before `second`, both there.
  void CheckOrder(int32_t first, int32_t second) {
    if (first == kAbsent || second == kAbsent || first < second) return;
    Report(At(second), " stands before ", At(first));
  }

  void CheckPasses() {
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (int32_t m = 0; m < microbatches_; ++m) {
        int32_t before = kAbsent;
        for (Op op : {Op::kForward, Op::kBackwardInput, Op::kBackwardWeight}) {
          if (!IsTrained(PartAt(i), op)) continue;
          const int32_t position = PassPosition(i, op, m);
          if (position == kAbsent) {
            Report("no ", ToString({.op = op,
                                    .module = PartAt(i).module,
                                    .chunk = PartAt(i).chunk,
                                    .microbatch = m}));
          }
          CheckOrder(before, position);
          before = position;
        }
      }
    }
  }

  int32_t PassOf(const Messages& messages, int32_t microbatch) {
    const Op op = IsForwardMessage(messages.op) ? Op::kForward : Op::kBackwardInput;
    return PassPosition(messages.part, op, microbatch);
  }

  void CheckMessages() {
    for (const Messages& messages : messages_) {
      for (int32_t m = 0; m < microbatches_; ++m) {
        const int32_t position = messages.positions[static_cast<size_t>(m)];
        if (position == kAbsent) {
          Report("no ", ToString({.op = messages.op, .link = messages.link, .microbatch = m}));
        } else if (IsSend(messages.op)) {
          CheckOrder(PassOf(messages, m), position);
        } else {
          CheckOrder(position, PassOf(messages, m));
        }
      }
    }
  }

  // A part with an end of a tied embedding: its weight passes, fold, reduction, gather, spread.
  void CheckTie(size_t i) {
    const TiePositions& tie = ties_.at(PartAt(i).module);
    for (int32_t m = 0; m < microbatches_; ++m) {
      CheckOrder(PassPosition(i, Op::kBackwardWeight, m), tie.fold);
    }
    CheckOrder(tie.fold, EndOf(i, Op::kReduce));
    CheckOrder(EndOf(i, Op::kGather), tie.spread);
  }

  void CheckTies() {
    for (const auto& [module, tie] : ties_) {
      if (tie.fold == kAbsent) Report("no ", ToString({.op = Op::kFold, .module = module}));
      if (tie.spread == kAbsent) Report("no ", ToString({.op = Op::kSpread, .module = module}));
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (PartAt(i).tied >= 0) CheckTie(i);
    }
  }

  // Reductions, record, decision, optimizer, gathers.
  void CheckEnd() {
    if (record_ == kAbsent) Report("no Record");
    if (decide_ == kAbsent) Report("no Decide");
    CheckOrder(record_, decide_);
    CheckTies();
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (!PartAt(i).trains.weights) continue;
      for (Op op : {Op::kReduce, Op::kOptimize, Op::kGather}) {
        if (EndOf(i, op) != kAbsent) continue;
        Report("no ", ToString({.op = op, .module = PartAt(i).module, .chunk = PartAt(i).chunk}));
      }
      const int32_t reduce = EndOf(i, Op::kReduce);
      for (int32_t m = 0; m < microbatches_; ++m) {
        const int32_t pass = PassPosition(i, Op::kBackwardWeight, m);
        CheckOrder(pass, reduce);
      }
      CheckOrder(reduce, record_);
      CheckOrder(decide_, EndOf(i, Op::kOptimize));
      CheckOrder(EndOf(i, Op::kOptimize), EndOf(i, Op::kGather));
    }
  }

  // Of a send and a receive of one message on one rank.
  static bool AreOneExchange(const Instruction& a, const Instruction& b) {
    return a.ticket == b.ticket && a.link == b.link && a.microbatch == b.microbatch &&
           IsForwardMessage(a.op) == IsForwardMessage(b.op) && IsSend(a.op) != IsSend(b.op);
  }

  // On each communicator tickets rise, and all ranks agree on them.
  void CheckTicketOrder() {
    const Instruction* last[3] = {};  // collectives, forward, backward messages
    for (size_t i = 0; i < program_.size(); ++i) {
      const Instruction& instruction = program_[i];
      const bool message = IsMessage(instruction.op);
      if (!message && !IsCollective(instruction.op)) {
        if (instruction.ticket != 0) Report(ToString(instruction), " has a ticket");
        continue;
      }
      if (instruction.ticket <= 0) Report(ToString(instruction), " has no ticket");
      const size_t queue = !message ? 0 : IsForwardMessage(instruction.op) ? 1 : 2;
      const Instruction*& before = last[queue];
      if (before != nullptr && before->ticket >= instruction.ticket) {
        if (!message || !AreOneExchange(*before, instruction)) {
          Report(ToString(instruction), " with ticket ", instruction.ticket, " stands behind ",
                 ToString(*before), " with ticket ", before->ticket);
        } else if (before + 1 != &instruction) {
          Report(ToString(*before), " and ", ToString(instruction),
                 " are one exchange and do not stand together");
        }
      }
      before = &instruction;
      EnterTicket(instruction);
    }
  }

  void EnterTicket(const Instruction& instruction) {
    int32_t part = 0;
    if (instruction.op == Op::kReduce || instruction.op == Op::kGather) {
      part = parts_[PositionOfPart(instruction)];
    }
    const TicketBook::Entry other = tickets_.Enter(instruction, part, rank_);
    if (other.rank == kAbsent) return;
    Report(ToString(instruction), " has ticket ", instruction.ticket, "; rank ", other.rank,
           " gives it ", other.ticket);
  }

  // What an operation needs has a lower ticket: a send the receives of all passes up to its own, a
  // reduction all receives, record and gathers what goes before.
  void CheckNeeds() {
    std::vector<int64_t> needed(program_.size(), 0);  // highest ticket needed by the passes so far
    std::vector<int64_t> needed_by(program_.size(), 0);
    for (const Messages& messages : messages_) {
      for (int32_t m = 0; m < microbatches_; ++m) {
        const int32_t position = messages.positions[static_cast<size_t>(m)];
        const int32_t pass = PassOf(messages, m);
        if (IsSend(messages.op) || position == kAbsent || pass == kAbsent) continue;
        int64_t& ticket = needed_by[static_cast<size_t>(pass)];
        ticket = std::max(ticket, program_[static_cast<size_t>(position)].ticket);
      }
    }
    int64_t highest = 0;
    for (size_t i = 0; i < program_.size(); ++i) {
      if (IsPass(program_[i].op)) highest = std::max(highest, needed_by[i]);
      if (IsCollective(program_[i].op)) {
        CheckNeed(program_[i], highest);
        highest = std::max(highest, program_[i].ticket);
      }
      needed[i] = highest;
    }
    for (const Messages& messages : messages_) {
      for (int32_t m = 0; IsSend(messages.op) && m < microbatches_; ++m) {
        const int32_t position = messages.positions[static_cast<size_t>(m)];
        const int32_t pass = PassOf(messages, m);
        if (position == kAbsent || pass == kAbsent) continue;
        CheckNeed(program_[static_cast<size_t>(position)], needed[static_cast<size_t>(pass)]);
      }
    }
  }
  void CheckNeed(const Instruction& instruction, int64_t needed) {
    if (instruction.ticket > needed) return;
    Report(ToString(instruction), " with ticket ", instruction.ticket,
           " needs an operation with ticket ", needed);
  }

  void CountLive() {
    int32_t live = 0, most = 0;
    for (const Instruction& instruction : program_) {
      if (!IsPass(instruction.op)) continue;
      const plan::Trains& trains = PartAt(PositionOfPart(instruction)).trains;
      if (!trains.any()) continue;
      const Op last = trains.weights ? Op::kBackwardWeight : Op::kBackwardInput;
      if (instruction.op == Op::kForward) most = std::max(most, ++live);
      if (instruction.op == last) --live;
    }
    report_.live_activations_max[static_cast<size_t>(rank_)] = most;
  }

  const Pipeline& pipeline_;
  const std::vector<int32_t>& parts_;
  const int32_t microbatches_;
  const int32_t rank_;
  const Program& program_;
  TicketBook& tickets_;
  RuleReport& report_;

  std::vector<Messages> messages_;
  std::vector<int32_t> passes_;  // position by part, pass, microbatch
  std::vector<int32_t> ends_;    // position of reduce, optimize, gather of each part
  int32_t record_ = kAbsent, decide_ = kAbsent;
  struct TiePositions {
    int32_t fold = kAbsent, spread = kAbsent;
  };
  std::map<int32_t, TiePositions> ties_;  // by module
};

}  // namespace

RuleReport CheckRules(const Pipeline& pipeline, const Wiring& wiring,
                      const std::vector<const Program*>& programs) {
  RuleReport report;
  report.live_activations_max.assign(programs.size(), 0);
  TicketBook tickets(pipeline, wiring.microbatches);
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    RankRules(pipeline, wiring, static_cast<int32_t>(rank), *programs[rank], tickets, report)
        .Check();
  }
  for (std::string& problem : tickets.Shared()) {
    if (report.problems.size() < kProblemsMax) report.problems.push_back(std::move(problem));
  }
  return report;
}

}  // namespace phalanx::schedule
