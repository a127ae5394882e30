#include "core/plan/plan.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/graph.h"
#include "core/job/rules.h"
#include "core/plan/check.h"
#include "core/plan/digest_text.h"
#include "core/plan/draft.h"
#include "core/plan/samples.h"

namespace phalanx::plan {
namespace {

AxisSize AxisOf(const job::Parallel& parallel, job::MeshAxis axis) {
  switch (axis) {
    case job::MeshAxis::kTensor:
      return {Axis::kTensor, parallel.tp};
    case job::MeshAxis::kContext:
      return {Axis::kContext, parallel.cp};
    case job::MeshAxis::kData:
      return {Axis::kData, parallel.dp};
    case job::MeshAxis::kPipeline:
      return {Axis::kPipeline, parallel.pp};
  }
  return {};
}

absl::Status BadLayout(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("layout: ", what));
}

// Fills stage_layers from the counts of the layout.
absl::Status PlaceLayers(const job::Module& module, const ModuleLayout& layout,
                         ModulePlan& module_plan) {
  const PartOrder& order = module_plan.order;
  const std::vector<int32_t>& layers =
      layout.lowered.has_value() ? layout.lowered->layers : layout.layers;
  if (layers.size() != static_cast<size_t>(order.count())) {
    return BadLayout(absl::StrCat("module ", module.name, " has layers of ", layers.size(),
                                  " parts; its schedule has ", order.count()));
  }
  module_plan.stage_layers.resize(layers.size());
  const bool known = module.architecture.layers > 0;
  int64_t first = 0;
  for (int32_t flow = 0; flow < order.count(); ++flow) {
    const size_t part = order.IndexOf(order.StageAt(flow), order.ChunkAt(flow));
    const int32_t count = layers[part];
    if (count < 0 || first + count > (known ? module.architecture.layers : INT32_MAX)) {
      return BadLayout(absl::StrCat("module ", module.name, " has ", count, " layers from layer ",
                                    first, " on; there are ", module.architecture.layers));
    }
    module_plan.stage_layers[part] = {static_cast<int32_t>(first), count};
    first += count;
  }
  if (!known || first == module.architecture.layers) return absl::OkStatus();
  return BadLayout(absl::StrCat("module ", module.name, " has ", first, " of ",
                                module.architecture.layers, " layers on its stages"));
}

// Fills speeds: as the layout has them, 0 for absent replicas; none if all are alike.
absl::Status PlaceSpeeds(const job::Module& module, const ModuleLayout& layout,
                         ModulePlan& module_plan) {
  const ReplicaTable& replicas = module_plan.replicas;
  const auto count = static_cast<size_t>(replicas.replicas());
  if (!layout.speeds.empty() && layout.speeds.size() != count) {
    return BadLayout(absl::StrCat("module ", module.name, " has speeds of ", layout.speeds.size(),
                                  " replicas; there are ", count));
  }
  if (layout.speeds.empty() && replicas.present_replicas() == replicas.replicas()) {
    return absl::OkStatus();
  }
  module_plan.speeds = layout.speeds;
  module_plan.speeds.resize(count, 1);
  bool any = false, equal = true;
  for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
    int64_t& speed = module_plan.speeds[static_cast<size_t>(dp)];
    if (speed < 0 || speed > kSpeedMax) {
      return BadLayout(absl::StrCat("replica ", dp, " of module ", module.name, " has speed ",
                                    speed, "; it must lie in [0, ", kSpeedMax, "]"));
    }
    if (!replicas.Present(dp)) speed = 0;
    any |= speed > 0;
    equal &= speed == module_plan.speeds[0];
  }
  if (!any) return BadLayout(absl::StrCat("no replica of module ", module.name, " has work"));
  if (equal) module_plan.speeds.clear();
  return absl::OkStatus();
}

// What is in force of a module's degrees.
job::Parallel ParallelOf(const job::Parallel& written, const std::optional<LoweredGrid>& lowered) {
  job::Parallel parallel = written;
  if (!lowered.has_value()) return parallel;
  parallel.tp = lowered->tp;
  parallel.dp = lowered->dp;
  parallel.pp = lowered->pp;
  parallel.ranks = static_cast<int32_t>(lowered->ranks.size());
  parallel.layers.clear();
  return parallel;
}

absl::Status CheckLowered(const job::Parallel& written, const ModuleLayout& layout) {
  const LoweredGrid& lowered = *layout.lowered;
  if (!layout.changes.empty()) {
    return absl::InvalidArgumentError("it is lowered and has changes beside");
  }
  if (lowered.tp <= written.tp && lowered.dp <= written.dp && lowered.pp <= written.pp)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("its degrees are lowered to tp ", lowered.tp, ", dp ", lowered.dp, ", pp ",
                   lowered.pp, " from tp ", written.tp, ", dp ", written.dp, ", pp ", written.pp));
}

