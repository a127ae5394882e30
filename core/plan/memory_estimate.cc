#include "core/plan/memory_estimate.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/plan/parameters.h"
#include "core/plan/shares.h"
#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

using job::TraitsOf;

constexpr int64_t kMasterBytesMin = 4;  // of one element; weights as wide are their own masters

// Bytes of the weights that layers round, in the forms that their passes read.
int64_t RoundedBytes(const PartSize& part, Rounded rounded, int64_t bytes_of_one,
                     bool layers_back) {
  if (rounded == Rounded::kNothing) return 0;
  if (rounded == Rounded::kInComputeType) return part.rounded * bytes_of_one;
  return layers_back ? 2 * part.rounded : part.rounded;
}

// Of each chunk of a stage; none where its replicas have one width.
using StageLoads = std::vector<const HomeLoads*>;
StageLoads LoadsOfStage(const Plan& plan, int32_t module, int32_t pp, PartSizes& sizes) {
  StageLoads loads;
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  if (layout.replicas.EqualWidths(pp)) return loads;
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    loads.push_back(&sizes.LoadsOf(plan, {module, pp, chunk}));
  }
  return loads;
}

int64_t SectionBytes(int64_t bytes) {
  return (bytes + kHostSectionAlignment - 1) / kHostSectionAlignment * kHostSectionAlignment;
}

// Of what does not train and the rank leads some of, as the first replica writes it.
int64_t FrozenBytes(const PartSize& part, int64_t bytes_of_one) {
  return part.leads_frozen ? SectionBytes((part.elements - part.trained_extent) * bytes_of_one) : 0;
}

// Of one place, of which replica it may be.
struct PlaceMemory {
  MemoryEstimate estimate;
  int64_t frozen = 0;    // in the snapshot, where it is of the first replica
  int64_t mirrored = 0;  // what a mirror of the place's optimizer state takes, in bytes
};

// `load`: where replicas have several widths.
void AddPart(const Plan& plan, const Place& place, int32_t chunk, const HomeLoad* load,
             PartSizes& sizes, PlaceMemory* memory) {
  MemoryEstimate* estimate = &memory->estimate;
  const job::Module& module = plan.module_spec(place.module);
  const ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
  const job::Precision compute = plan.spec.compute;
  const int64_t bytes = BytesOf(compute), wide_bytes = std::max(kMasterBytesMin, bytes);
  const PartSize& part = sizes.Of(plan, place, chunk);
  const int64_t replicas = int64_t{layout.replicas.present_replicas()} * layout.replicas.cp();
  estimate->parameters += part.elements * bytes;
  estimate->parameters += RoundedBytes(part, RoundedOf(plan, module), bytes,
                                       layout.TrainsOf(place.pp, chunk).inputs || !module.frozen);
  if (part.trained_extent > 0) {
    estimate->gradients += part.trained_extent * wide_bytes;
    const auto own_bytes = [&](int64_t of_one) {
      return load != nullptr ? of_one * load->own : of_one * part.led / replicas;
    };
    estimate->optimizer += own_bytes(PrimaryStateBytes(compute));
    memory->mirrored += own_bytes(StateBytes(compute));
    const int64_t own = load != nullptr ? load->own : (part.led + replicas - 1) / replicas;
    const int64_t written = 3 * SectionBytes(own * wide_bytes);  // masters, two moments
    if (CopiesToHost(plan)) estimate->host.copies += 2 * written;
    if (plan.spec.checkpoint.has_value()) estimate->host.snapshot += written;
    estimate->parameters += part.spread * bytes;
    estimate->gradients += part.folded * wide_bytes;
  }
  if (plan.spec.checkpoint.has_value()) memory->frozen += FrozenBytes(part, bytes);
}

MemoryEstimate& operator+=(MemoryEstimate& a, const MemoryEstimate& b) {
  a.parameters += b.parameters;
  a.gradients += b.gradients;
  a.optimizer += b.optimizer;
  a.activations += b.activations;
  a.host.copies += b.host.copies;
  a.host.snapshot += b.host.snapshot;
  return a;
}

