#include "core/schedule/program.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "core/schedule/builder.h"
#include "core/schedule/order_rules.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/timeline.h"

namespace phalanx::schedule {
namespace {

// Ticks of the longest pass: fine enough for any ratio, and far from overflow over a step.
constexpr double kTicksMax = 1 << 20;

std::vector<TickCost> TickCosts(const Pipeline& pipeline, const CostModel& model) {
  double longest = 0;
  for (const std::vector<PartCost>& parts : model.parts) {
    for (const PartCost& cost : parts) {
      longest = std::max({longest, cost.forward, cost.backward_input, cost.backward_weight});
    }
  }
  const auto ticks = [longest](double seconds) {
    return longest > 0 ? std::max<int64_t>(1, std::llround(seconds / longest * kTicksMax)) : 1;
  };
  std::vector<TickCost> costs;
  for (const Part& part : pipeline.parts) {
    const auto m = static_cast<size_t>(part.module);
    const PartCost& cost =
        model.parts[m][static_cast<size_t>(part.stage * pipeline.chunks[m] + part.chunk)];
    costs.push_back({ticks(cost.forward), ticks(cost.backward_input), ticks(cost.backward_weight)});
  }
  return costs;
}

// The shortest timeline that the rules of the schedule allow.
Timeline BestTimeline(const plan::Plan& plan, const Pipeline& pipeline, const CostModel& costs) {
  const std::vector<TickCost> ticks = TickCosts(pipeline, costs);
  Timeline best;
  for (const OrderRules& rules : RulesOf(plan, pipeline)) {
    Timeline timeline = MakeTimeline(pipeline, rules, ticks);
    if (best.passes.empty() || timeline.end < best.end) best = std::move(timeline);
  }
  return best;
}

bool HasUpdate(const Part& part) { return part.trains.weights; }

// Places of the collectives of a step in the order of tickets.
struct CollectiveTickets {
  std::vector<int64_t> reduce, gather;  // of each part
  std::vector<int64_t> fold, spread;    // of each part that leads a tied embedding
  int64_t record = 0;
};

// Everything that does not depend on the rank.
struct StepPlan {
  const Pipeline& pipeline;
  Timeline timeline;
  std::vector<int64_t> message_tickets;  // of timeline.messages
  CollectiveTickets collectives;
};

// Messages, folds and reductions by time, then the record, the gathers and the spreads by part.
void NumberTickets(StepPlan& step) {
  CollectiveTickets& tickets = step.collectives;
  const std::vector<Part>& parts = step.pipeline.parts;
  struct Reduction {
    int64_t time;
    int64_t* ticket;
  };
  std::vector<Reduction> reductions;
  for (std::vector<int64_t>* list : {&tickets.reduce, &tickets.fold, &tickets.spread}) {
    list->resize(parts.size());
  }
  const auto end_of = [&](const Part& part) {
    int64_t time = 0;
    for (int32_t c : part.classes) {
      time = std::max(time, step.timeline.class_end[static_cast<size_t>(c)]);
    }
    return time;
  };
  for (size_t p = 0; p < parts.size(); ++p) {
    if (!HasUpdate(parts[p])) continue;
    int64_t time = end_of(parts[p]);
    // Reductions sum in place, so those of both ends come behind the fold.
    if (parts[p].tied >= 0)
      time = std::max(time, end_of(parts[static_cast<size_t>(parts[p].tied)]));
    if (parts[p].leads) reductions.push_back({time, &tickets.fold[p]});
    reductions.push_back({time, &tickets.reduce[p]});
  }
  std::stable_sort(reductions.begin(), reductions.end(),
                   [](const Reduction& a, const Reduction& b) { return a.time < b.time; });
  int64_t ticket = 0;
  size_t reduced = 0;
  const auto number_reductions_before = [&](int64_t time) {
    for (; reduced < reductions.size() && reductions[reduced].time < time; ++reduced) {
      *reductions[reduced].ticket = ++ticket;
    }
  };
  for (const Message& message : step.timeline.messages) {
    number_reductions_before(message.time);
    step.message_tickets.push_back(++ticket);
  }
  number_reductions_before(INT64_MAX);
  tickets.record = ++ticket;
  for (size_t p = 0; p < parts.size(); ++p) tickets.gather.push_back(++ticket);
  for (size_t p = 0; p < parts.size(); ++p) {
    if (parts[p].leads) tickets.spread[p] = ++ticket;
  }
}

StepPlan PlanStep(const plan::Plan& plan, const Pipeline& pipeline, const CostModel& costs) {
  StepPlan step = {.pipeline = pipeline, .timeline = BestTimeline(plan, pipeline, costs)};
  NumberTickets(step);
  return step;
}

struct DueMessage {
  Instruction instruction;
  int64_t time = 0;
};

// The messages of one rank on one communicator, in ticket order, as far as they are in the program.
class MessageQueue {
 public:
  void Add(const Instruction& instruction, int64_t time) {
    messages_.push_back({instruction, time});
  }
  // Marks as due everything up to the last message that has to be there when a pass begins: a send
  // whose time has come, or what the pass itself receives. What stands before it was there before.
  template <typename IsNeeded>
  void FindDue(int64_t begin, IsNeeded is_needed) {
    size_t due = next_;
    for (size_t i = next_; i < messages_.size() && messages_[i].time <= begin; ++i) {
      const Instruction& message = messages_[i].instruction;
      const bool other_half =
          due == i && i > next_ && messages_[i - 1].instruction.ticket == message.ticket;
      if (IsSend(message.op) || is_needed(message) || other_half) due = i + 1;
    }
    due_ = due;
  }
  void FindRest() { due_ = messages_.size(); }
  bool HasDue() const { return next_ < due_; }
  // At one time sends come first: what is received then does not need them, nor they it.
  bool GoesBefore(const MessageQueue& other) const {
    const DueMessage &a = messages_[next_], &b = other.messages_[other.next_];
    return std::tuple(a.time, !IsSend(a.instruction.op), a.instruction.ticket) <
           std::tuple(b.time, !IsSend(b.instruction.op), b.instruction.ticket);
  }
  // The next operation: one message, or the send and the receive of an exchange.
  void Take(Program& program) {
    const int64_t ticket = messages_[next_].instruction.ticket;
    while (HasDue() && messages_[next_].instruction.ticket == ticket) {
      program.push_back(messages_[next_++].instruction);
    }
  }

