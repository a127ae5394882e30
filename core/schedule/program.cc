#include "core/schedule/program.h"

#include <algorithm>
#include <array>
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

// A fold or a reduction: when all that it needs is there on all its ranks, and its ticket.
struct Reduction {
  Op op = Op::kReduce;
  int32_t part = 0;  // of a fold: the one that leads
  int64_t time = 0;
  int64_t ticket = 0;
};

// Places of the collectives of a step in the order of tickets.
struct CollectiveTickets {
  std::vector<Reduction> reductions;  // in their order
  // Of each part those that its ranks take part in: indices, ascending.
  std::vector<std::vector<size_t>> reductions_of_part;
  std::vector<int64_t> gather;  // of each part
  std::vector<int64_t> spread;  // of each part that leads a tied embedding
  int64_t record = 0;
};

// Everything that does not depend on the rank.
struct StepPlan {
  const Pipeline& pipeline;
  Timeline timeline;
  std::vector<std::vector<size_t>> passes_of_crew;    // indices into timeline.passes, ascending
  std::vector<std::vector<size_t>> messages_of_link;  // and into timeline.messages
  std::vector<int64_t> message_tickets;               // of timeline.messages
  CollectiveTickets collectives;
};

// So that the programs of all classes together cost as much as the timeline has entries.
StepPlan IndexedBy(const Pipeline& pipeline, Timeline timeline) {
  StepPlan step = {.pipeline = pipeline, .timeline = std::move(timeline)};
  step.passes_of_crew.resize(pipeline.crews.size());
  step.messages_of_link.resize(pipeline.links.size());
  for (size_t i = 0; i < step.timeline.passes.size(); ++i)
    step.passes_of_crew[static_cast<size_t>(step.timeline.passes[i].crew)].push_back(i);
  for (size_t i = 0; i < step.timeline.messages.size(); ++i)
    step.messages_of_link[static_cast<size_t>(step.timeline.messages[i].link)].push_back(i);
  return step;
}

// What is in the lists of `owners`, each of which may come more than once: ascending, each once.
std::vector<size_t> Merged(const std::vector<std::vector<size_t>>& lists,
                           std::vector<int32_t> owners) {
  std::sort(owners.begin(), owners.end());
  owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
  std::vector<size_t> merged;
  for (int32_t owner : owners) {
    const std::vector<size_t>& list = lists[static_cast<size_t>(owner)];
    merged.insert(merged.end(), list.begin(), list.end());
  }
  if (owners.size() > 1) {
    std::sort(merged.begin(), merged.end());
    merged.erase(std::unique(merged.begin(), merged.end()), merged.end());
  }
  return merged;
}

// Each as soon as the last weight pass of its part has run.
std::vector<Reduction> ReductionsOf(const StepPlan& step) {
  const std::vector<Part>& parts = step.pipeline.parts;
  std::vector<Reduction> reductions;
  for (size_t p = 0; p < parts.size(); ++p) {
    if (!HasUpdate(parts[p])) continue;
    int64_t time = step.timeline.part_end[p];
    // Reductions sum in place, so those of both ends come behind the fold.
    if (parts[p].tied >= 0)
      time = std::max(time, step.timeline.part_end[static_cast<size_t>(parts[p].tied)]);
    const auto part = static_cast<int32_t>(p);
    if (parts[p].leads) reductions.push_back({.op = Op::kFold, .part = part, .time = time});
    reductions.push_back({.op = Op::kReduce, .part = part, .time = time});
  }
  std::stable_sort(
      reductions.begin(), reductions.end(), [](const Reduction& a, const Reduction& b) {
        return std::tuple(a.time, a.op != Op::kFold) < std::tuple(b.time, b.op != Op::kFold);
      });
  return reductions;
}

