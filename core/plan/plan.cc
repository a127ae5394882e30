#include "core/plan/plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/graph.h"
#include "core/job/rules.h"
#include "core/plan/check.h"
#include "core/plan/cost.h"
#include "core/plan/digest_text.h"
#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

using job::ScheduleName;

AxisSize AxisOf(const job::Parallel& parallel, job::MeshAxis axis) {
  switch (axis) {
    case job::MeshAxis::kTensor:
      return {"tp", parallel.tp};
    case job::MeshAxis::kContext:
      return {"cp", parallel.cp};
    case job::MeshAxis::kData:
      return {"dp", parallel.dp};
    case job::MeshAxis::kPipeline:
      return {"pp", parallel.pp};
  }
  return {"", 0};
}

// Fills stage_layers: by cost in the order of data flow, or each stage's written layers evenly over
// its chunks.
void PlaceLayers(const job::Module& module, ModulePlan& layout) {
  const int32_t stages = module.parallel.pp, chunks = layout.chunks;
  const std::vector<int32_t>& given = module.parallel.layers;
  layout.stage_layers.resize(static_cast<size_t>(stages * chunks));
  std::vector<int32_t> counts;
  if (given.empty()) counts = BalanceLayers(module, stages * chunks);
  int32_t first = 0;
  for (int32_t flow = 0; flow < stages * chunks; ++flow) {
    const int32_t stage = layout.StageAt(flow), chunk = layout.ChunkAt(flow);
    const auto count = given.empty()
                           ? counts[static_cast<size_t>(flow)]
                           : static_cast<int32_t>(
                                 EvenSplit(given[static_cast<size_t>(stage)], chunks, chunk).count);
    layout.stage_layers[static_cast<size_t>(stage * chunks + chunk)] = {first, count};
    first += count;
  }
}

Placement PlacementOf(const job::JobSpec& spec, int32_t module) {
  const bool vee = module == spec.language && spec.schedule.name == ScheduleName::kZeroBubbleV;
  return vee ? Placement::kVee : Placement::kLoop;
}

absl::StatusOr<ModulePlan> PlanModule(const job::JobSpec& spec, int32_t index) {
  const job::Module& module = spec.modules[static_cast<size_t>(index)];
  const job::Parallel& parallel = module.parallel;
  std::vector<AxisSize> axes;
  for (job::MeshAxis axis : parallel.order) axes.push_back(AxisOf(parallel, axis));
  ASSIGN_OR_RETURN(Grid grid, Grid::Create(module.offset, std::move(axes)));
  ASSIGN_OR_RETURN(Grid expert_grid, Grid::CreateView(module.offset,
                                                      {{"expt_tp", parallel.expt_tp},
                                                       {"ep", parallel.ep},
                                                       {"expt_dp", parallel.expt_dp}},
                                                      {"pp", parallel.pp}, grid.AxisStride("pp")));

  ModulePlan layout{.index = index,
                    .grid = std::move(grid),
                    .expert_grid = std::move(expert_grid),
                    .chunks = job::ChunksOf(spec, index),
                    .placement = PlacementOf(spec, index)};
  PlaceLayers(module, layout);
  return layout;
}

// Stages of the module graph: a node weighs as much as it has pipeline parts.
int32_t CountStages(const job::JobSpec& spec, std::vector<ModulePlan>& modules) {
  int32_t stages = 0;
  for (int32_t index : job::DataFlowOrder(spec)) {
    ModulePlan& module = modules[static_cast<size_t>(index)];
    for (const job::Edge& edge : spec.edges) {
      if (edge.to != index) continue;
      const ModulePlan& from = modules[static_cast<size_t>(edge.from)];
      module.first_stage = std::max(
          module.first_stage, from.first_stage + static_cast<int32_t>(from.stage_layers.size()));
    }
    stages =
        std::max(stages, module.first_stage + static_cast<int32_t>(module.stage_layers.size()));
  }
  return stages;
}

