#include "core/plan/activations.h"

#include <algorithm>

#include "core/plan/units.h"

namespace phalanx::plan {

int64_t ActivationsKeptMax(const Plan& plan, int32_t module, int32_t stage, int64_t microbatches) {
  using job::ScheduleName;
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  int64_t trained = 0;  // chunks
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    trained += layout.TrainsOf(stage, chunk).any() ? 1 : 0;
  }
  if (trained == 0) return 0;
  const int64_t all = microbatches * trained;
  if (plan.RunsAhead(module)) return all;
  const ScheduleName name = plan.spec.schedule.name;
  const int64_t stages = layout.pp(), chunks = layout.chunks();
  const int64_t behind = plan.stages - layout.first_stage - stages * chunks;
  if (chunks > 1 && name == ScheduleName::kZeroBubbleV) {
    return std::min(all, 2 * (stages + behind));
  }
  if (chunks > 1) {
    const int64_t rounds = std::max<int64_t>(1, microbatches / stages);
    const int64_t round = EvenSplit(microbatches, rounds, 0).count;
    return std::min(all, (chunks - 1) * round + 2 * (stages - 1 - stage) + 2 * behind + 1);
  }
  const bool delayed = name == ScheduleName::kZeroBubbleH1 || name == ScheduleName::kZeroBubbleV;
  return std::min(all, int64_t{plan.stages} - layout.GraphStage(delayed ? 0 : stage));
}

MessagesKept MessagesKeptMax(const Plan& plan, const Link& link) {
  using job::ScheduleName;
  const PartId& from = link.from;
  const ModulePlan& source = plan.modules[static_cast<size_t>(from.module)];
  const bool has_chunks =
      source.chunks() > 1 || plan.modules[static_cast<size_t>(link.to.module)].chunks() > 1;
  const auto kept = [&plan](const PartId& part) {
    return ActivationsKeptMax(plan, part.module, part.stage, plan.microbatches);
  };
  if (source.TrainsOf(from.stage, from.chunk).any()) {
    const bool delayed = plan.spec.schedule.name == ScheduleName::kZeroBubbleH1 ||
                         plan.spec.schedule.name == ScheduleName::kZeroBubbleV;
    const int64_t here = has_chunks || delayed ? 0 : kept(link.to);
    return {.forward = std::max<int64_t>(0, kept(from) - here), .backward = kept(from)};
  }
  const bool unbound = has_chunks || plan.RunsAhead(from.module) || source.shares_ranks;
  return {.forward = unbound ? plan.microbatches
                             : std::min(plan.microbatches,
                                        int64_t{plan.stages} - source.GraphStage(from.stage))};
}

}  // namespace phalanx::plan
