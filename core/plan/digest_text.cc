#include "core/plan/digest_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace phalanx::plan {
namespace {

// Strings carry their length, so that no text can pass for another one's structure.
std::string Quoted(absl::string_view text) { return absl::StrCat(text.size(), ":", text); }
std::string Exact(double value) { return absl::StrFormat("%a", value); }
template <typename E>
int Number(E value) {
  return static_cast<int>(value);
}

std::string List(const std::vector<std::string>& texts) {
  std::string out = absl::StrCat(texts.size());
  for (const std::string& text : texts) absl::StrAppend(&out, " ", Quoted(text));
  return out;
}

void AppendModule(const job::Module& module, std::string* out) {
  const job::Architecture& a = module.architecture;
  const job::Parallel& p = module.parallel;
  absl::StrAppend(out, "module ", Quoted(module.name), " offset ", module.offset, " frozen ",
                  module.frozen ? 1 : 0, " recompute ", Number(module.recompute), " weights ",
                  Quoted(module.weights.value_or("")), " loss_weight ", Exact(module.loss_weight),
                  "\n");
  absl::StrAppend(
      out, "architecture ", Number(a.family), " ",
      absl::StrJoin({a.hidden_size, int64_t{a.layers}, int64_t{a.heads}, int64_t{a.kv_heads},
                     a.head_size, a.mlp_size, a.block, a.vocabulary, a.context,
                     int64_t{a.tied_head}, a.image_size, a.patch_size, a.mel_bins, a.frames},
                    " "));
  absl::StrAppend(out, " ", Exact(a.rope_theta), " ", Exact(a.norm_epsilon), "\n");
  absl::StrAppend(
      out, "parallel ",
      absl::StrJoin({p.ranks, p.tp, p.cp, p.dp, p.pp, p.ep, p.expt_tp, p.expt_dp}, " "));
  for (job::MeshAxis axis : p.order) absl::StrAppend(out, " ", Number(axis));
  absl::StrAppend(out, "\n");
}

void AppendSpec(const job::JobSpec& spec, std::string* out) {
  absl::StrAppend(out, "job ", Quoted(spec.name), " seed ", spec.seed, " steps ", spec.steps,
                  " compute ", Number(spec.compute), " language ", spec.language, " device ",
                  Number(spec.resources.device), "\n");
  for (const job::Module& module : spec.modules) AppendModule(module, out);
  for (const job::Edge& edge : spec.edges) {
    absl::StrAppend(out, "edge ", edge.from, " ", edge.to);
    if (edge.projector.has_value()) {
      absl::StrAppend(out, " projector ", edge.projector->hidden_size, " ",
                      edge.projector->frozen ? 1 : 0);
    }
    absl::StrAppend(out, "\n");
  }
  absl::StrAppend(out, "batch ", spec.batch.global, " ", spec.batch.micro, "\n");
  absl::StrAppend(out, "schedule ", Number(spec.schedule.name), " ", spec.schedule.chunks, " ",
                  spec.schedule.encoder_chunks, "\n");
  if (spec.data.has_value()) {
    absl::StrAppend(out, "data ", List(spec.data->shards), " validation ",
                    List(spec.data->validation), " tokenizer ", Quoted(spec.data->tokenizer), " ",
                    spec.data->items_max, " ", spec.data->corrupt_max, "\n");
  }
  const job::Optimizer& o = spec.optimizer;
  absl::StrAppend(out, "optimizer ", o.warmup_steps, " ", Number(o.decay));
  for (double value : {o.learning_rate, o.minimum_learning_rate, o.weight_decay, o.betas[0],
                       o.betas[1], o.epsilon, o.clip_norm}) {
    absl::StrAppend(out, " ", Exact(value));
  }
  absl::StrAppend(out, "\n");
  if (spec.checkpoint.has_value()) {
    absl::StrAppend(out, "checkpoint ", Quoted(spec.checkpoint->directory), " ",
                    spec.checkpoint->every, " ", Quoted(spec.checkpoint->resume_from.value_or("")),
                    "\n");
  }
  absl::StrAppend(out, "state ", Number(spec.recovery.state_home), " ", spec.recovery.state_copies,
                  " ", spec.recovery.state_every, " widths ", Number(spec.recovery.widths), "\n");
}

std::string Ranks(const std::vector<Rank>& ranks, int32_t end = kWorldMax) {
  std::string out;
  for (Rank rank : ranks) {
    if (rank.value < end) absl::StrAppend(&out, " ", rank.value);
  }
  return out;
}

void AppendReplicas(const ModuleLayout& layout, std::string* out) {
  for (const SlotChange& change : layout.changes) {
    absl::StrAppend(out, "slot ", change.dp, " ", change.pp, Ranks(change.ranks), "\n");
  }
  absl::StrAppend(out, "speeds ", absl::StrJoin(layout.speeds, " "), " home ",
                  Number(layout.state_home), " ", layout.state_copies, "\n");
}

// Devices of ranks alone; indices are written as runs.
void AppendDevices(const Plan& plan, std::string* out) {
  int32_t left = plan.world;
  for (const NodeDevices& node : plan.layout.nodes) {
    const int32_t end = std::min<int32_t>(left, static_cast<int32_t>(node.devices.size()));
    left -= end;
    absl::StrAppend(out, "node ", Quoted(node.node));
    for (int32_t i = 0; i < end;) {
      const int32_t first = node.devices[static_cast<size_t>(i)];
      int32_t count = 0;
      for (; i < end && node.devices[static_cast<size_t>(i)] == first + count; ++i) ++count;
      absl::StrAppend(out, " ", first, "+", count);
    }
    absl::StrAppend(out, "\n");
    if (left == 0) break;
  }
}

}  // namespace

std::string CanonicalText(const Plan& plan) {
  std::string out = absl::StrCat("phalanx plan 2\nworld ", plan.world, " stages ", plan.stages,
                                 " microbatches ", plan.microbatches, "\n");
  AppendSpec(plan.spec, &out);
  for (const ModulePlan& module : plan.modules) {
    absl::StrAppend(&out, "stages ", module.first_stage, " chunks ", module.chunks(), " path ",
                    Number(module.order.path));
    for (const LayerRange& layers : module.stage_layers) {
      absl::StrAppend(&out, " ", layers.first, "+", layers.count);
    }
    absl::StrAppend(&out, "\n");
    AppendReplicas(plan.layout.modules[static_cast<size_t>(module.index)], &out);
  }
  for (const Link& link : plan.links) {
    if (link.edge < 0) continue;  // those within a module follow from its stages
    absl::StrAppend(&out, "link ",
                    absl::StrJoin({link.from_module, link.from_stage, link.from_chunk,
                                   link.to_module, link.to_stage, link.to_chunk, link.edge},
                                  " "),
                    "\n");
  }
  AppendDevices(plan, &out);
  absl::StrAppend(&out, "lost", Ranks(plan.layout.lost), "\nidle",
                  Ranks(plan.layout.idle, plan.world), "\n");
  return out;
}

}  // namespace phalanx::plan
