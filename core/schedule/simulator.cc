#include "core/schedule/simulator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/status.h"
#include "core/schedule/bound.h"
#include "core/schedule/builder.h"
#include "core/schedule/execution.h"
#include "core/schedule/order_rules.h"
#include "core/schedule/overlap.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/wiring.h"

namespace phalanx::schedule {
namespace {

// Where the replicas of a module differ: those of one kind, or of all kinds the most or the least.
constexpr int32_t kLongest = -1, kShortest = -2;

// What a part takes; passes that training leaves out take no time. `kind`: of its module's
// replicas.
PartCost CostOf(const Pipeline& pipeline, const CostModel& costs, int32_t p, int32_t kind) {
  const Part& part = pipeline.parts[static_cast<size_t>(p)];
  const auto m = static_cast<size_t>(part.module);
  const auto index = static_cast<size_t>(part.stage * pipeline.chunks[m] + part.chunk);
  PartCost seconds = costs.parts[m][index];
  if (m < costs.replicas.size() && !costs.replicas[m].kinds.empty()) {
    const std::vector<ReplicaKind>& kinds = costs.replicas[m].kinds;
    seconds = kinds[static_cast<size_t>(std::max(kind, 0))].parts[index];
    for (const ReplicaKind& each : kinds) {
      if (kind >= 0) break;
      const PartCost& other = each.parts[index];
      const auto choose = [kind](double a, double b) {
        return kind == kLongest ? std::max(a, b) : std::min(a, b);
      };
      seconds.forward = choose(seconds.forward, other.forward);
      seconds.backward_input = choose(seconds.backward_input, other.backward_input);
      seconds.backward_weight = choose(seconds.backward_weight, other.backward_weight);
    }
  }
  if (!part.trains.any()) seconds.backward_input = 0;
  if (!part.trains.weights) {
    seconds.backward_weight = seconds.reduce = seconds.update = seconds.gather = 0;
    seconds.norm = seconds.prepare = 0;
    seconds.slices.clear();
  }
  return seconds;
}

// Of a part that begins no sum inside its last backward pass; of one that does, the norm of what is
// summed there hides in the pass as well.
void ApplyOverlap(bool begins_inside, PartCost& seconds) {
  double late = 0;
  for (UpdateSlice& slice : seconds.slices) {
    if (!begins_inside) slice.complete = 1;
    if (slice.complete >= 1) late += slice.share;
  }
  if (!seconds.slices.empty()) seconds.norm *= std::min(1.0, late);
}

bool HasSlices(const CostModel& costs) {
  return std::any_of(costs.parts.begin(), costs.parts.end(), [](const auto& parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [](const PartCost& cost) { return !cost.slices.empty(); });
  });
}

// Of each part; none without slices, which is what they are for.
std::vector<bool> BeginInside(const plan::Plan& plan, const Pipeline& pipeline,
                              const CostModel& costs) {
  return HasSlices(costs) ? SumsBeginInside(plan, pipeline)
                          : std::vector<bool>(pipeline.parts.size(), false);
}

// Of each link.
std::vector<double> MessagesOf(const plan::Plan& plan, const CostModel& costs) {
  return costs.link_messages.empty() ? std::vector<double>(plan.links.size(), costs.message)
                                     : costs.link_messages;
}

// Kinds of replicas of the language module; one where they are all alike.
std::vector<int32_t> LanguageKinds(const plan::Plan& plan, const CostModel& costs) {
  const auto language = static_cast<size_t>(plan.spec.language);
  const bool alike = language >= costs.replicas.size() || costs.replicas[language].kinds.empty();
  std::vector<int32_t> kinds(alike ? 1 : costs.replicas[language].kinds.size());
  std::iota(kinds.begin(), kinds.end(), 0);
  return kinds;
}

// Members are ranks, each with the passes of its replica.
MemberCosts SecondsOfRanks(const plan::Plan& plan, const Pipeline& pipeline, const Wiring& wiring,
                           const CostModel& costs) {
  const std::vector<bool> inside = BeginInside(plan, pipeline, costs);
  MemberCosts seconds;
  for (int32_t rank = 0; rank < wiring.members; ++rank) {
    std::vector<PartCost>& mine = seconds.emplace_back();
    for (const int32_t p : wiring.parts_of[static_cast<size_t>(rank)]) {
      const int32_t module = pipeline.parts[static_cast<size_t>(p)].module;
      const auto m = static_cast<size_t>(module);
      int32_t kind = kLongest;
      if (m < costs.replicas.size() && !costs.replicas[m].kinds.empty()) {
        const int32_t dp = plan.PlaceOf(Rank{rank}, module)->dp;
        kind = costs.replicas[m].kind_of[static_cast<size_t>(dp)];
      }
      mine.push_back(CostOf(pipeline, costs, p, kind));
      ApplyOverlap(inside[static_cast<size_t>(p)], mine.back());
    }
  }
  return seconds;
}

// Members are rank classes, those of the language module with the passes of one kind of replica.
MemberCosts SecondsOfClasses(const plan::Plan& plan, const Pipeline& pipeline,
                             const CostModel& costs, int32_t kind) {
  const std::vector<bool> inside = BeginInside(plan, pipeline, costs);
  MemberCosts seconds;
  for (const RankClass& ranks : pipeline.classes) {
    std::vector<PartCost>& mine = seconds.emplace_back();
    for (const int32_t p : ranks.parts) {
      const bool language = pipeline.parts[static_cast<size_t>(p)].module == plan.spec.language;
      mine.push_back(CostOf(pipeline, costs, p, language ? kind : kLongest));
      ApplyOverlap(inside[static_cast<size_t>(p)], mine.back());
    }
  }
  return seconds;
}

// A part of a member in the execution of a step.
struct PartTimes {
  const PartCost* cost = nullptr;
  double begin = -1, end = 0;    // of its first forward pass
  std::vector<double> gathered;  // of each slice in the order of a forward pass, from the decision
};
struct MemberTimes {
  std::vector<PartTimes> parts;
  double begin = -1, backward = -1;  // of the first pass, and of the first backward one
  // From the decision: until all is updated, and until passes may begin at all.
  double updated = 0, held = 0;
};

// A slice after the other is updated, and gathered behind that.
void AddUpdate(MemberTimes& times, double& gathered, PartTimes& part) {
  const PartCost& cost = *part.cost;
  const auto add = [&](double share) {
    times.updated += share * cost.update;
    gathered = std::max(gathered, times.updated) + share * cost.gather;
    part.gathered.push_back(gathered);
  };
  for (size_t i = cost.slices.size(); i-- > 0;) add(cost.slices[i].share);
  if (!cost.slices.empty()) return;
  add(1);
  times.held = times.updated;
}

// `first`: the number of the member's first instruction; `costs`: of its parts.
MemberTimes TimesOf(const Pipeline& pipeline, const Execution& execution, size_t first,
                    const Program& program, const std::vector<int32_t>& parts_of,
                    const std::vector<PartCost>& costs) {
  MemberTimes times;
  for (const PartCost& cost : costs) times.parts.push_back({.cost = &cost});
  const auto part_of = [&](const Instruction& instruction) -> PartTimes& {
    size_t i = 0;
    const auto is_it = [&](int32_t p) {
      const Part& part = pipeline.parts[static_cast<size_t>(p)];
      return part.module == instruction.module && part.chunk == instruction.chunk;
    };
    while (!is_it(parts_of[i])) ++i;
    return times.parts[i];
  };
  double decided = 0, gathered = 0;
  for (size_t i = 0; i < program.size(); ++i) {
    const Instruction& instruction = program[i];
    const double begin = execution.begin[first + i], end = execution.end[first + i];
    if (IsPass(instruction.op) && times.begin < 0) times.begin = begin;
    if (instruction.op == Op::kBackwardInput && times.backward < 0) times.backward = begin;
    if (instruction.op == Op::kForward) {
      PartTimes& part = part_of(instruction);
      if (part.begin < 0) {
        part.begin = begin;
        part.end = end;
      }
    } else if (instruction.op == Op::kDecide) {
      decided = end;
    } else if (instruction.op == Op::kGather) {  // right behind its update
      AddUpdate(times, gathered, part_of(instruction));
    } else if (instruction.op == Op::kSpread) {
      times.held = std::max(times.held, end - decided);
    }
  }
  return times;
}

// How much later the member's passes run in the next step than if nothing held them up, the
// decision being its start.
double DelayOf(const MemberTimes& times) {
  if (times.begin < 0) return 0;
  std::vector<const PartTimes*> order;
  for (const PartTimes& part : times.parts) {
    if (part.begin >= 0 && !part.gathered.empty()) order.push_back(&part);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const PartTimes* a, const PartTimes* b) { return a->begin < b->begin; });
  double delay = std::max(0.0, times.held - times.begin);
  for (const PartTimes* part : order) {
    const std::vector<UpdateSlice>& slices = part->cost->slices;
    for (size_t i = 0; i < part->gathered.size(); ++i) {
      const UpdateSlice slice = slices.empty() ? UpdateSlice() : slices[slices.size() - 1 - i];
      const double needed = part->begin + slice.needed * (part->end - part->begin);
      delay = std::max(delay, part->gathered[i] - needed) + slice.share * part->cost->prepare;
    }
  }
  return times.backward < 0 ? delay : std::max(delay, times.updated - times.backward);
}

