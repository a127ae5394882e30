#include "core/plan/cost.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/plan/bucket_order.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/parameters.h"
#include "core/plan/shares.h"
#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

using job::Modality;
using job::TraitsOf;

PassCost& operator+=(PassCost& a, const PassCost& b) {
  a.forward += b.forward;
  a.backward_input += b.backward_input;
  a.backward_weight += b.backward_weight;
  return a;
}

PassCost& operator-=(PassCost& a, const PassCost& b) {
  a.forward -= b.forward;
  a.backward_input -= b.backward_input;
  a.backward_weight -= b.backward_weight;
  return a;
}

PassCost Scaled(PassCost cost, double factor) {
  return {cost.forward * factor, cost.backward_input * factor, cost.backward_weight * factor};
}

// A matrix multiplication with `weights` parameters costs the same in each of the three passes.
PassCost Linear(double rows, double weights) {
  const double flops = 2 * rows * weights;
  return {flops, flops, flops};
}

// Of a layer's attention, the product behind it.
PassCost AttentionOutputCost(const job::Module& module, double rows) {
  const job::Architecture& a = module.architecture;
  return Linear(rows, static_cast<double>(a.hidden_size * a.heads * HeadSize(a)));
}

}  // namespace

bool LabelledAloneLeave(const job::JobSpec& spec, int32_t module) {
  return module == spec.language &&
         TraitsOf(spec.modules[static_cast<size_t>(module)].architecture).vocabulary() &&
         std::none_of(spec.edges.begin(), spec.edges.end(),
                      [module](const job::Edge& edge) { return edge.from == module; });
}

PassCost AttentionCost(const job::Module& module, double rows, double length) {
  const job::Architecture& a = module.architecture;
  const auto q = static_cast<double>(a.heads * HeadSize(a));
  const auto kv = static_cast<double>(KvHeads(a) * HeadSize(a));
  PassCost cost = Linear(rows, static_cast<double>(a.hidden_size) * (2 * q + 2 * kv));
  // Scores and their product with the values; backward has twice as many multiplications.
  const double scores = 2 * 2 * rows * length * q * (TraitsOf(a).decoder() ? 0.5 : 1.0);
  cost.forward += scores;
  cost.backward_input += 2 * scores;
  return cost;
}

PassCost MlpCost(const job::Module& module, double rows) {
  const job::Architecture& a = module.architecture;
  const double matrices = TraitsOf(a).gated() ? 3 : 2;
  return Linear(rows, matrices * static_cast<double>(a.hidden_size * a.mlp_size));
}

PassCost LayerCost(const job::Module& module, double rows, double length) {
  PassCost cost = AttentionCost(module, rows, length);
  cost += MlpCost(module, rows);
  return cost;
}

PassCost EmbeddingCost(const job::Module& module, double rows) {
  const job::Architecture& a = module.architecture;
  const auto hidden = static_cast<double>(a.hidden_size);
  switch (TraitsOf(a).modality) {
    case Modality::kText:  // a row is read, and its gradient added
      return {rows * hidden, 0, rows * hidden};
    case Modality::kImage: {
      PassCost cost = Linear(rows, hidden * 3 * static_cast<double>(a.patch_size * a.patch_size));
      cost.backward_input = 0;  // nobody asks for the gradient of a pixel
      return cost;
    }
    case Modality::kSound: {  // two convolutions of width 3, the first at twice the rate
      PassCost cost = Linear(2 * rows, 3 * static_cast<double>(a.mel_bins) * hidden);
      cost.backward_input = 0;
      cost += Linear(rows, 3 * hidden * hidden);
      return cost;
    }
    case Modality::kNone:
      break;
  }
  return {};
}

PassCost HeadCost(const job::Module& module, double rows) {
  const job::Architecture& a = module.architecture;
  const auto hidden = static_cast<double>(a.hidden_size);
  switch (TraitsOf(a).head) {
    case job::HeadKind::kVocabulary:
      return Linear(rows, hidden * static_cast<double>(a.vocabulary));
    case job::HeadKind::kPrediction:
      return Linear(rows, hidden * hidden);
    case job::HeadKind::kNone:
      break;
  }
  return {};
}

PassCost ProjectorCost(const job::JobSpec& spec, const job::Edge& edge, double rows) {
  if (!edge.projector.has_value()) return {};
  const auto in =
      static_cast<double>(spec.modules[static_cast<size_t>(edge.from)].architecture.hidden_size);
  const auto out =
      static_cast<double>(spec.modules[static_cast<size_t>(edge.to)].architecture.hidden_size);
  PassCost cost = Linear(rows, static_cast<double>(edge.projector->hidden_size) * (in + out));
  if (edge.projector->frozen) cost.backward_weight = 0;
  return cost;
}