// What the rank at a place mirrors for others is left out.
PlaceMemory MemoryOfPlace(const Plan& plan, const Place& place, const StageLoads& loads,
                          PartSizes& sizes) {
  PlaceMemory memory;
  int64_t given = 0, taken = 0;  // one part after the other exchanges
  for (int32_t chunk = 0; chunk < plan.modules[static_cast<size_t>(place.module)].chunks();
       ++chunk) {
    const HomeLoad* load = nullptr;
    if (!loads.empty()) {
      load = &loads[static_cast<size_t>(chunk)]->of.at({place.width, place.tp});
      given = std::max(given, load->given);
      taken = std::max(taken, load->taken);
    }
    AddPart(plan, place, chunk, load, sizes, &memory);
  }
  memory.estimate.gradients +=
      (given + taken) * std::max(kMasterBytesMin, BytesOf(plan.spec.compute));
  return memory;
}

// Whether it writes what does not train, too.
bool IsOfFirstReplica(const Plan& plan, const Place& place) {
  return place.dp == plan.replicas(place.module).FirstPresent() && place.cp == 0;
}

// Calls add(rank, bytes) for what ranks of a stage mirror. `loads` as LoadsOfStage; own(tp): bytes
// that the rank of a tensor coordinate is the primary home of, where there are none.
template <typename Own, typename Add>
void ForEachMirror(const Plan& plan, int32_t module, int32_t pp, const StageLoads& loads,
                   const Own& own, const Add& add) {
  if (!IsMirrored(plan, module)) return;
  for (const HomeLoads* load : loads) {
    for (const auto& [rank, elements] : load->mirrored)
      add(rank, elements * StateBytes(plan.spec.compute));
  }
  if (!plan.replicas(module).EqualWidths(pp)) return;
  int32_t tp = 0;
  for (const RankList& group : plan.DataGroups(module, pp)) {
    const int64_t bytes = own(tp++);
    const HomePositions homes = HomePositionsOf(plan, module, group);
    for (size_t share = 0; share < group.size(); ++share) {
      for (const int32_t mirror : homes.Of(share).subspan(1))
        add(group[static_cast<size_t>(mirror)], bytes);
    }
  }
}

void AddHeaders(HostEstimate& host) {
  if (host.copies > 0) host.copies += 2 * kHostHeaderBytes;
}

// Of all ranks, without headers. `samples` nullptr: without activations.
void AddModule(const Plan& plan, const ModulePlan& layout, const SampleShape* samples,
               PartSizes& sizes, std::vector<MemoryEstimate>* estimates) {
  if (!TraitsOf(plan.module_spec(layout.index).architecture).known()) return;
  const ReplicaTable& replicas = layout.replicas;
  std::vector<int64_t> dealt;
  if (samples != nullptr && samples->as_dealt) dealt = DealtToReplicas(plan, layout.index);
  for (Place place{.module = layout.index}; place.pp < layout.pp(); ++place.pp) {
    // By width, tp and, where they matter, samples of a microbatch.
    std::map<std::tuple<int32_t, int32_t, int64_t>, PlaceMemory> known;
    const auto key = [&](int32_t width, int32_t tp) {
      return std::tuple(width, tp, dealt.empty() ? -1 : dealt[static_cast<size_t>(place.dp)]);
    };
    std::map<std::pair<int32_t, int32_t>, int64_t> own;  // as mirrored, by width and tp
    const StageLoads loads = LoadsOfStage(plan, layout.index, place.pp, sizes);
    for (place.dp = 0; place.dp < replicas.replicas(); ++place.dp) {
      if (!replicas.Present(place.dp)) continue;
      place.width = replicas.Width(place.dp, place.pp);
      for (place.tp = 0; place.tp < place.width; ++place.tp) {
        const auto [entry, added] = known.try_emplace(key(place.width, place.tp));
        if (added) {
          entry->second = MemoryOfPlace(plan, place, loads, sizes);
          if (samples != nullptr)
            entry->second.estimate.activations = ActivationBytes(plan, place, *samples);
        }
        own[{place.width, place.tp}] = entry->second.mirrored;
        for (place.cp = 0; place.cp < replicas.cp(); ++place.cp) {
          MemoryEstimate& of_rank = (*estimates)[static_cast<size_t>(plan.RankOf(place).value)];
          of_rank += entry->second.estimate;
          if (IsOfFirstReplica(plan, place)) of_rank.host.snapshot += entry->second.frozen;
        }
        place.cp = 0;
      }
    }
    const int32_t width = replicas.WidestOf(place.pp);
    ForEachMirror(
        plan, layout.index, place.pp, loads,
        [&](int32_t tp) {
          return own.at({width, tp});
        },
        [&](Rank mirror, int64_t bytes) {
          (*estimates)[static_cast<size_t>(mirror.value)].optimizer += bytes;
        });
  }
}