// `rank_of` each member, and how many ranks it stands for. `bound`: of all passes.
Simulation Summarize(const Pipeline& pipeline, const Wiring& wiring, const MemberCosts& seconds,
                     const Execution& execution, const std::vector<const Program*>& programs,
                     const std::vector<Rank>& rank_of, const std::vector<int64_t>& weights,
                     double bound) {
  Simulation simulation;
  double decided = 0, delay = 0;
  simulation.timeline.reserve(execution.end.size());
  double busy = 0, ranks = 0;
  for (size_t member = 0; member < programs.size(); ++member) {
    double busy_here = 0;
    bool works = false;
    for (size_t i = 0; i < programs[member]->size(); ++i) {
      const Instruction& instruction = (*programs[member])[i];
      const size_t id = execution.first[member] + i;
      simulation.timeline.push_back(
          {rank_of[member], instruction, execution.begin[id], execution.end[id]});
      if (instruction.op == Op::kDecide) decided = std::max(decided, execution.end[id]);
      if (IsPass(instruction.op) || IsMessage(instruction.op))
        simulation.passes = std::max(simulation.passes, execution.end[id]);
      if (!IsPass(instruction.op)) continue;
      works = true;
      busy_here += execution.end[id] - execution.begin[id];
    }
    delay = std::max(
        delay, DelayOf(TimesOf(pipeline, execution, execution.first[member], *programs[member],
                               wiring.parts_of[member], seconds[member])));
    if (!works) continue;
    busy += busy_here * static_cast<double>(weights[member]);
    ranks += static_cast<double>(weights[member]);
  }
  simulation.step = decided + delay;
  const auto bubble_at = [busy, ranks](double time) {
    return ranks * time > 0 ? std::max(0.0, 1 - busy / (ranks * time)) : 0;
  };
  simulation.bubble = bubble_at(simulation.passes);
  simulation.lower_bound = bubble_at(bound);
  return simulation;
}

}  // namespace

