#include "core/plan/activations.h"

#include <algorithm>
#include <optional>

#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

// Whether all ranks of one part hold the other one.
bool IsWithin(const Plan& plan, const PartId& part, const PartId& other) {
  if (part.module == other.module) return part.stage == other.stage;
  const ReplicaTable& replicas = plan.replicas(part.module);
  for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
    for (int32_t cp = 0; cp < replicas.cp(); ++cp) {
      for (Rank rank : plan.TensorGroup(part.module, dp, part.stage, cp)) {
        const std::optional<Place> place = plan.PlaceOf(rank, other.module);
        if (!place.has_value() || place->pp != other.stage) return false;
      }
    }
  }
  return true;
}

// Chunks of a stage that have a backward pass.
int64_t ChunksBack(const ModulePlan& layout, int32_t stage) {
  int64_t back = 0;
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk)
    back += layout.TrainsOf(stage, chunk).any() ? 1 : 0;
  return back;
}

// The most microbatches that an interleaved schedule gives one chunk before the next one.
int64_t LongestRound(const ModulePlan& layout, int64_t microbatches) {
  const int64_t rounds = std::max<int64_t>(1, microbatches / layout.pp());
  return EvenSplit(microbatches, rounds, 0).count;
}

}  // namespace

int64_t ActivationsKeptMax(const Plan& plan, int32_t module, int32_t stage, int64_t microbatches) {
  using job::ScheduleName;
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  const int64_t trained = ChunksBack(layout, stage);
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
    return std::min(all, (chunks - 1) * LongestRound(layout, microbatches) +
                             2 * (stages - 1 - stage) + 2 * behind + 1);
  }
  return std::min(all, int64_t{plan.stages} - layout.GraphStage(DelaysWeights(plan) ? 0 : stage));
}

int64_t ActivationsKeptOfChunk(const Plan& plan, int32_t module, int32_t stage, int32_t chunk,
                               int64_t microbatches) {
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  const int64_t kept = ActivationsKeptMax(plan, module, stage, microbatches);
  const int64_t chunks = layout.chunks();
  const bool in_rounds = chunks > 1 && plan.spec.schedule.name == job::ScheduleName::kInterleaved &&
                         ChunksBack(layout, stage) == chunks && kept < microbatches * chunks;
  if (!in_rounds) return (kept + chunks - 1) / chunks;
  const int64_t round = LongestRound(layout, microbatches);
  const int64_t begun = kept % (chunks * round);  // of the last round
  return kept / (chunks * round) * round + std::clamp<int64_t>(begun - chunk * round, 0, round);
}

bool DelaysWeights(const Plan& plan) {
  const job::ScheduleName name = plan.spec.schedule.name;
  return name == job::ScheduleName::kZeroBubbleH1 || name == job::ScheduleName::kZeroBubbleV;
}

bool BackwardIsOne(const Plan& plan, const PartId& part) {
  const auto trains = [&plan](const PartId& id) {
    return plan.modules[static_cast<size_t>(id.module)].TrainsOf(id.stage, id.chunk);
  };
  if (!trains(part).weights || DelaysWeights(plan)) return false;
  return std::all_of(plan.links.begin(), plan.links.end(), [&](const Link& link) {
    return link.to != part || !trains(link.from).any() || IsWithin(plan, link.from, part);
  });
}

MessagesKept MessagesKeptMax(const Plan& plan, const Link& link, int64_t microbatches) {
  const PartId& from = link.from;
  const ModulePlan& source = plan.modules[static_cast<size_t>(from.module)];
  const bool has_chunks =
      source.chunks() > 1 || plan.modules[static_cast<size_t>(link.to.module)].chunks() > 1;
  const auto kept = [&](const PartId& part) {
    return ActivationsKeptMax(plan, part.module, part.stage, microbatches);
  };
  if (source.TrainsOf(from.stage, from.chunk).any()) {
    const int64_t here = has_chunks || DelaysWeights(plan) ? 0 : kept(link.to);
    return {.forward = std::max<int64_t>(0, kept(from) - here), .backward = kept(from)};
  }
  const bool unbound = has_chunks || plan.RunsAhead(from.module) || source.shares_ranks;
  return {.forward = unbound ? microbatches
                             : std::min(microbatches,
                                        int64_t{plan.stages} - source.GraphStage(from.stage))};
}

}  // namespace phalanx::plan