std::vector<MemoryEstimate> EstimateAll(const Plan& plan, const SampleShape* samples,
                                        PartSizes& sizes) {
  std::vector<MemoryEstimate> estimates(static_cast<size_t>(plan.world));
  for (const ModulePlan& layout : plan.modules) AddModule(plan, layout, samples, sizes, &estimates);
  for (MemoryEstimate& estimate : estimates) AddHeaders(estimate.host);
  return estimates;
}

}  // namespace

int64_t StateBytes(job::Precision compute) {
  return 3 * std::max(kMasterBytesMin, BytesOf(compute));
}

int64_t PrimaryStateBytes(job::Precision compute) {
  const int64_t bytes = BytesOf(compute);
  return StateBytes(compute) - (bytes >= kMasterBytesMin ? bytes : 0);
}

MemoryEstimate EstimateMemory(const Plan& plan, Rank rank, const SampleShape& samples) {
  MemoryEstimate estimate;
  PartSizes sizes;
  for (const Place& place : plan.PlacesOf(rank)) {
    if (!TraitsOf(plan.module_spec(place.module).architecture).known()) continue;
    const StageLoads loads = LoadsOfStage(plan, place.module, place.pp, sizes);
    const PlaceMemory memory = MemoryOfPlace(plan, place, loads, sizes);
    estimate += memory.estimate;
    estimate.activations += ActivationBytes(plan, place, samples);
    if (IsOfFirstReplica(plan, place)) estimate.host.snapshot += memory.frozen;
    const auto own = [&](int32_t tp) {
      Place primary = place;
      primary.tp = tp;
      return MemoryOfPlace(plan, primary, loads, sizes).mirrored;
    };
    ForEachMirror(plan, place.module, place.pp, loads, own, [&](Rank mirror, int64_t bytes) {
      if (mirror == rank) estimate.optimizer += bytes;
    });
  }
  AddHeaders(estimate.host);
  return estimate;
}

std::vector<MemoryEstimate> EstimateMemory(const Plan& plan, const SampleShape& samples) {
  PartSizes sizes;
  return EstimateMemory(plan, samples, sizes);
}

std::vector<MemoryEstimate> EstimateMemory(const Plan& plan, const SampleShape& samples,
                                           PartSizes& sizes) {
  return EstimateAll(plan, &samples, sizes);
}

std::vector<MemoryEstimate> EstimateState(const Plan& plan, PartSizes& sizes) {
  return EstimateAll(plan, nullptr, sizes);
}

std::vector<int64_t> EstimateActivations(const Plan& plan, int32_t module,
                                         const SampleShape& samples) {
  std::vector<int64_t> bytes(static_cast<size_t>(plan.world), 0);
  if (!TraitsOf(plan.module_spec(module).architecture).known()) return bytes;
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  const ReplicaTable& replicas = layout.replicas;
  for (Place place{.module = module}; place.pp < layout.pp(); ++place.pp) {
    place.width = replicas.Width(0, place.pp);
    std::vector<int64_t> counts;
    int64_t here = 0;
    for (place.tp = 0; place.tp < place.width; ++place.tp) {
      place.dp = 0;
      std::vector<int64_t> own = UnitCountsOf(plan, place);
      if (own != counts) here = ActivationBytes(plan, place, samples);
      counts = std::move(own);
      for (; place.dp < replicas.replicas(); ++place.dp) {
        for (place.cp = 0; place.cp < replicas.cp(); ++place.cp)
          bytes[static_cast<size_t>(plan.RankOf(place).value)] += here;
        place.cp = 0;
      }
    }
  }
  return bytes;
}

bool TakesHostMemory(const Plan& plan) {
  return plan.spec.checkpoint.has_value() || CopiesToHost(plan);
}

}  // namespace phalanx::plan