std::vector<Link> MakeLinks(const job::JobSpec& spec, const std::vector<ModulePlan>& modules) {
  std::vector<Link> links;
  for (const ModulePlan& module : modules) {
    const auto parts = static_cast<int32_t>(module.stage_layers.size());
    for (int32_t flow = 0; flow + 1 < parts; ++flow) {
      links.push_back({.from_module = module.index,
                       .from_stage = module.StageAt(flow),
                       .to_module = module.index,
                       .to_stage = module.StageAt(flow + 1),
                       .from_chunk = module.ChunkAt(flow),
                       .to_chunk = module.ChunkAt(flow + 1)});
    }
  }
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    const ModulePlan& from = modules[static_cast<size_t>(spec.edges[i].from)];
    links.push_back({.from_module = from.index,
                     .from_stage = from.LastStage(),
                     .to_module = spec.edges[i].to,
                     .to_stage = 0,
                     .from_chunk = from.chunks - 1,
                     .to_chunk = 0,
                     .edge = static_cast<int32_t>(i)});
  }
  return links;
}

// Parts that something before trains, by data flow.
void FindTrained(Plan& plan) {
  for (ModulePlan& module : plan.modules) module.trains.resize(module.stage_layers.size());
  for (int32_t m : job::DataFlowOrder(plan.spec)) {
    ModulePlan& module = plan.modules[static_cast<size_t>(m)];
    const bool layers_train = !plan.module_spec(m).frozen;
    bool inputs = false;
    for (const Link& link : plan.links) {
      if (link.edge < 0 || link.to_module != m) continue;
      inputs |= plan.modules[static_cast<size_t>(link.from_module)]
                    .TrainsOf(link.from_stage, link.from_chunk)
                    .any();
    }
    for (int32_t chunk = 0; chunk < module.chunks; ++chunk) {
      for (int32_t stage = 0; stage < module.pp(); ++stage) {
        Trains& part = module.trains[static_cast<size_t>(stage * module.chunks + chunk)];
        part.weights = layers_train;
        part.inputs = inputs || (layers_train && !module.IsFirst(stage, chunk));
        if (!module.IsLast(stage, chunk)) continue;
        for (const job::Edge& edge : plan.spec.edges) {
          part.weights |= edge.from == m && edge.projector && !edge.projector->frozen;
        }
      }
    }
  }
}

// Devices of no module: the gaps between spans first, then what is beyond the world.
std::vector<Device> IdleDevices(const Plan& plan, const Cluster& cluster) {
  std::vector<std::pair<int32_t, int32_t>> spans;
  for (const ModulePlan& module : plan.modules) {
    spans.emplace_back(module.grid.offset(), module.grid.offset() + module.grid.size());
  }
  std::sort(spans.begin(), spans.end());
  std::vector<Device> idle;
  int32_t next = 0;
  for (const auto& [first, end] : spans) {
    for (; next < first; ++next) idle.push_back(cluster.devices[static_cast<size_t>(next)]);
    next = std::max(next, end);
  }
  idle.insert(idle.end(), cluster.devices.begin() + plan.world, cluster.devices.end());
  return idle;
}

}  // namespace

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

Rank Plan::RankOf(const Place& place) const {
  const Grid& grid = modules[static_cast<size_t>(place.module)].grid;
  const auto& order = parallel(place.module).order;
  std::array<int32_t, 4> coordinates{};
  for (size_t i = 0; i < order.size(); ++i) {
    switch (order[i]) {
      case job::MeshAxis::kTensor:
        coordinates[i] = place.tp;
        break;
      case job::MeshAxis::kContext:
        coordinates[i] = place.cp;
        break;
      case job::MeshAxis::kData:
        coordinates[i] = place.dp;
        break;
      case job::MeshAxis::kPipeline:
        coordinates[i] = place.pp;
        break;
    }
  }
  return grid.RankAt(coordinates);
}

int32_t Plan::Width(int32_t module, int32_t /*dp*/, int32_t /*pp*/) const {
  return parallel(module).tp;
}

RankList Plan::TensorGroup(int32_t module, int32_t dp, int32_t pp, int32_t cp) const {
  RankList ranks;
  const int32_t width = Width(module, dp, pp);
  for (int32_t tp = 0; tp < width; ++tp) {
    ranks.push_back(RankOf({.module = module, .tp = tp, .cp = cp, .dp = dp, .pp = pp}));
  }
  return ranks;
}

