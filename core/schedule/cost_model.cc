#include "core/schedule/cost_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "core/plan/bucket_order.h"
#include "core/plan/cost.h"
#include "core/plan/parameters.h"
#include "core/plan/samples.h"
#include "core/plan/shares.h"

namespace phalanx::schedule {
namespace {

// A second. Between them as on current GPUs of one board: some 2,000 FLOPs in the time in which a
// byte passes a link, some 200 in that of a byte of memory.
constexpr double kNominalFlops = 100e12;
constexpr double kNominalLinkBytes = kNominalFlops / 2000;
constexpr double kNominalMemoryBytes = kNominalFlops / 200;

// Token rows of one sample: one item, or a full context.
double RowsOfSample(const job::Architecture& architecture) {
  const int64_t per_item = job::RowsOfItem(architecture);
  return static_cast<double>(per_item > 0 ? per_item : architecture.context);
}

// Schedules that move weight passes need to know how long they are.
bool DividesBackward(const job::JobSpec& spec) {
  return spec.schedule.name == job::ScheduleName::kZeroBubbleH1 ||
         spec.schedule.name == job::ScheduleName::kZeroBubbleV;
}

// Without shapes a part costs what its layers are, or 1 where their number is not known either; the
// backward takes two forwards.
CostModel CostFromLayers(const plan::Plan& plan) {
  CostModel model;
  bool counted = true;
  for (size_t m = 0; m < plan.modules.size(); ++m) {
    counted &= plan.module_spec(static_cast<int32_t>(m)).architecture.layers > 0;
  }
  for (const plan::ModulePlan& module : plan.modules) {
    std::vector<PartCost>& parts = model.parts.emplace_back();
    for (const plan::LayerRange& layers : module.stage_layers) {
      const double forward = counted ? std::max(layers.count, 1) : 1;
      const double weight = DividesBackward(plan.spec) ? forward : 0;
      parts.push_back(
          {.forward = forward, .backward_input = 2 * forward - weight, .backward_weight = weight});
    }
  }
  return model;
}

double SumOfSpeeds(const plan::ModulePlan& module) {
  if (module.speeds.empty()) return module.replicas.replicas();
  return std::accumulate(module.speeds.begin(), module.speeds.end(), 0.0);
}

// Samples of a full microbatch over all language replicas: the fastest has batch.micro.
double SamplesOfFullMicrobatch(const plan::Plan& plan) {
  const plan::ModulePlan& language = plan.modules[static_cast<size_t>(plan.spec.language)];
  const int64_t fastest = language.speeds.empty()
                              ? 1
                              : *std::max_element(language.speeds.begin(), language.speeds.end());
  return static_cast<double>(plan.spec.batch.micro) * SumOfSpeeds(language) /
         static_cast<double>(fastest);
}

// Of the slowest replica of the part.
PartCost CostOfPart(const plan::Plan& plan, const plan::ModulePlan& module, int32_t stage,
                    int32_t chunk, double samples, KnownUpdates& updates) {
  const double length = RowsOfSample(plan.module_spec(module.index).architecture);
  const double speeds = SumOfSpeeds(module);
  std::set<std::pair<int32_t, int64_t>> kinds;  // width, speed
  // Replicas that are alike are one kind.
  const bool alike = module.speeds.empty() && module.replicas.EqualWidths(stage);
  for (int32_t dp = 0; dp < (alike ? 1 : module.replicas.replicas()); ++dp) {
    const int64_t speed = module.SpeedOf(dp);
    if (speed > 0) kinds.emplace(module.replicas.Width(dp, stage), speed);
  }
  PartCost slowest{.forward = 0, .backward_input = 0, .backward_weight = 0};
  double most_rows = 0;
  for (const auto& [width, speed] : kinds) {
    const double rows =
        samples * length * static_cast<double>(speed) / (speeds * module.replicas.cp());
    most_rows = std::max(most_rows, rows);
    const plan::PassCost cost =
        plan::PartCost(plan, {module.index, stage, chunk}, width, rows, length);
    slowest.forward = std::max(slowest.forward, cost.forward / kNominalFlops);
    slowest.backward_input = std::max(slowest.backward_input, cost.backward_input / kNominalFlops);
    slowest.backward_weight =
        std::max(slowest.backward_weight, cost.backward_weight / kNominalFlops);
  }
  const plan::UpdateBytes& bytes = updates.Of(plan, {module.index, stage, chunk});
  slowest.reduce = bytes.reduced / kNominalLinkBytes;
  slowest.update = bytes.updated / kNominalMemoryBytes;
  slowest.gather = bytes.gathered / kNominalLinkBytes;
  const plan::PassCost layer = plan::LayerCost(plan.module_spec(module.index), most_rows, length);
  const double layers = module.layers(stage, chunk).count / kNominalFlops;
  slowest.slices =
      SlicesOf(plan, {module.index, stage, chunk}, bytes.shares,
               {slowest.forward, slowest.backward_input + slowest.backward_weight},
               {layers * layer.forward, layers * (layer.backward_input + layer.backward_weight)});
  return slowest;
}

// Nothing where all replicas are alike. `slowest`: what all of them reduce, update and gather in.
ReplicaKinds KindsOf(const plan::Plan& plan, const plan::ModulePlan& module,
                     const std::vector<PartCost>& slowest) {
  ReplicaShapes shapes = ShapesOfReplicas(plan, module);
  ReplicaKinds all{.kind_of = std::move(shapes.kind_of)};
  const double length = RowsOfSample(plan.module_spec(module.index).architecture);
  for (const ReplicaShape& shape : shapes.kinds) {
    ReplicaKind& kind = all.kinds.emplace_back(ReplicaKind{.parts = slowest, .ranks = shape.ranks});
    const double rows = static_cast<double>(shape.samples) * length /
                        static_cast<double>(plan.microbatches * module.replicas.cp());
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
        PartCost& part = kind.parts[module.order.IndexOf(stage, chunk)];
        const plan::PassCost cost =
            plan::PartCost(plan, {module.index, stage, chunk},
                           shape.widths[static_cast<size_t>(stage)], rows, length);
        part.forward = cost.forward / kNominalFlops;
        part.backward_input = cost.backward_input / kNominalFlops;
        part.backward_weight = cost.backward_weight / kNominalFlops;
      }
    }
  }
  return all;
}