// The replicas of the language module that take longest, beside the fastest of what other modules
// have.
double PassesAtLeast(const plan::Plan& plan, const Pipeline& pipeline, const CostModel& costs) {
  double bound = 0;
  for (const int32_t kind : LanguageKinds(plan, costs)) {
    std::vector<PartCost> seconds;
    for (size_t p = 0; p < pipeline.parts.size(); ++p) {
      const bool language = pipeline.parts[p].module == plan.spec.language;
      seconds.push_back(
          CostOf(pipeline, costs, static_cast<int32_t>(p), language ? kind : kShortest));
    }
    bound = std::max(bound, StepLowerBound(pipeline, seconds, BoundOptionsOf(plan, pipeline)));
  }
  return bound;
}

Simulation Simulate(const plan::Plan& plan, const std::vector<Program>& programs,
                    const CostModel& costs) {
  const Pipeline pipeline = MakePipeline(plan);
  std::vector<const Program*> pointers;
  std::vector<Rank> ranks;
  for (const Program& program : programs) {
    ranks.push_back(Rank{static_cast<int32_t>(pointers.size())});
    pointers.push_back(&program);
  }
  const Wiring wiring = WireRanks(plan, pipeline);
  const MemberCosts seconds = SecondsOfRanks(plan, pipeline, wiring, costs);
  const Execution execution = Execute(ExecutionModel::kStreams, pipeline, wiring, pointers, seconds,
                                      MessagesOf(plan, costs));
  return Summarize(pipeline, wiring, seconds, execution, pointers, ranks,
                   std::vector<int64_t>(programs.size(), 1), PassesAtLeast(plan, pipeline, costs));
}

absl::StatusOr<Simulation> SimulatePlan(const plan::Plan& plan, const CostModel& costs) {
  const Pipeline pipeline = MakePipeline(plan);
  std::vector<Rank> ranks;
  std::vector<int64_t> weights;
  for (const RankClass& ranks_of_class : pipeline.classes) {
    ranks.push_back(ranks_of_class.first);
    weights.push_back(ranks_of_class.ranks);
  }
  ASSIGN_OR_RETURN(const std::vector<Program> programs,
                   BuildStepOfClasses(plan, pipeline, CostFromShapes(plan)));
  std::vector<const Program*> pointers;
  for (const Program& program : programs) pointers.push_back(&program);
  const Wiring wiring = WireClasses(pipeline);
  const double bound = PassesAtLeast(plan, pipeline, costs);
  const std::vector<int32_t> kinds = LanguageKinds(plan, costs);
  // The step ends with the kind that takes longest; until then the ranks of the others wait.
  Simulation all;
  double busy = 0, ranks_of_all = 0;
  for (const int32_t kind : kinds) {
    const MemberCosts seconds = SecondsOfClasses(plan, pipeline, costs, kind);
    const Execution execution = Execute(ExecutionModel::kStreams, pipeline, wiring, pointers,
                                        seconds, MessagesOf(plan, costs));
    Simulation simulation =
        Summarize(pipeline, wiring, seconds, execution, pointers, ranks, weights, bound);
    if (kinds.size() == 1) return simulation;
    const ReplicaKind& replicas =
        costs.replicas[static_cast<size_t>(plan.spec.language)].kinds[static_cast<size_t>(kind)];
    const auto kind_ranks = static_cast<double>(replicas.ranks);
    busy += kind_ranks * simulation.passes * (1 - simulation.bubble);
    ranks_of_all += kind_ranks;
    simulation.step = std::max(simulation.step, all.step);
    if (simulation.passes > all.passes) {
      all = std::move(simulation);
    } else {
      all.step = simulation.step;
    }
  }
  const auto bubble_at = [&](double seconds) {
    return seconds > 0 ? std::max(0.0, 1 - busy / (ranks_of_all * seconds)) : 0;
  };
  all.bubble = bubble_at(all.passes);
  all.lower_bound = bubble_at(bound);
  return all;
}

}  // namespace phalanx::schedule
