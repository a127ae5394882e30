#include "core/schedule/program.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/schedule/builder.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/simulator.h"
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

absl::StatusOr<std::vector<std::vector<Pass>>> StepOrders(const plan::Plan& plan,
                                                          const Pipeline& pipeline) {
  using job::ScheduleName;
  const auto unknown = [](absl::string_view name) {
    return absl::UnimplementedError(
        absl::StrCat("spec.schedule.name: ", name, ": this release builds 1f1b (or auto)"));
  };
  switch (plan.spec.schedule.name) {
    case ScheduleName::kAuto:
    case ScheduleName::k1F1B:
      break;
    case ScheduleName::kInterleaved:
      return unknown("interleaved");
    case ScheduleName::kZeroBubbleH1:
      return unknown("zero_bubble_h1");
    case ScheduleName::kZeroBubbleV:
      return unknown("zero_bubble_v");
    case ScheduleName::kThreePhase:
      return unknown("three_phase");
  }
  std::vector<std::vector<Pass>> orders;
  for (const Part& part : pipeline.parts) {
    if (part.chunk > 0) {
      return absl::UnimplementedError(absl::StrCat(
          "spec.schedule.chunks: ", plan.spec.schedule.chunks, ": 1f1b has one chunk a stage"));
    }
    orders.push_back(
        OneForwardOneBackward(pipeline.stages - part.graph_stage - 1, pipeline.microbatches));
  }
  return orders;
}

// Places of the collectives of a step in the order of tickets.
struct CollectiveTickets {
  std::vector<int64_t> reduce, gather;  // of each part
  int64_t record = 0;
};

// Everything that does not depend on the rank.
struct StepPlan {
  const Pipeline& pipeline;
  Timeline timeline;
  std::vector<int64_t> message_tickets;  // of timeline.messages
  CollectiveTickets collectives;
};

// Messages and reductions by time, then the record, then the gathers by part.
void NumberTickets(StepPlan& step) {
  struct Reduction {
    int64_t time;
    int32_t part;
  };
  std::vector<Reduction> reductions;
  for (size_t p = 0; p < step.pipeline.parts.size(); ++p) {
    int64_t time = 0;
    for (int32_t c : step.pipeline.parts[p].classes) {
      time = std::max(time, step.timeline.class_end[static_cast<size_t>(c)]);
    }
    reductions.push_back({time, static_cast<int32_t>(p)});
  }
  std::sort(reductions.begin(), reductions.end(), [](const Reduction& a, const Reduction& b) {
    return std::tie(a.time, a.part) < std::tie(b.time, b.part);
  });
  step.collectives.reduce.resize(reductions.size());
  int64_t ticket = 0;
  size_t reduced = 0;
  const auto number_reductions_before = [&](int64_t time) {
    for (; reduced < reductions.size() && reductions[reduced].time < time; ++reduced) {
      step.collectives.reduce[static_cast<size_t>(reductions[reduced].part)] = ++ticket;
    }
  };
  for (const Message& message : step.timeline.messages) {
    number_reductions_before(message.time);
    step.message_tickets.push_back(++ticket);
  }
  number_reductions_before(INT64_MAX);
  step.collectives.record = ++ticket;
  for (size_t p = 0; p < step.pipeline.parts.size(); ++p) {
    step.collectives.gather.push_back(++ticket);
  }
}

absl::StatusOr<StepPlan> PlanStep(const plan::Plan& plan, const Pipeline& pipeline,
                                  const CostModel& costs) {
  StepPlan step = {.pipeline = pipeline};
  ASSIGN_OR_RETURN(const auto orders, StepOrders(plan, step.pipeline));
  step.timeline = MakeTimeline(pipeline, orders, TickCosts(pipeline, costs));
  NumberTickets(step);
  return step;
}

// The messages of one rank on one communicator, in ticket order, as far as they are in the program.
struct MessageQueue {
  std::vector<Instruction> messages;
  size_t next = 0;

  void MoveThrough(int64_t ticket, Program& program) {
    for (; next < messages.size() && messages[next].ticket <= ticket; ++next) {
      program.push_back(messages[next]);
    }
  }
};

// Writes the program of one rank class.
class ProgramWriter {
 public:
  ProgramWriter(const StepPlan& step, const RankClass& ranks) : step_(step), ranks_(ranks) {
    held_.resize(step.pipeline.parts.size(), false);
    for (int32_t part : ranks.parts) held_[static_cast<size_t>(part)] = true;
    FillQueues();
  }

  // Receives are put off until a pass needs them or a message behind them is due.
  Program WritePasses() {
    for (const TimedPass& timed : step_.timeline.passes) {
      if (!held_[static_cast<size_t>(timed.part)]) continue;
      const Part& part = step_.pipeline.parts[static_cast<size_t>(timed.part)];
      const bool backward = timed.pass.backward;
      MessageQueue& queue = backward ? backward_ : forward_;
      const int32_t microbatch = timed.pass.microbatch;
      MoveMessages(backward ? part.links_out : part.links_in, backward, microbatch, queue);
      Append(part, backward ? Op::kBackwardInput : Op::kForward, microbatch);
      MoveMessages(backward ? part.links_in : part.links_out, backward, microbatch, queue);
      if (backward) Append(part, Op::kBackwardWeight, microbatch);
    }
    return std::move(program_);
  }

 private:
  // Tickets of a link in one direction, by microbatch: both ends look them up.
  static size_t Index(int32_t link, bool backward) {
    return 2 * static_cast<size_t>(link) + (backward ? 1 : 0);
  }