RankList Plan::DataGroup(int32_t module, int32_t pp, int32_t tp) const {
  RankList ranks;
  for (int32_t dp = 0; dp < parallel(module).dp; ++dp) {
    for (int32_t cp = 0; cp < parallel(module).cp; ++cp) {
      ranks.push_back(RankOf({.module = module, .tp = tp, .cp = cp, .dp = dp, .pp = pp}));
    }
  }
  return ranks;
}

std::optional<Place> Plan::PlaceOf(Rank rank, int32_t module) const {
  const Grid& grid = modules[static_cast<size_t>(module)].grid;
  if (!grid.Contains(rank)) return std::nullopt;
  const std::vector<int32_t> coordinates = grid.CoordinatesOf(rank);
  Place place{.module = module};
  const auto& order = parallel(module).order;
  for (size_t i = 0; i < order.size(); ++i) {
    switch (order[i]) {
      case job::MeshAxis::kTensor:
        place.tp = coordinates[i];
        break;
      case job::MeshAxis::kContext:
        place.cp = coordinates[i];
        break;
      case job::MeshAxis::kData:
        place.dp = coordinates[i];
        break;
      case job::MeshAxis::kPipeline:
        place.pp = coordinates[i];
        break;
    }
  }
  place.width = Width(module, place.dp, place.pp);
  return place;
}

std::vector<Place> Plan::PlacesOf(Rank rank) const {
  std::vector<Place> places;
  for (const ModulePlan& module : modules) {
    if (std::optional<Place> place = PlaceOf(rank, module.index)) places.push_back(*place);
  }
  return places;
}

std::vector<int32_t> Plan::LinksInto(int32_t module, int32_t stage, int32_t chunk) const {
  std::vector<int32_t> found;
  for (size_t i = 0; i < links.size(); ++i) {
    const Link& link = links[i];
    if (link.to_module == module && link.to_stage == stage && link.to_chunk == chunk) {
      found.push_back(static_cast<int32_t>(i));
    }
  }
  return found;
}

std::vector<int32_t> Plan::LinksOutOf(int32_t module, int32_t stage, int32_t chunk) const {
  std::vector<int32_t> found;
  for (size_t i = 0; i < links.size(); ++i) {
    const Link& link = links[i];
    if (link.from_module == module && link.from_stage == stage && link.from_chunk == chunk) {
      found.push_back(static_cast<int32_t>(i));
    }
  }
  return found;
}

bool Plan::IsSink(int32_t module) const {
  return std::none_of(spec.edges.begin(), spec.edges.end(),
                      [module](const job::Edge& edge) { return edge.from == module; });
}

Rank Plan::Reporter() const {
  return RankOf(
      {.module = spec.language, .pp = modules[static_cast<size_t>(spec.language)].LastStage()});
}

absl::StatusOr<Plan> MakePlan(const job::JobSpec& spec, const Cluster& cluster, Epoch epoch) {
  RETURN_IF_ERROR(ViolationsStatus(job::CheckLayout(spec)));
  Plan plan;
  plan.spec = spec;
  if (spec.schedule.name == ScheduleName::kAuto) {
    plan.spec.schedule.name =
        spec.schedule.chunks > 1 ? ScheduleName::kInterleaved : ScheduleName::k1F1B;
  }
  plan.epoch = epoch;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    ASSIGN_OR_RETURN(ModulePlan module, PlanModule(spec, static_cast<int32_t>(i)));
    plan.world = std::max(plan.world, module.grid.offset() + module.grid.size());
    plan.modules.push_back(std::move(module));
  }
  if (cluster.devices.size() < static_cast<size_t>(plan.world)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job ", spec.name, " needs ", plan.world, " devices; there are ", cluster.devices.size()));
  }
  plan.stages = CountStages(spec, plan.modules);
  plan.links = MakeLinks(spec, plan.modules);
  FindTrained(plan);
  plan.devices.assign(cluster.devices.begin(), cluster.devices.begin() + plan.world);
  plan.idle = IdleDevices(plan, cluster);
  plan.microbatches = job::MicrobatchesOf(spec);
  plan.digest = Digest(CanonicalText(plan));
  return plan;
}

}  // namespace phalanx::plan