CostModel CostFromFlops(const plan::Plan& plan) {
  CostModel model;
  KnownUpdates updates;
  const double samples = SamplesOfFullMicrobatch(plan);
  for (const plan::ModulePlan& module : plan.modules) {
    std::vector<PartCost>& parts = model.parts.emplace_back();
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
        parts.push_back(CostOfPart(plan, module, stage, chunk, samples, updates));
      }
    }
    model.replicas.push_back(KindsOf(plan, module, parts));
  }
  return model;
}

}  // namespace

ReplicaShapes ShapesOfReplicas(const plan::Plan& plan, const plan::ModulePlan& module) {
  ReplicaShapes all;
  bool alike = module.speeds.empty();
  for (int32_t stage = 0; stage < module.pp(); ++stage) {
    alike &= module.replicas.EqualWidths(stage);
  }
  if (alike) return all;
  const std::vector<int64_t> samples = plan::LaneSamplesOfStep(plan, module.index);
  std::map<std::pair<std::vector<int32_t>, int64_t>, int32_t> known;  // by widths, samples
  for (int32_t dp = 0; dp < module.replicas.replicas(); ++dp) {
    all.kind_of.push_back(-1);
    if (!module.replicas.Present(dp)) continue;
    const int64_t share = samples[static_cast<size_t>(dp)];
    std::vector<int32_t> widths;
    int64_t ranks = 0;
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      widths.push_back(module.replicas.Width(dp, stage));
      ranks += int64_t{widths.back()} * module.replicas.cp();
    }
    const auto [entry, is_new] =
        known.try_emplace({widths, share}, static_cast<int32_t>(all.kinds.size()));
    all.kind_of.back() = entry->second;
    if (is_new) all.kinds.push_back({.widths = std::move(widths), .samples = share});
    all.kinds[static_cast<size_t>(entry->second)].ranks += ranks;
  }
  return all;
}