 private:
  std::vector<DueMessage> messages_;
  size_t next_ = 0, due_ = 0;
};

constexpr Op OpOf(PassKind kind) {
  return kind == PassKind::kForward         ? Op::kForward
         : kind == PassKind::kBackwardInput ? Op::kBackwardInput
                                            : Op::kBackwardWeight;
}

// Writes the program of one rank class.
class ProgramWriter {
 public:
  ProgramWriter(const StepPlan& step, const RankClass& ranks) : step_(step) {
    held_.resize(step.pipeline.parts.size(), false);
    crew_of_.resize(step.pipeline.parts.size(), -1);
    for (size_t i = 0; i < ranks.parts.size(); ++i) {
      held_[static_cast<size_t>(ranks.parts[i])] = true;
      crew_of_[static_cast<size_t>(ranks.parts[i])] = ranks.crews[i];
    }
    FillQueues();
  }

  // Receives are put off until a pass needs them or a send behind them is due.
  Program WritePasses() {
    for (const TimedPass& timed : step_.timeline.passes) {
      if (crew_of_[static_cast<size_t>(timed.part)] != timed.crew) continue;
      const Part& part = step_.pipeline.parts[static_cast<size_t>(timed.part)];
      const Op op = OpOf(timed.kind);
      const auto needs = [&](const Instruction& message) {
        if (message.microbatch != timed.microbatch) return false;
        const LinkParts& ends = step_.pipeline.links[static_cast<size_t>(message.link)];
        return message.op == Op::kReceiveForward
                   ? op == Op::kForward && ends.to == timed.part
                   : message.op == Op::kReceiveBackward && op == Op::kBackwardInput &&
                         ends.from == timed.part;
      };
      forward_.FindDue(timed.begin, needs);
      backward_.FindDue(timed.begin, needs);
      MoveDue();
      program_.push_back(
          {.op = op, .module = part.module, .chunk = part.chunk, .microbatch = timed.microbatch});
    }
    forward_.FindRest();
    backward_.FindRest();
    MoveDue();
    return std::move(program_);
  }

 private:
  // In order of time over both communicators: before a host blocks in a receive it has sent
  // whatever the other side may be waiting for.
  void MoveDue() {
    while (forward_.HasDue() || backward_.HasDue()) {
      const bool forward =
          !backward_.HasDue() || (forward_.HasDue() && forward_.GoesBefore(backward_));
      (forward ? forward_ : backward_).Take(program_);
    }
  }

  void FillQueues() {
    for (size_t i = 0; i < step_.timeline.messages.size(); ++i) {
      const Message& message = step_.timeline.messages[i];
      const LinkParts& ends = step_.pipeline.links[static_cast<size_t>(message.link)];
      const bool has_from = held_[static_cast<size_t>(ends.from)];
      const bool has_to = held_[static_cast<size_t>(ends.to)];
      Instruction instruction = {.link = message.link,
                                 .microbatch = message.microbatch,
                                 .ticket = step_.message_tickets[i]};
      MessageQueue& queue = message.backward ? backward_ : forward_;
      if (message.backward ? has_to : has_from) {
        instruction.op = message.backward ? Op::kSendBackward : Op::kSendForward;
        queue.Add(instruction, message.time);
      }
      if (message.backward ? has_from : has_to) {
        instruction.op = message.backward ? Op::kReceiveBackward : Op::kReceiveForward;
        queue.Add(instruction, message.time);
      }
    }
  }

