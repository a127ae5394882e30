#include "core/schedule/simulator.h"

#include <algorithm>
#include <map>
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

// Of each part of the pipeline; passes that training leaves out take no time.
std::vector<PartCost> SecondsOf(const Pipeline& pipeline, const CostModel& costs) {
  std::vector<PartCost> seconds;
  for (const Part& part : pipeline.parts) {
    const auto m = static_cast<size_t>(part.module);
    const PartCost& cost =
        costs.parts[m][static_cast<size_t>(part.stage * pipeline.chunks[m] + part.chunk)];
    PartCost& here = seconds.emplace_back(cost);
    if (!part.trains.any()) here.backward_input = 0;
    if (!part.trains.weights) here.backward_weight = here.reduce = here.update = here.gather = 0;
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

// `rank_of` each member, and how many ranks it stands for.
Simulation Summarize(const plan::Plan& plan, const Pipeline& pipeline, const Execution& execution,
                     const std::vector<const Program*>& programs,
                     const std::vector<PartCost>& seconds, const std::vector<Rank>& rank_of,
                     const std::vector<int64_t>& weights) {
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
  simulation.lower_bound =
      bubble_at(StepLowerBound(pipeline, seconds, BoundOptionsOf(plan, pipeline)));
  return simulation;
}

}  // namespace

Simulation Simulate(const plan::Plan& plan, const std::vector<Program>& programs,
                    const CostModel& costs) {
  const Pipeline pipeline = MakePipeline(plan);
  const std::vector<PartCost> seconds = SecondsOf(pipeline, costs);
  std::vector<const Program*> pointers;
  std::vector<Rank> ranks;
  for (const Program& program : programs) {
    ranks.push_back(Rank{static_cast<int32_t>(pointers.size())});
    pointers.push_back(&program);
  }
  const Execution execution = Execute(ExecutionModel::kStreams, pipeline, WireRanks(plan, pipeline),
                                      pointers, seconds, costs.message);
  return Summarize(plan, pipeline, execution, pointers, seconds, ranks,
                   std::vector<int64_t>(programs.size(), 1));
}

absl::StatusOr<Simulation> SimulatePlan(const plan::Plan& plan, const CostModel& costs) {
  const Pipeline pipeline = MakePipeline(plan);
  const std::vector<PartCost> seconds = SecondsOf(pipeline, costs);
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
  const Execution execution = Execute(ExecutionModel::kStreams, pipeline, WireClasses(pipeline),
                                      pointers, seconds, costs.message);
  return Summarize(plan, pipeline, execution, pointers, seconds, ranks, weights);
}

}  // namespace phalanx::schedule
