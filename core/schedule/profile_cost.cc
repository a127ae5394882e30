#include "core/schedule/profile_cost.h"

#include <algorithm>
#include <utility>

#include "core/plan/memory_estimate.h"
#include "core/schedule/overlap.h"

namespace phalanx::schedule {
namespace {

// Replicas of a module that do alike.
struct Lane {
  std::vector<int32_t> widths;  // [stage]
  double rows = 0;              // of a microbatch
  int64_t ranks = 0;            // of all of them
};
struct Lanes {
  std::vector<Lane> kinds;
  std::vector<int32_t> kind_of;  // as in ReplicaKinds; empty: there is one
};

// Samples of a microbatch over all lanes of the module, on average; as many in each language
// replica as in the fullest.
double SamplesOf(const plan::Plan& plan, int32_t module) {
  return SamplesOfMicrobatch(
      plan.spec, module, plan.replicas(plan.spec.language).present_replicas(), plan.microbatches);
}

Lanes LanesOf(const plan::Plan& plan, const plan::ModulePlan& module, const WorkModel& model) {
  const plan::ReplicaTable& table = module.replicas;
  Lanes lanes;
  const auto add = [&](double samples, int32_t over) -> Lane& {
    Lane& lane = lanes.kinds.emplace_back();
    lane.rows = model.RowsOfLane(module.index, samples, over) / table.cp();
    return lane;
  };
  ReplicaShapes shapes = ShapesOfReplicas(plan, module);
  for (ReplicaShape& shape : shapes.kinds) {
    Lane& lane = add(static_cast<double>(shape.samples) / static_cast<double>(plan.microbatches),
                     /*over=*/1);
    lane.widths = std::move(shape.widths);
    lane.ranks = shape.ranks;
  }
  lanes.kind_of = std::move(shapes.kind_of);
  if (!lanes.kinds.empty()) return lanes;
  Lane& lane = add(SamplesOf(plan, module.index), table.present_replicas());
  for (int32_t stage = 0; stage < module.pp(); ++stage)
    lane.widths.push_back(table.WidestOf(stage));
  return lanes;
}

// Of a microbatch of one part on such a replica.
PassSeconds PassOf(const plan::Plan& plan, const plan::PartId& part, const Lane& lane,
                   bool with_ends, WorkModel& model) {
  const plan::ModulePlan& module = plan.modules[static_cast<size_t>(part.module)];
  const job::Module& spec = plan.module_spec(part.module);
  return model.OfPart({.module = part.module,
                       .layers = module.layers(part.stage, part.chunk).count,
                       .first = with_ends && module.IsFirst(part.stage, part.chunk),
                       .last = with_ends && module.IsLast(part.stage, part.chunk),
                       .width = lane.widths[static_cast<size_t>(part.stage)],
                       .sequence = spec.parallel.sequence,
                       .rows = lane.rows,
                       .recompute = spec.recompute,
                       .microbatches = plan.microbatches});
}

// The lane that it takes longest on.
const Lane& SlowestOf(const plan::Plan& plan, const plan::PartId& part, const Lanes& lanes,
                      WorkModel& model) {
  return *std::max_element(lanes.kinds.begin(), lanes.kinds.end(),
                           [&](const Lane& a, const Lane& b) {
                             return PassOf(plan, part, a, true, model).total() <
                                    PassOf(plan, part, b, true, model).total();
                           });
}

bool OnOneNode(const plan::Plan& plan, const plan::RankList& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](Rank rank) { return plan.NodeOf(rank) == plan.NodeOf(ranks.front()); });
}

// Between those ranks: of `within` a node, or of the network.
const LinkRate& RateOf(const plan::Plan& plan, const DeviceProfile& profile,
                       const plan::RankList& ranks, const LinkRate& within) {
  return profile.network.has_value() && !OnOneNode(plan, ranks) ? *profile.network : within;
}

