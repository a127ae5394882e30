#include "core/schedule/simulator.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "core/base/status.h"
#include "core/schedule/bound.h"
#include "core/schedule/builder.h"
#include "core/schedule/execution.h"
#include "core/schedule/order_rules.h"
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
  }
  return seconds;
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

// That all passes take at least, whichever way the schedule orders them: the replicas of the
// language module that take longest, beside the fastest of what other modules have.
double BoundOf(const plan::Plan& plan, const Pipeline& pipeline, const CostModel& costs) {
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

// Members are ranks, each with the passes of its replica.
MemberCosts SecondsOfRanks(const plan::Plan& plan, const Pipeline& pipeline, const Wiring& wiring,
                           const CostModel& costs) {
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
    }
  }
  return seconds;
}

// Members are rank classes, those of the language module with the passes of one kind of replica.
MemberCosts SecondsOfClasses(const plan::Plan& plan, const Pipeline& pipeline,
                             const CostModel& costs, int32_t kind) {
  MemberCosts seconds;
  for (const RankClass& ranks : pipeline.classes) {
    std::vector<PartCost>& mine = seconds.emplace_back();
    for (const int32_t p : ranks.parts) {
      const bool language = pipeline.parts[static_cast<size_t>(p)].module == plan.spec.language;
      mine.push_back(CostOf(pipeline, costs, p, language ? kind : kLongest));
    }
  }
  return seconds;
}

// How much later than this step the member can begin the next one. `first`: the number of its first
// instruction.
double StepOf(const Execution& execution, size_t first, const Program& program) {
  double begin = -1;                                      // of its first pass
  std::map<std::pair<int32_t, int32_t>, double> forward;  // begin of the first one of each part
  double step = 0;
  for (size_t i = 0; i < program.size(); ++i) {
    const Instruction& instruction = program[i];
    const double here = execution.begin[first + i];
    if (IsPass(instruction.op) && begin < 0) begin = here;
    if (instruction.op == Op::kForward)
      forward.try_emplace({instruction.module, instruction.chunk}, here);
    const double from = instruction.op == Op::kGather
                            ? forward.at({instruction.module, instruction.chunk})
                            : std::max(begin, 0.0);
    step = std::max(step, execution.end[first + i] - from);
  }
  return step;
}

// `rank_of` each member, and how many ranks it stands for. `bound`: of all passes.
Simulation Summarize(const Execution& execution, const std::vector<const Program*>& programs,
                     const std::vector<Rank>& rank_of, const std::vector<int64_t>& weights,
                     double bound) {
  Simulation simulation;
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
      if (IsPass(instruction.op) || IsMessage(instruction.op))
        simulation.passes = std::max(simulation.passes, execution.end[id]);
      if (!IsPass(instruction.op)) continue;
      works = true;
      busy_here += execution.end[id] - execution.begin[id];
    }
    simulation.step =
        std::max(simulation.step, StepOf(execution, execution.first[member], *programs[member]));
    if (!works) continue;
    busy += busy_here * static_cast<double>(weights[member]);
    ranks += static_cast<double>(weights[member]);
  }
  const auto bubble_at = [busy, ranks](double seconds) {
    return ranks * seconds > 0 ? std::max(0.0, 1 - busy / (ranks * seconds)) : 0;
  };
  simulation.bubble = bubble_at(simulation.passes);
  simulation.lower_bound = bubble_at(bound);
  return simulation;
}

}  // namespace

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
  const Execution execution =
      Execute(ExecutionModel::kStreams, pipeline, wiring, pointers,
              SecondsOfRanks(plan, pipeline, wiring, costs), MessagesOf(plan, costs));
  return Summarize(execution, pointers, ranks, std::vector<int64_t>(programs.size(), 1),
                   BoundOf(plan, pipeline, costs));
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
  const double bound = BoundOf(plan, pipeline, costs);
  const std::vector<int32_t> kinds = LanguageKinds(plan, costs);
  // The step ends with the kind that takes longest; until then the ranks of the others wait.
  Simulation all;
  double busy = 0, ranks_of_all = 0;
  for (const int32_t kind : kinds) {
    const Execution execution =
        Execute(ExecutionModel::kStreams, pipeline, wiring, pointers,
                SecondsOfClasses(plan, pipeline, costs, kind), MessagesOf(plan, costs));
    Simulation simulation = Summarize(execution, pointers, ranks, weights, bound);
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