absl::StatusOr<ReplicaTable> TableOf(const job::Parallel& written, const Grid& grid,
                                     const ModuleLayout& layout) {
  if (!layout.lowered.has_value()) return ReplicaTable::Create(grid, layout.changes, layout.order);
  RETURN_IF_ERROR(CheckLowered(written, layout));
  const LoweredGrid& lowered = *layout.lowered;
  return ReplicaTable::CreateLowered(
      grid, {.tp = lowered.tp, .cp = written.cp, .dp = lowered.dp, .pp = lowered.pp}, lowered.ranks,
      layout.order);
}

absl::StatusOr<ModulePlan> PlanModule(const job::JobSpec& spec, const ModuleLayout& layout,
                                      int32_t index) {
  const job::Module& module = spec.modules[static_cast<size_t>(index)];
  const job::Parallel& parallel = module.parallel;
  std::vector<AxisSize> axes;
  for (job::MeshAxis axis : parallel.order) axes.push_back(AxisOf(parallel, axis));
  ASSIGN_OR_RETURN(Grid grid, Grid::Create(module.offset, std::move(axes)));
  ASSIGN_OR_RETURN(Grid expert_grid, Grid::CreateView(module.offset,
                                                      {{Axis::kExpertTensor, parallel.expt_tp},
                                                       {Axis::kExpert, parallel.ep},
                                                       {Axis::kExpertData, parallel.expt_dp}},
                                                      {Axis::kPipeline, parallel.pp},
                                                      grid.AxisStride(Axis::kPipeline)));
  const auto before = [](const SlotChange& a, const SlotChange& b) {
    return std::tie(a.dp, a.pp) < std::tie(b.dp, b.pp);
  };
  if (!std::is_sorted(layout.changes.begin(), layout.changes.end(), before)) {
    return BadLayout(absl::StrCat("module ", module.name, " has its changes out of order"));
  }
  absl::StatusOr<ReplicaTable> replicas = TableOf(parallel, grid, layout);
  if (!replicas.ok()) {
    return BadLayout(absl::StrCat("module ", module.name, ": ", replicas.status().message()));
  }
  ModulePlan module_plan{.index = index,
                         .grid = std::move(grid),
                         .expert_grid = std::move(expert_grid),
                         .replicas = *std::move(replicas),
                         .order = PartOrderOf(spec, index),
                         .parallel = ParallelOf(parallel, layout.lowered)};
  module_plan.order.pp = module_plan.parallel.pp;
  RETURN_IF_ERROR(PlaceLayers(module, layout, module_plan));
  RETURN_IF_ERROR(PlaceSpeeds(module, layout, module_plan));
  return module_plan;
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
      links.push_back({.from = module.PartAt(flow), .to = module.PartAt(flow + 1)});
    }
  }
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    const ModulePlan& from = modules[static_cast<size_t>(spec.edges[i].from)];
    links.push_back({.from = from.PartAt(from.order.count() - 1),
                     .to = {.module = spec.edges[i].to},
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
      if (link.edge < 0 || link.to.module != m) continue;
      inputs |= plan.modules[static_cast<size_t>(link.from.module)]
                    .TrainsOf(link.from.stage, link.from.chunk)
                    .any();
    }
    for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
      for (int32_t stage = 0; stage < module.pp(); ++stage) {
        Trains& part = module.trains[module.order.IndexOf(stage, chunk)];
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

// Which modules stand on the same ranks now.
void FindShared(Plan& plan) {
  const ModulePlan& language = plan.modules[static_cast<size_t>(plan.spec.language)];
  for (ModulePlan& module : plan.modules) {
    module.shares_ranks =
        std::any_of(plan.modules.begin(), plan.modules.end(), [&module](const ModulePlan& other) {
          return &other != &module && module.replicas.SharesRanksWith(other.replicas);
        });
    module.has_phases = module.shares_ranks && module.index != plan.spec.language &&
                        module.replicas.SharesRanksWith(language.replicas) &&
                        job::ReachedFrom(plan.spec, module.index).contains(plan.spec.language);
  }
}

// Finds the node of each place, and checks that lost and idle ones have no work.
absl::Status PlaceDevices(Plan& plan) {
  int32_t node = 0;
  for (const NodeDevices& entry : plan.layout.nodes) {
    plan.node_of.insert(plan.node_of.end(), entry.devices.size(), node++);
  }
  const size_t count = plan.node_of.size();
  if (count < static_cast<size_t>(plan.world)) {
    return BadLayout(absl::StrCat("it has ", count, " devices for ", plan.world, " ranks"));
  }
  for (const SlowPlace& slow : plan.layout.slow) {
    if (slow.place.value >= 0 && static_cast<size_t>(slow.place.value) < count && slow.pace >= 1 &&
        slow.pace < kPaceOfOthers)
      continue;
    return BadLayout(absl::StrCat("place ", slow.place.value, " has pace ", slow.pace,
                                  "; paces lie in [1, ", kPaceOfOthers, "), places below ", count));
  }
  for (const std::vector<Rank>* ranks : {&plan.layout.lost, &plan.layout.idle}) {
    for (Rank rank : *ranks) {
      if (rank.value < 0 || static_cast<size_t>(rank.value) >= count) {
        return BadLayout(
            absl::StrCat("place ", rank.value, " is lost or idle; there are ", count, " devices"));
      }
      const std::vector<Place> places = plan.PlacesOf(rank);
      if (places.empty()) continue;
      return BadLayout(absl::StrCat("rank ", rank.value, " is lost or idle and has work in module ",
                                    plan.module_spec(places.front().module).name));
    }
  }
  return absl::OkStatus();
}

// What follows from document and layout but for the digest; the document, under the layout's
// schedule, was checked.
absl::StatusOr<Plan> Draft(Plan plan) {
  const std::vector<job::Module>& modules = plan.spec.modules;
  if (plan.layout.modules.size() != modules.size()) {
    return BadLayout(absl::StrCat("it has ", plan.layout.modules.size(),
                                  " modules; the document has ", modules.size()));
  }
  if (plan.layout.schedule.name == job::ScheduleName::kAuto) {
    return BadLayout("its schedule was never chosen");
  }
  plan.world = plan.spec.World();
  for (size_t i = 0; i < modules.size(); ++i) {
    ASSIGN_OR_RETURN(ModulePlan module,
                     PlanModule(plan.spec, plan.layout.modules[i], static_cast<int32_t>(i)));
    plan.modules.push_back(std::move(module));
  }
  plan.stages = CountStages(plan.spec, plan.modules);
  plan.links = MakeLinks(plan.spec, plan.modules);
  FindTrained(plan);
  FindShared(plan);
  RETURN_IF_ERROR(PlaceDevices(plan));
  RETURN_IF_ERROR(DealBatch(&plan));
  return plan;
}

absl::StatusOr<Plan> Derive(Plan of_layout) {
  ASSIGN_OR_RETURN(Plan plan, Draft(std::move(of_layout)));
  plan.digest = Digest(CanonicalText(plan));
  return plan;
}

}  // namespace

Rank Plan::RankOf(const Place& place) const {
  const ReplicaTable& table = replicas(place.module);
  PHALANX_CHECK(place.tp >= 0 && place.tp < table.Width(place.dp, place.pp), "a place of the plan");
  return table.At(place.dp, place.pp, place.cp, place.tp);
}

bool Plan::FailTogether(Rank a, Rank b) const {
  const NodeDevices &of_a = EntryOf(a), &of_b = EntryOf(b);
  return of_a.node == of_b.node || (!of_a.domain.empty() && of_a.domain == of_b.domain);
}

Device Plan::DeviceOf(Rank place) const {
  const auto index = static_cast<size_t>(place.value);
  const int32_t node = node_of[index];
  const auto first = std::lower_bound(node_of.begin(), node_of.end(), node) - node_of.begin();
  const NodeDevices& entry = layout.nodes[static_cast<size_t>(node)];
  return {entry.node, entry.devices[index - static_cast<size_t>(first)], entry.domain};
}

RankList Plan::DataGroupOf(const Place& place) const {
  const ReplicaTable& table = replicas(place.module);
  const bool equal = table.EqualWidths(place.pp);
  RankList ranks;
  for (const int32_t dp : table.order()) {
    for (int32_t cp = 0; cp < table.cp(); ++cp) {
      if (equal) {
        ranks.push_back(table.At(dp, place.pp, cp, place.tp));
        continue;
      }
      for (int32_t tp = 0; tp < table.Width(dp, place.pp); ++tp) {
        ranks.push_back(table.At(dp, place.pp, cp, tp));
      }
    }
  }
  return ranks;
}

std::vector<RankList> Plan::DataGroups(int32_t module, int32_t pp) const {
  const ReplicaTable& table = replicas(module);
  const int32_t count = table.EqualWidths(pp) ? table.WidestOf(pp) : 1;
  std::vector<RankList> groups;
  for (int32_t tp = 0; tp < count; ++tp) {
    groups.push_back(DataGroupOf({.module = module, .tp = tp, .pp = pp}));
  }
  return groups;
}

std::optional<Place> Plan::PlaceOf(Rank rank, int32_t module) const {
  const std::optional<ReplicaTable::Position> at = replicas(module).PositionOf(rank);
  if (!at.has_value()) return std::nullopt;
  return Place{
      .module = module, .tp = at->tp, .cp = at->cp, .dp = at->dp, .pp = at->pp, .width = at->width};
}

std::vector<Place> Plan::PlacesOf(Rank rank) const {
  std::vector<Place> places;
  for (const ModulePlan& module : modules) {
    if (std::optional<Place> place = PlaceOf(rank, module.index)) places.push_back(*place);
  }
  return places;
}

std::vector<int32_t> Plan::LinksInto(const PartId& part) const {
  std::vector<int32_t> found;
  for (size_t i = 0; i < links.size(); ++i) {
    if (links[i].to == part) found.push_back(static_cast<int32_t>(i));
  }
  return found;
}

std::vector<int32_t> Plan::LinksOutOf(const PartId& part) const {
  std::vector<int32_t> found;
  for (size_t i = 0; i < links.size(); ++i) {
    if (links[i].from == part) found.push_back(static_cast<int32_t>(i));
  }
  return found;
}

bool Plan::IsSink(int32_t module) const {
  return std::none_of(spec.edges.begin(), spec.edges.end(),
                      [module](const job::Edge& edge) { return edge.from == module; });
}

bool Plan::RunsInPhases(int32_t module) const {
  return spec.schedule.name == job::ScheduleName::kThreePhase &&
         modules[static_cast<size_t>(module)].has_phases;
}

bool Plan::RunsAhead(int32_t module) const {
  if (spec.schedule.name != job::ScheduleName::kThreePhase) return false;
  if (RunsInPhases(module)) return true;
  const std::set<int32_t> fed = job::ReachedFrom(spec, module);
  return std::any_of(fed.begin(), fed.end(), [this](int32_t other) { return RunsInPhases(other); });
}

Rank Plan::Reporter() const {
  const ModulePlan& language = modules[static_cast<size_t>(spec.language)];
  return RankOf({.module = spec.language,
                 .dp = language.replicas.FirstPresent(),
                 .pp = language.LastStage()});
}

absl::Status DealBatch(Plan* plan) {
  const ModulePlan& language = plan->modules[static_cast<size_t>(plan->spec.language)];
  plan->sample_runs = LaneStarts(language, plan->spec.batch.global);
  int64_t most = 0;
  for (size_t lane = 0; lane + 1 < plan->sample_runs.size(); ++lane) {
    most = std::max(most, plan->sample_runs[lane + 1] - plan->sample_runs[lane]);
  }
  plan->microbatches = (most + plan->spec.batch.micro - 1) / plan->spec.batch.micro;
  const int64_t load = job::PlanningLoad(plan->spec);
  if (plan->microbatches * load <= job::kPlanningLoadMax) return absl::OkStatus();
  return BadLayout(absl::StrCat("its replicas make ", plan->microbatches,
                                " microbatches with a planning load of ", load, " each: at most ",
                                job::kPlanningLoadMax, " in a step"));
}

absl::StatusOr<Plan> Expand(const job::JobSpec& spec, Layout layout) {
  Plan plan;
  plan.spec = spec;
  plan.spec.schedule = layout.schedule;
  if (layout.micro > 0) plan.spec.batch.micro = layout.micro;
  const size_t modules = std::min(plan.spec.modules.size(), layout.modules.size());
  for (size_t i = 0; i < modules; ++i) {
    job::Module& module = plan.spec.modules[i];
    module.recompute = layout.modules[i].recompute.value_or(module.recompute);
  }
  plan.layout = std::move(layout);
  RETURN_IF_ERROR(ViolationsStatus(job::CheckLayout(plan.spec)));
  return Derive(std::move(plan));
}

absl::StatusOr<Plan> MakePlan(const job::JobSpec& spec, const Cluster& cluster, Epoch epoch,
                              Fields fields) {
  ASSIGN_OR_RETURN(Layout layout, DecideLayout(spec, cluster, epoch, fields));
  // What was checked is the document with the schedule that it names.
  if (layout.schedule != spec.schedule) return Expand(spec, std::move(layout));
  Plan plan;
  plan.spec = spec;
  plan.layout = std::move(layout);
  return Derive(std::move(plan));
}

absl::StatusOr<Plan> DraftPlan(const job::JobSpec& spec, const Cluster& cluster) {
  ASSIGN_OR_RETURN(Layout layout, DecideLayout(spec, cluster, Epoch{1}, Fields::kSound));
  if (layout.schedule != spec.schedule) return Expand(spec, std::move(layout));
  Plan plan;
  plan.spec = spec;
  plan.layout = std::move(layout);
  return Draft(std::move(plan));
}

}  // namespace phalanx::plan