PassCost PartCost(const Plan& plan, const PartId& part, int32_t width, double rows, double length) {
  return PartCost(plan, part, width, rows, length, plan.spec.batch.labelled_share);
}

PassCost PartCost(const Plan& plan, const PartId& part, int32_t width, double rows, double length,
                  double labelled_share) {
  const auto [module, stage, chunk] = part;
  const job::Module& spec = plan.module_spec(module);
  const job::Architecture& a = spec.architecture;
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  const auto even = 1.0 / width;
  const auto largest = [width](int64_t units) {
    return static_cast<double>((units + width - 1) / width) / static_cast<double>(units);
  };
  const UnitCounts units = CountUnits(a);
  PassCost cost = Scaled(AttentionCost(spec, rows, length), largest(units.query_heads));
  cost += Scaled(MlpCost(spec, rows), largest(units.mlp_blocks));
  const int32_t layers = layout.layers(stage, chunk).count;
  cost = Scaled(cost, layers);
  const bool last = layout.IsLast(stage, chunk);
  const double labelled = TraitsOf(a).vocabulary() ? rows * labelled_share : rows;
  if (last && layers > 0 && LabelledAloneLeave(plan.spec, module)) {
    const double left_out = rows - labelled;
    cost -= Scaled(AttentionOutputCost(spec, left_out), largest(units.query_heads));
    cost -= Scaled(MlpCost(spec, left_out), largest(units.mlp_blocks));
  }
  if (layout.IsFirst(stage, chunk)) cost += Scaled(EmbeddingCost(spec, rows), even);
  if (last && plan.HasLoss(module)) {
    cost += Scaled(HeadCost(spec, labelled),
                   TraitsOf(a).vocabulary() ? largest(units.vocabulary_blocks) : even);
  }
  const bool layers_back = layout.TrainsOf(stage, chunk).inputs || !spec.frozen;
  if (!layers_back) cost.backward_input = 0;
  if (spec.frozen) cost.backward_weight = 0;
  if (last) {
    for (const job::Edge& edge : plan.spec.edges) {
      if (edge.from != module || !edge.projector.has_value()) continue;
      PassCost projector = ProjectorCost(plan.spec, edge, rows);
      if (!layers_back) {
        // Back to where its first layer's weights need it, no further.
        const job::Architecture& to = plan.module_spec(edge.to).architecture;
        projector.backward_input = edge.projector->frozen
                                       ? 0
                                       : 2 * rows * static_cast<double>(to.hidden_size) *
                                             static_cast<double>(edge.projector->hidden_size);
      }
      cost += Scaled(projector, largest(BlockCount(edge.projector->hidden_size, a.block)));
    }
  }
  return cost;
}

namespace {

std::vector<UpdateShare> SharesOf(const StageParameters& parameters, int32_t width) {
  if (width > 1) return {{.complete_behind = kBehindPass}};
  const BucketOrder order = BucketOrderOf(parameters);
  std::vector<UpdateShare> shares;
  for (size_t b = 0; b < order.complete_behind.size(); ++b) {
    const UpdateShare share = {.of_all = static_cast<double>(parameters.buckets[b].elements) /
                                         static_cast<double>(parameters.trained_extent),
                               .complete_behind = order.complete_behind[b],
                               .needed_before = order.needed_before[b]};
    const bool together = !shares.empty() &&
                          shares.back().complete_behind == share.complete_behind &&
                          shares.back().needed_before == share.needed_before;
    if (together) {
      shares.back().of_all += share.of_all;
    } else {
      shares.push_back(share);
    }
  }
  return shares;
}

}  // namespace

