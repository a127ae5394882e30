#include "core/plan/activations.h"

#include <algorithm>
#include <optional>
#include <vector>

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

int64_t KeptBytesMax(const Plan& plan, int32_t module, int32_t stage, int64_t microbatches,
                     const std::vector<int64_t>& bytes) {
  const int64_t kept = ActivationsKeptMax(plan, module, stage, microbatches);
  std::vector<int64_t> sums = {0};  // of the first chunks
  for (int64_t of_chunk : bytes) sums.push_back(sums.back() + of_chunk);
  const auto chunks = static_cast<int64_t>(bytes.size());
  if (kept >= microbatches * chunks) return microbatches * sums.back();
  if (DelaysWeights(plan) && chunks == 2) {
    const int64_t of_one = std::min(microbatches, kept - 1);
    return of_one * std::max(bytes[0], bytes[1]) + (kept - of_one) * std::min(bytes[0], bytes[1]);
  }
  // Each chunk keeps no more than the one before it, so what is kept is a list of microbatches of
  // each of which the first chunks keep theirs. The most is on the upper hull of `sums`, with as
  // many chunks as that comes to on average.
  const auto sum = [&](int64_t count) { return sums[static_cast<size_t>(count)]; };
  int64_t most = 0;
  for (int64_t low = 0; low * microbatches <= kept; ++low) {
    for (int64_t high = kept / microbatches + 1; high <= chunks; ++high) {
      const int64_t above = kept - low * microbatches;
      most =
          std::max(most, microbatches * sum(low) + (sum(high) - sum(low)) * above / (high - low));
    }
  }
  return most;
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