double MessageSeconds(const plan::Plan& plan, const DeviceProfile& profile, const WorkModel& model,
                      const plan::Link& link) {
  if (StaysOnRanks(plan, link)) return 0;
  const auto hidden =
      static_cast<double>(plan.module_spec(link.to.module).architecture.hidden_size);
  double rows = 0;
  plan::RankList ends;
  for (const plan::PartId& end : {link.from, link.to}) {
    const plan::ReplicaTable& table = plan.replicas(end.module);
    rows = std::max(rows, model.RowsOfLane(link.from.module, SamplesOf(plan, link.from.module),
                                           table.present_replicas()) /
                              (table.NarrowestOf(end.stage) * table.cp()));
    for (const Rank rank : plan.TensorGroup(end.module, table.FirstPresent(), end.stage))
      ends.push_back(rank);
  }
  return LinkSeconds(RateOf(plan, profile, ends, profile.message),
                     rows * hidden * static_cast<double>(plan::BytesOf(plan.spec.compute)));
}

// Passes and the layers in them; what the update takes is added by the caller.
PartCost PassCostOf(const plan::Plan& plan, const plan::PartId& part, const Lane& lane,
                    const std::vector<plan::UpdateShare>& shares, WorkModel& model) {
  const PassSeconds pass = PassOf(plan, part, lane, true, model);
  const PassSeconds middle = PassOf(plan, part, lane, false, model);
  return {.forward = pass.forward,
          .backward_input = pass.backward_input,
          .backward_weight = pass.backward_weight,
          .slices = SlicesOf(plan, part, shares,
                             {pass.forward, pass.backward_input + pass.backward_weight},
                             {middle.forward, middle.backward_input + middle.backward_weight})};
}

}  // namespace

std::vector<PassSeconds> PassesOf(const plan::Plan& plan, const Pipeline& pipeline,
                                  WorkModel& model) {
  std::vector<Lanes> lanes;
  for (const plan::ModulePlan& module : plan.modules) lanes.push_back(LanesOf(plan, module, model));
  std::vector<PassSeconds> passes;
  for (const Part& part : pipeline.parts) {
    const plan::PartId id = {part.module, part.stage, part.chunk};
    const Lane& slowest = SlowestOf(plan, id, lanes[static_cast<size_t>(part.module)], model);
    PassSeconds& pass = passes.emplace_back(PassOf(plan, id, slowest, true, model));
    if (!part.trains.any()) pass.backward_input = 0;
    if (!part.trains.weights) pass.backward_weight = 0;
  }
  return passes;
}

CostModel CostFromProfile(const plan::Plan& plan, const DeviceProfile& profile, int32_t items) {
  return CostFromProfile(plan, profile, items, UpdatesOf(plan));
}

CostModel CostFromProfile(const plan::Plan& plan, const DeviceProfile& profile, int32_t items,
                          const Updates& updates) {
  WorkModel model(plan.spec, profile, items);
  CostModel costs;
  for (const plan::ModulePlan& module : plan.modules) {
    const Lanes lanes = LanesOf(plan, module, model);
    std::vector<PartCost>& parts = costs.parts.emplace_back();
    ReplicaKinds& replicas = costs.replicas.emplace_back();
    replicas.kind_of = lanes.kind_of;
    if (!lanes.kind_of.empty()) {
      for (const Lane& lane : lanes.kinds) replicas.kinds.push_back({.ranks = lane.ranks});
    }
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      const plan::RankList group = plan.DataGroups(module.index, stage).front();
      const LinkRate& link = RateOf(plan, profile, group, profile.collective);
      for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
        const plan::PartId id = {module.index, stage, chunk};
        const plan::UpdateBytes& bytes = updates[static_cast<size_t>(module.index)][parts.size()];
        const auto cost_of = [&](const Lane& lane) {
          PartCost cost = PassCostOf(plan, id, lane, bytes.shares, model);
          cost.reduce = LinkSeconds(link, bytes.reduced);
          cost.update = bytes.updated / profile.update_bytes_per_second;
          cost.gather = LinkSeconds(link, bytes.gathered);
          cost.norm = bytes.normed / profile.memory_bytes_per_second;
          cost.prepare = model.RoundingSeconds(module.index, module.layers(stage, chunk).count,
                                               lane.widths[static_cast<size_t>(stage)]);
          return cost;
        };
        parts.push_back(cost_of(SlowestOf(plan, id, lanes, model)));
        for (size_t i = 0; i < replicas.kinds.size(); ++i)
          replicas.kinds[i].parts.push_back(cost_of(lanes.kinds[i]));
      }
    }
  }
  for (const plan::Link& link : plan.links)
    costs.link_messages.push_back(MessageSeconds(plan, profile, model, link));
  return costs;
}

}  // namespace phalanx::schedule