  const StepPlan& step_;
  std::vector<bool> held_;        // parts of this class
  std::vector<int32_t> crew_of_;  // of each part, -1: not held
  MessageQueue forward_, backward_;
  Program program_;
};

// Folds and reductions in ticket order, record, decision, then optimizer and gather of each part
// that has parameters which train, then spreads.
void AppendEnd(const StepPlan& step, std::vector<int32_t> parts, Program& program) {
  std::erase_if(parts, [&step](int32_t part) {
    return !HasUpdate(step.pipeline.parts[static_cast<size_t>(part)]);
  });
  const CollectiveTickets& tickets = step.collectives;
  const auto append = [&](Op op, int32_t part, int64_t ticket) {
    const Part& p = step.pipeline.parts[static_cast<size_t>(part)];
    program.push_back({.op = op, .module = p.module, .chunk = p.chunk, .ticket = ticket});
  };
  // Parts that lead a tied embedding with an end here.
  std::set<int32_t> leads;
  for (int32_t part : parts) {
    const Part& p = step.pipeline.parts[static_cast<size_t>(part)];
    if (p.tied >= 0) leads.insert(p.leads ? part : p.tied);
  }
  const size_t begin = program.size();
  for (int32_t lead : leads) append(Op::kFold, lead, tickets.fold[static_cast<size_t>(lead)]);
  for (int32_t part : parts) {
    append(Op::kReduce, part, tickets.reduce[static_cast<size_t>(part)]);
  }
  std::sort(program.begin() + static_cast<std::ptrdiff_t>(begin), program.end(),
            [](const Instruction& a, const Instruction& b) { return a.ticket < b.ticket; });
  program.push_back({.op = Op::kRecord, .ticket = tickets.record});
  program.push_back({.op = Op::kDecide});
  for (int32_t part : parts) {
    append(Op::kOptimize, part, 0);
    append(Op::kGather, part, tickets.gather[static_cast<size_t>(part)]);
  }
  for (int32_t lead : leads) append(Op::kSpread, lead, tickets.spread[static_cast<size_t>(lead)]);
}

Program WriteStep(const StepPlan& step, int32_t rank_class) {
  Program program;
  if (rank_class < 0) {
    AppendEnd(step, {}, program);
    return program;
  }
  const RankClass& ranks = step.pipeline.classes[static_cast<size_t>(rank_class)];
  program = ProgramWriter(step, ranks).WritePasses();
  AppendEnd(step, ranks.parts, program);
  return program;
}

std::vector<Program> WriteStepOfClasses(const StepPlan& step) {
  std::vector<Program> programs;
  for (size_t c = 0; c < step.pipeline.classes.size(); ++c) {
    programs.push_back(WriteStep(step, static_cast<int32_t>(c)));
  }
  return programs;
}

}  // namespace

absl::StatusOr<std::vector<Program>> BuildStepOfClasses(const plan::Plan& plan,
                                                        const Pipeline& pipeline,
                                                        const CostModel& costs) {
  const StepPlan step = PlanStep(plan, pipeline, costs);
  return WriteStepOfClasses(step);
}

absl::StatusOr<std::vector<Program>> BuildStepWithCosts(const plan::Plan& plan,
                                                        const CostModel& costs) {
  const Pipeline pipeline = MakePipeline(plan);
  const StepPlan step = PlanStep(plan, pipeline, costs);
  const std::vector<Program> of_classes = WriteStepOfClasses(step);
  const Program idle = WriteStep(step, -1);
  std::vector<Program> programs;
  programs.reserve(static_cast<size_t>(plan.world));
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const int32_t c = ClassOf(pipeline, plan, Rank{rank});
    programs.push_back(c < 0 ? idle : of_classes[static_cast<size_t>(c)]);
  }
  return programs;
}

absl::StatusOr<std::vector<Program>> BuildStep(const plan::Plan& plan) {
  return BuildStepWithCosts(plan, CostFromShapes(plan));
}

absl::StatusOr<Program> BuildStepOf(const plan::Plan& plan, Rank rank) {
  const Pipeline pipeline = MakePipeline(plan);
  const StepPlan step = PlanStep(plan, pipeline, CostFromShapes(plan));
  return WriteStep(step, ClassOf(pipeline, plan, rank));
}

Program BuildEvaluationOf(const plan::Plan& plan, Rank rank, int64_t microbatches) {
  Pipeline pipeline = MakePipeline(plan);
  pipeline.microbatches = static_cast<int32_t>(microbatches);
  const int32_t c = ClassOf(pipeline, plan, rank);
  if (c < 0) return {};
  for (Part& part : pipeline.parts) part.trains = {};
  for (LinkParts& link : pipeline.links) link.gradients = false;
  StepPlan step = {.pipeline = pipeline,
                   .timeline = MakeTimeline(pipeline, EvaluationRulesOf(pipeline),
                                            TickCosts(pipeline, CostFromShapes(plan)))};
  NumberTickets(step);
  return ProgramWriter(step, pipeline.classes[static_cast<size_t>(c)]).WritePasses();
}

}  // namespace phalanx::schedule