const plan::UpdateBytes& KnownUpdates::Of(const plan::Plan& plan, const plan::PartId& part) {
  const plan::ReplicaTable& replicas = plan.replicas(part.module);
  const auto m = static_cast<size_t>(part.module);
  const int32_t homes =
      plan::IsMirrored(plan, part.module) ? plan.layout.modules[m].state_copies : 1;
  const auto [entry, is_new] = known_.try_emplace(
      {plan::KindOfPart(plan, part), part.module, replicas.NarrowestOf(part.stage),
       replicas.EqualWidths(part.stage), replicas.present_replicas() * replicas.cp(), homes,
       plan::EveryReplicaIsHome(plan, part.module), plan.parallel(part.module).sequence});
  if (is_new) entry->second = plan::UpdateCost(plan, part);
  return entry->second;
}

Updates UpdatesOf(const plan::Plan& plan, KnownUpdates& known) {
  Updates updates;
  for (const plan::ModulePlan& module : plan.modules) {
    std::vector<plan::UpdateBytes>& parts = updates.emplace_back();
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      for (int32_t chunk = 0; chunk < module.chunks(); ++chunk)
        parts.push_back(known.Of(plan, {module.index, stage, chunk}));
    }
  }
  return updates;
}

Updates UpdatesOf(const plan::Plan& plan) {
  KnownUpdates known;
  return UpdatesOf(plan, known);
}

std::vector<UpdateSlice> SlicesOf(const plan::Plan& plan, const plan::PartId& part,
                                  const std::vector<plan::UpdateShare>& shares,
                                  const PassTimes& whole, const PassTimes& layers) {
  const plan::ModulePlan& module = plan.modules[static_cast<size_t>(part.module)];
  const double count = std::max(module.layers(part.stage, part.chunk).count, 1);
  // What is not the layers' is what is behind them, but for a first part of several.
  const bool rest_is_before =
      module.IsFirst(part.stage, part.chunk) && !module.IsLast(part.stage, part.chunk);
  // Where in a pass it is through with `done` layers, and with the rest where that comes first.
  const auto fraction = [count](double whole_pass, double all_layers, bool rest_first,
                                double done) {
    const double of_layers = whole_pass > all_layers ? all_layers / whole_pass : 1;
    return std::min(1.0, (rest_first ? 1 - of_layers : 0) + of_layers * done / count);
  };
  std::vector<UpdateSlice> slices;
  for (const plan::UpdateShare& share : shares) {
    UpdateSlice& slice = slices.emplace_back(UpdateSlice{.share = share.of_all});
    if (share.complete_behind != plan::kBehindPass) {
      slice.complete =
          fraction(whole.backward, layers.backward, !rest_is_before, share.complete_behind);
    }
    if (share.needed_before > 0) {
      slice.needed = fraction(whole.forward, layers.forward, rest_is_before, share.needed_before);
    }
  }
  return slices;
}

double SecondsOf(const PartCost& cost, Op op) {
  switch (op) {
    case Op::kForward:
      return cost.forward;
    case Op::kBackwardInput:
      return cost.backward_input;
    case Op::kBackwardWeight:
      return cost.backward_weight;
    case Op::kReduce:
      return cost.reduce;
    case Op::kOptimize:
      return cost.update;
    case Op::kGather:
      return cost.gather;
    default:
      return 0;
  }
}

CostModel CostFromShapes(const plan::Plan& plan) {
  const bool known =
      std::all_of(plan.spec.modules.begin(), plan.spec.modules.end(),
                  [](const auto& module) { return job::TraitsOf(module.architecture).known(); });
  return known ? CostFromFlops(plan) : CostFromLayers(plan);
}

}  // namespace phalanx::schedule