UpdateBytes UpdateCost(const Plan& plan, const PartId& part) {
  const ReplicaTable& replicas = plan.replicas(part.module);
  const Place place{.module = part.module,
                    .dp = replicas.FirstPresent(),
                    .pp = part.stage,
                    .width = replicas.NarrowestOf(part.stage)};
  const StageParameters parameters = ParametersOf(plan, place, part.chunk);
  if (parameters.trained_extent == 0) return {};
  // Nobody leads more than the first rank, but one that shares a KV head more may hold more.
  const job::Architecture& architecture = plan.module_spec(part.module).architecture;
  const auto kv_heads = [&](int32_t tp) {
    return TensorUnitsOf(architecture, place.width, tp).kv_heads.count;
  };
  Place holder = place;
  for (int32_t tp = 1; tp < place.width; ++tp) {
    if (kv_heads(tp) > kv_heads(holder.tp)) holder.tp = tp;
  }
  const int64_t most = holder.tp == 0 ? 0 : ParametersOf(plan, holder, part.chunk).trained_extent;
  const auto bytes = static_cast<double>(BytesOf(plan.spec.compute));
  const double wide_bytes = std::max(4.0, bytes);
  const auto extent = static_cast<double>(std::max(parameters.trained_extent, most));
  const auto count = static_cast<double>(parameters.replicas);
  const double travels = extent * (count - 1) / count;
  // The gradient is read; master and moments are read and written; weights are written.
  const bool everywhere = EveryReplicaIsHome(plan, part.module);
  const double led = static_cast<double>(parameters.LedElements()) / count;
  // Passes wait for what mirrors update only where they write weights.
  const double updates = everywhere ? count : 1;
  const ModuleLayout& layout = plan.layout.modules[static_cast<size_t>(part.module)];
  const double mirrors =
      IsMirrored(plan, part.module) ? std::min<double>(layout.state_copies, count) - 1 : 0;
  const bool by_collectives = parameters.replicas > 1 && replicas.EqualWidths(part.stage);
  const bool for_all = SumsAreForAll(plan, part.module, part.stage);
  return {
      .reduced = (for_all ? 2 : 1) * travels * wide_bytes,
      .normed = led * wide_bytes,
      .updated = updates * led * (7 * wide_bytes + bytes),
      .gathered = everywhere ? 0 : travels * bytes,
      .mirror_sums = for_all ? 0 : mirrors * led * wide_bytes,
      .mirror_updates = everywhere ? 0 : mirrors * led * 7 * wide_bytes,
      .shares = by_collectives ? SharesOf(parameters, place.width) : std::vector<UpdateShare>()};
}

std::vector<int32_t> BalanceLayers(const job::JobSpec& spec, int32_t index, int32_t parts) {
  const job::Module& module = spec.modules[static_cast<size_t>(index)];
  const job::Architecture& a = module.architecture;
  std::vector<int32_t> counts(static_cast<size_t>(parts), a.layers < parts ? 0 : 1);
  if (a.layers < parts) return counts;
  const int64_t item_rows = job::RowsOfItem(a);
  const auto length = static_cast<double>(item_rows > 0 ? item_rows : a.context);
  const double layer = LayerCost(module, 1, length).total();
  std::vector<double> costs(static_cast<size_t>(parts), layer);
  costs.front() += EmbeddingCost(module, 1).total();
  const double labelled = TraitsOf(a).vocabulary() ? spec.batch.labelled_share : 1;
  costs.back() += HeadCost(module, labelled).total();
  if (LabelledAloneLeave(spec, index)) {
    costs.back() -= AttentionOutputCost(module, 1 - labelled).total();
    costs.back() -= MlpCost(module, 1 - labelled).total();
  }
  // Every further layer goes to the part that is cheapest so far, the first of equals: for equal
  // layers that minimises the dearest part.
  for (int32_t rest = a.layers - parts; rest > 0; --rest) {
    const auto cheapest =
        static_cast<size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
    costs[cheapest] += std::max(layer, 1.0);
    ++counts[cheapest];
  }
  return counts;
}

StepFlops FlopsOf(const Plan& plan, const StepRows& step) {
  StepFlops flops;
  const double labelled_share = step.tokens > 0 ? step.labelled / step.tokens : 1;
  for (const ModulePlan& layout : plan.modules) {
    const job::Architecture& architecture = plan.module_spec(layout.index).architecture;
    const auto per_item = static_cast<double>(job::RowsOfItem(architecture));
    const double items = TraitsOf(architecture).images() ? step.images : step.sounds;
    const double rows = per_item > 0 ? items * per_item : step.tokens;
    const double length =
        per_item > 0 ? per_item : step.tokens / static_cast<double>(plan.spec.batch.global);
    for (int32_t stage = 0; stage < layout.pp(); ++stage) {
      for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
        const PartId part = {layout.index, stage, chunk};
        flops.all_rows += PartCost(plan, part, 1, rows, length, 1).total();
        flops.executed += PartCost(plan, part, 1, rows, length, labelled_share).total();
      }
    }
  }
  return flops;
}

}  // namespace phalanx::plan
