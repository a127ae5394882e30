#include "core/plan/layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/graph.h"
#include "core/job/rules.h"
#include "core/job/schema.h"
#include "core/plan/cost.h"
#include "core/plan/derivation.h"
#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

using job::ScheduleName;

static_assert(kWorldMax == job::kRanksMax);

// Layers by cost in the order of data flow, or each stage's written layers evenly over its chunks.
std::vector<int32_t> LayersByFlow(const job::JobSpec& spec, int32_t index, const PartOrder& order) {
  const std::vector<int32_t>& given = spec.modules[static_cast<size_t>(index)].parallel.layers;
  std::vector<int32_t> by_flow;
  if (given.empty()) by_flow = BalanceLayers(spec, index, order.count());
  std::vector<int32_t> layers(static_cast<size_t>(order.count()));
  for (int32_t flow = 0; flow < order.count(); ++flow) {
    const int32_t stage = order.StageAt(flow), chunk = order.ChunkAt(flow);
    layers[order.IndexOf(stage, chunk)] =
        given.empty()
            ? by_flow[static_cast<size_t>(flow)]
            : static_cast<int32_t>(
                  EvenSplit(given[static_cast<size_t>(stage)], order.chunks, chunk).count);
  }
  return layers;
}

PartOrder OrderUnder(const job::Schedule& schedule, const job::JobSpec& spec, int32_t module) {
  const bool vee = module == spec.language && schedule.name == ScheduleName::kZeroBubbleV;
  return {.pp = spec.modules[static_cast<size_t>(module)].parallel.pp,
          .chunks = job::ChunksOf(spec, schedule, module),
          .path = vee ? ChunkPath::kVee : ChunkPath::kLoop};
}

ModuleLayout DecideModule(const job::JobSpec& spec, const job::Schedule& schedule, int32_t index) {
  const job::Module& module = spec.modules[static_cast<size_t>(index)];
  ModuleLayout layout{.layers = LayersByFlow(spec, index, OrderUnder(schedule, spec, index))};
  DecideHomes(spec.recovery, module.parallel.dp, &layout);
  return layout;
}

HomeChoice AdmittedHomesOf(const ModuleLayout& layout) {
  return layout.admitted_homes.value_or(HomeChoice{layout.state_home, layout.state_copies});
}

std::vector<Rank> PlacesOutsideModules(const job::JobSpec& spec, size_t places) {
  std::vector<bool> used(places, false);
  for (const job::Module& module : spec.modules) {
    std::fill_n(used.begin() + module.offset, module.parallel.ranks, true);
  }
  std::vector<Rank> idle;
  for (size_t place = 0; place < places; ++place) {
    if (!used[place]) idle.push_back(Rank{static_cast<int32_t>(place)});
  }
  return idle;
}

}  // namespace

bool IsSlow(const Layout& layout, Rank place) {
  return std::any_of(layout.slow.begin(), layout.slow.end(),
                     [place](const SlowPlace& slow) { return slow.place == place; });
}

Cluster MakeCluster(int32_t nodes, int32_t devices_per_node) {
  Cluster cluster;
  cluster.devices.reserve(static_cast<size_t>(nodes) * static_cast<size_t>(devices_per_node));
  for (int32_t node = 0; node < nodes; ++node) {
    const NodeName name = absl::StrCat("node-", node);
    for (int32_t device = 0; device < devices_per_node; ++device) {
      cluster.devices.push_back({name, device});
    }
  }
  return cluster;
}

Cluster ClusterOf(const Placement& placement) {
  size_t count = 0;
  for (const NodeDevices& part : placement) count += part.devices.size();
  Cluster cluster;
  cluster.devices.reserve(count);
  for (const NodeDevices& part : placement) {
    for (int32_t device : part.devices) cluster.devices.push_back({part.node, device, part.domain});
  }
  return cluster;
}

Placement PlacementOf(const Cluster& cluster) {
  Placement placement;
  for (const Device& device : cluster.devices) {
    if (placement.empty() || placement.back().node != device.node) {
      placement.push_back({.node = device.node, .domain = device.domain});
    }
    placement.back().devices.push_back(device.index);
  }
  return placement;
}

void DecideHomes(const job::Recovery& recovery, int32_t replicas, ModuleLayout* layout) {
  layout->state_home = recovery.state_home;
  layout->state_copies = recovery.state_copies;
  if (layout->state_home == job::StateHome::kAuto) {
    layout->state_home = replicas > 1 ? job::StateHome::kMirror : job::StateHome::kHost;
  }
  if (layout->state_home == job::StateHome::kMirror) {
    layout->state_copies = std::min(layout->state_copies, replicas);
  }
}

void FitHomes(const job::Recovery& recovery, int32_t replicas, ModuleLayout* layout) {
  HomeChoice homes = AdmittedHomesOf(*layout);
  if (homes.home == job::StateHome::kMirror) {
    if (replicas == 1 && recovery.state_home == job::StateHome::kAuto) {
      homes = {job::StateHome::kHost, std::min(homes.copies, 2)};
    } else {
      homes.copies = std::min(homes.copies, replicas);
    }
  }
  SetHomes(homes, layout);
}

void SetHomes(const HomeChoice& homes, ModuleLayout* layout) {
  const HomeChoice admitted = AdmittedHomesOf(*layout);
  layout->state_home = homes.home;
  layout->state_copies = homes.copies;
  layout->admitted_homes.reset();
  if (homes != admitted) layout->admitted_homes = admitted;
}

PartOrder PartOrderOf(const job::JobSpec& spec, int32_t module) {
  return OrderUnder(spec.schedule, spec, module);
}

absl::StatusOr<Layout> DecideLayout(const job::JobSpec& spec, const Cluster& cluster, Epoch epoch,
                                    Fields fields) {
  if (fields == Fields::kUnknown || !job::KeepsLayoutRules(spec))
    RETURN_IF_ERROR(ViolationsStatus(job::CheckLayout(spec)));
  const int32_t world = spec.World();
  if (cluster.devices.size() < static_cast<size_t>(world)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job ", spec.name, " needs ", world, " devices; there are ", cluster.devices.size()));
  }
  Layout layout{.epoch = epoch, .derivation = kDerivation, .schedule = spec.schedule};
  if (layout.schedule.name == ScheduleName::kAuto) {
    layout.schedule.name =
        layout.schedule.chunks > 1 ? ScheduleName::kInterleaved : ScheduleName::k1F1B;
    layout.schedule.encoder_chunks = 1;  // only three_phase cuts encoder passes
  }
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    layout.modules.push_back(DecideModule(spec, layout.schedule, static_cast<int32_t>(i)));
  }
  layout.nodes = PlacementOf(cluster);
  layout.idle = PlacesOutsideModules(spec, cluster.devices.size());
  return layout;
}

}  // namespace phalanx::plan