// Messages, folds and reductions by time, then the record, the gathers and the spreads by part.
void NumberTickets(StepPlan& step) {
  CollectiveTickets& tickets = step.collectives;
  const std::vector<Part>& parts = step.pipeline.parts;
  tickets.reductions = ReductionsOf(step);
  tickets.reductions_of_part.resize(parts.size());
  for (size_t i = 0; i < tickets.reductions.size(); ++i) {
    const auto& [op, part, time, number] = tickets.reductions[i];
    tickets.reductions_of_part[static_cast<size_t>(part)].push_back(i);
    if (op != Op::kFold) continue;
    const int32_t other_end = parts[static_cast<size_t>(part)].tied;
    tickets.reductions_of_part[static_cast<size_t>(other_end)].push_back(i);
  }
  tickets.spread.resize(parts.size());
  int64_t ticket = 0;
  auto reduction = tickets.reductions.begin();
  const auto number_reductions_before = [&](int64_t time) {
    for (; reduction != tickets.reductions.end() && reduction->time < time; ++reduction) {
      reduction->ticket = ++ticket;
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
  StepPlan step = IndexedBy(pipeline, BestTimeline(plan, pipeline, costs));
  NumberTickets(step);
  return step;
}

struct QueuedOperation {
  Instruction instruction;
  int64_t time = 0;
};

// What one rank does on one communicator, or on those of its reductions, in ticket order, as far as
// it is in the program.
class OperationQueue {
 public:
  void Add(const Instruction& instruction, int64_t time) {
    operations_.push_back({instruction, time});
  }
  // Marks as due everything up to the last operation that has to be there when a pass begins: one
  // whose time has come, and of receives what the pass itself needs. What stands before it was
  // there before.
  template <typename IsNeeded>
  void FindDue(int64_t begin, IsNeeded is_needed) {
    size_t due = next_;
    for (size_t i = next_; i < operations_.size() && operations_[i].time <= begin; ++i) {
      const Instruction& operation = operations_[i].instruction;
      const bool other_half =
          due == i && i > next_ && operations_[i - 1].instruction.ticket == operation.ticket;
      if (!IsReceive(operation.op) || is_needed(operation) || other_half) due = i + 1;
    }
    due_ = due;
  }
  void FindRest() { due_ = operations_.size(); }
  bool HasDue() const { return next_ < due_; }
  // At one time sends come first: what is received then does not need them, nor they it.
  bool GoesBefore(const OperationQueue& other) const {
    if (!HasDue() || !other.HasDue()) return HasDue();
    const QueuedOperation &a = operations_[next_], &b = other.operations_[other.next_];
    return std::tuple(a.time, !IsSend(a.instruction.op), a.instruction.ticket) <
           std::tuple(b.time, !IsSend(b.instruction.op), b.instruction.ticket);
  }
  // The next operation: a reduction, a message, or the send and the receive of an exchange.
  void Take(Program& program) {
    const int64_t ticket = operations_[next_].instruction.ticket;
    while (HasDue() && operations_[next_].instruction.ticket == ticket) {
      program.push_back(operations_[next_++].instruction);
    }
  }

 private:
  std::vector<QueuedOperation> operations_;
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
  ProgramWriter(const StepPlan& step, const RankClass& ranks) : step_(step), ranks_(ranks) {
    FillMessages();
    FillReductions();
  }

  // Receives are put off until a pass needs them or a send behind them is due.
  Program WritePasses() {
    for (size_t i : Merged(step_.passes_of_crew, ranks_.crews)) {
      const TimedPass& timed = step_.timeline.passes[i];
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
      for (OperationQueue& queue : queues_) queue.FindDue(timed.begin, needs);
      MoveDue();
      program_.push_back(
          {.op = op, .module = part.module, .chunk = part.chunk, .microbatch = timed.microbatch});
    }
    for (OperationQueue& queue : queues_) queue.FindRest();
    MoveDue();
    return std::move(program_);
  }

 private:
  // In order of time over all queues: before a host blocks in a receive or a reduction it has sent
  // whatever the other side may be waiting for.
  void MoveDue() {
    while (true) {
      OperationQueue* first = &queues_[0];
      for (OperationQueue& queue : queues_) {
        if (queue.GoesBefore(*first)) first = &queue;
      }
      if (!first->HasDue()) return;
      first->Take(program_);
    }
  }

  bool Holds(int32_t part) const {
    return std::binary_search(ranks_.parts.begin(), ranks_.parts.end(), part);
  }

  void FillMessages() {
    std::vector<int32_t> links;
    for (int32_t part : ranks_.parts) {
      const Part& held = step_.pipeline.parts[static_cast<size_t>(part)];
      links.insert(links.end(), held.links_in.begin(), held.links_in.end());
      links.insert(links.end(), held.links_out.begin(), held.links_out.end());
    }
    for (size_t i : Merged(step_.messages_of_link, std::move(links))) {
      const Message& message = step_.timeline.messages[i];
      const LinkParts& ends = step_.pipeline.links[static_cast<size_t>(message.link)];
      const bool has_from = Holds(ends.from);
      const bool has_to = Holds(ends.to);
      Instruction instruction = {.link = message.link,
                                 .microbatch = message.microbatch,
                                 .ticket = step_.message_tickets[i]};
      OperationQueue& queue = queues_[message.backward ? 1 : 0];
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

  void FillReductions() {
    const CollectiveTickets& tickets = step_.collectives;
    for (size_t i : Merged(tickets.reductions_of_part, ranks_.parts)) {
      const Reduction& reduction = tickets.reductions[i];
      const Part& part = step_.pipeline.parts[static_cast<size_t>(reduction.part)];
      queues_[2].Add({.op = reduction.op,
                      .module = part.module,
                      .chunk = part.chunk,
                      .ticket = reduction.ticket},
                     reduction.time);
    }
  }

  const StepPlan& step_;
  const RankClass& ranks_;
  std::array<OperationQueue, 3> queues_;  // forward messages, backward messages, reductions
  Program program_;
};

// Record, decision, then optimizer and gather of each part that has parameters which train, then
// spreads.
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
  StepPlan step = IndexedBy(pipeline, MakeTimeline(pipeline, EvaluationRulesOf(pipeline),
                                                   TickCosts(pipeline, CostFromShapes(plan))));
  NumberTickets(step);
  return ProgramWriter(step, pipeline.classes[static_cast<size_t>(c)]).WritePasses();
}

}  // namespace phalanx::schedule