  void FillQueues() {
    tickets_.resize(2 * step_.pipeline.links.size());
    for (size_t i = 0; i < step_.timeline.messages.size(); ++i) {
      const Message& message = step_.timeline.messages[i];
      const LinkParts& ends = step_.pipeline.links[static_cast<size_t>(message.link)];
      const bool has_from = held_[static_cast<size_t>(ends.from)];
      const bool has_to = held_[static_cast<size_t>(ends.to)];
      if (!has_from && !has_to) continue;
      const int64_t ticket = step_.message_tickets[i];
      std::vector<int64_t>& tickets = tickets_[Index(message.link, message.backward)];
      if (tickets.size() <= static_cast<size_t>(message.microbatch)) {
        tickets.resize(static_cast<size_t>(message.microbatch) + 1);
      }
      tickets[static_cast<size_t>(message.microbatch)] = ticket;
      Instruction instruction = {
          .link = message.link, .microbatch = message.microbatch, .ticket = ticket};
      std::vector<Instruction>& queue = (message.backward ? backward_ : forward_).messages;
      if (message.backward ? has_to : has_from) {
        instruction.op = message.backward ? Op::kSendBackward : Op::kSendForward;
        queue.push_back(instruction);
      }
      if (message.backward ? has_from : has_to) {
        instruction.op = message.backward ? Op::kReceiveBackward : Op::kReceiveForward;
        queue.push_back(instruction);
      }
    }
  }

  void MoveMessages(const std::vector<int32_t>& links, bool backward, int32_t microbatch,
                    MessageQueue& queue) {
    for (int32_t link : links) {
      queue.MoveThrough(tickets_[Index(link, backward)][static_cast<size_t>(microbatch)], program_);
    }
  }

  void Append(const Part& part, Op op, int32_t microbatch) {
    program_.push_back(
        {.op = op, .module = part.module, .chunk = part.chunk, .microbatch = microbatch});
  }

  const StepPlan& step_;
  const RankClass& ranks_;
  std::vector<bool> held_;  // parts of this class
  std::vector<std::vector<int64_t>> tickets_;
  MessageQueue forward_, backward_;
  Program program_;
};

// Reductions in ticket order, record, decision, then optimizer and gather of each part.
void AppendEnd(const StepPlan& step, std::vector<int32_t> parts, Program& program) {
  const CollectiveTickets& tickets = step.collectives;
  const auto append = [&](Op op, int32_t part, int64_t ticket) {
    const Part& p = step.pipeline.parts[static_cast<size_t>(part)];
    program.push_back({.op = op, .module = p.module, .chunk = p.chunk, .ticket = ticket});
  };
  std::vector<int32_t> by_ticket = parts;
  std::sort(by_ticket.begin(), by_ticket.end(), [&tickets](int32_t a, int32_t b) {
    return tickets.reduce[static_cast<size_t>(a)] < tickets.reduce[static_cast<size_t>(b)];
  });
  for (int32_t part : by_ticket) {
    append(Op::kReduce, part, tickets.reduce[static_cast<size_t>(part)]);
  }
  program.push_back({.op = Op::kRecord, .ticket = tickets.record});
  program.push_back({.op = Op::kDecide});
  for (int32_t part : parts) {
    append(Op::kOptimize, part, 0);
    append(Op::kGather, part, tickets.gather[static_cast<size_t>(part)]);
  }
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
  ASSIGN_OR_RETURN(const StepPlan step, PlanStep(plan, pipeline, costs));
  return WriteStepOfClasses(step);
}

absl::StatusOr<std::vector<Program>> BuildStepWithCosts(const plan::Plan& plan,
                                                        const CostModel& costs) {
  const Pipeline pipeline = MakePipeline(plan);
  ASSIGN_OR_RETURN(const StepPlan step, PlanStep(plan, pipeline, costs));
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
  ASSIGN_OR_RETURN(const StepPlan step, PlanStep(plan, pipeline, CostFromShapes(plan)));
  return WriteStep(step, ClassOf(pipeline, plan, rank));
}

Program BuildEvaluationOf(const plan::Plan& plan, Rank rank, int64_t microbatches) {
  Pipeline pipeline = MakePipeline(plan);
  pipeline.microbatches = static_cast<int32_t>(microbatches);
  const int32_t c = ClassOf(pipeline, plan, rank);
  if (c < 0) return {};
  // As in training, with backward passes of no length that are left out afterwards: so no part runs
  // further ahead of its consumers, and no more activations wait between them, than in a step.
  std::vector<TickCost> costs = TickCosts(pipeline, CostFromShapes(plan));
  std::vector<std::vector<Pass>> orders;
  for (size_t p = 0; p < pipeline.parts.size(); ++p) {
    const int32_t warmup = pipeline.stages - pipeline.parts[p].graph_stage - 1;
    orders.push_back(OneForwardOneBackward(warmup, pipeline.microbatches));
    costs[p].backward_input = costs[p].backward_weight = 1;
  }
  StepPlan step = {.pipeline = pipeline, .timeline = MakeTimeline(pipeline, orders, costs)};
  std::erase_if(step.timeline.passes, [](const TimedPass& timed) { return timed.pass.backward; });
  std::erase_if(step.timeline.messages, [](const Message& message) { return message.backward; });
  NumberTickets(step);
  return ProgramWriter(step, pipeline.classes[static_cast<size_t>(c)]).WritePasses();
}

}  // namespace phalanx::schedule
