#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/job/job_reader.h"
#include "core/job/scalar.h"
#include "core/job/schema.h"

namespace phalanx::job {
namespace {

Tree Plain(std::string text) {
  Tree tree;
  tree.kind = Tree::Kind::kScalar;
  tree.scalar = std::move(text);
  return tree;
}

Tree Of(int64_t value) { return Plain(absl::StrCat(value)); }
Tree Of(int32_t value) { return Plain(absl::StrCat(value)); }
Tree Of(uint64_t value) { return Plain(absl::StrCat(value)); }
Tree Of(double value) { return Plain(FormatNumber(value)); }
Tree Of(bool value) { return Plain(value ? "true" : "false"); }
Tree Of(absl::Duration value) { return Plain(phalanx::job::FormatDuration(value)); }
Tree Of(const std::string& value) {
  Tree tree = Plain(value);
  tree.quoted = NeedsQuotes(value);
  return tree;
}
Tree Of(const std::optional<std::string>& value) { return value.has_value() ? Of(*value) : Tree(); }

template <typename Enum>
Tree Of(Enum value, absl::Span<const absl::string_view> names, size_t first = 0) {
  return Plain(std::string(names[static_cast<size_t>(value) - first]));
}

template <typename List>
Tree ListOf(const List& values) {
  Tree tree;
  tree.kind = Tree::Kind::kSequence;
  for (const auto& value : values) tree.items.push_back(Of(value));
  return tree;
}

// A mapping under construction.
struct Mapping {
  Tree tree;
  Mapping() { tree.kind = Tree::Kind::kMapping; }
  void Put(const char* name, Tree value) { tree.entries.emplace_back(name, std::move(value)); }
};

Tree Of(const std::map<std::string, std::string>& values) {
  Mapping mapping;
  for (const auto& [name, value] : values) mapping.tree.entries.emplace_back(name, Of(value));
  return mapping.tree;
}

Tree Of(const Architecture& a) {
  Mapping mapping;
  const FamilyTraits& family = TraitsOf(a);
  if (!family.known()) {
    mapping.Put("layers", Of(a.layers));
    return mapping.tree;
  }
  mapping.Put("family", Of(a.family, FamilyNames(), 1));
  mapping.Put("hidden_size", Of(a.hidden_size));
  mapping.Put("layers", Of(a.layers));
  mapping.Put("heads", Of(a.heads));
  if (family.grouped_queries) mapping.Put("kv_heads", Of(a.kv_heads));
  mapping.Put("head_size", Of(a.head_size));
  mapping.Put("mlp_size", Of(a.mlp_size));
  mapping.Put("block", Of(a.block));
  if (family.vocabulary()) mapping.Put("vocabulary", Of(a.vocabulary));
  if (family.decoder()) mapping.Put("context", Of(a.context));
  if (family.vocabulary()) mapping.Put("tied_head", Of(a.tied_head));
  if (family.positions == Positions::kRotary) mapping.Put("rope_theta", Of(a.rope_theta));
  mapping.Put("norm_epsilon", Of(a.norm_epsilon));
  if (family.images()) {
    mapping.Put("image_size", Of(a.image_size));
    mapping.Put("patch_size", Of(a.patch_size));
  }
  if (family.sounds()) {
    mapping.Put("mel_bins", Of(a.mel_bins));
    mapping.Put("frames", Of(a.frames));
  }
  return mapping.tree;
}

Tree Of(const Parallel& p) {
  Mapping mapping;
  mapping.Put("ranks", Of(p.ranks));
  mapping.Put("tp", Of(p.tp));
  mapping.Put("cp", Of(p.cp));
  mapping.Put("pp", Of(p.pp));
  mapping.Put("ep", Of(p.ep));
  mapping.Put("expt_tp", Of(p.expt_tp));
  Tree order;
  order.kind = Tree::Kind::kSequence;
  for (const MeshAxis axis : p.order) order.items.push_back(Of(axis, AxisNames()));
  mapping.Put("order", std::move(order));
  mapping.Put("layers", p.layers.empty() ? Tree() : ListOf(p.layers));
  return mapping.tree;
}

Tree Of(const Module& module) {
  Mapping mapping;
  mapping.Put("name", Of(module.name));
  const Architecture& a = module.architecture;
  if (TraitsOf(a).known() || a.layers > 0) mapping.Put("architecture", Of(a));
  mapping.Put("parallel", Of(module.parallel));
  mapping.Put("offset", Of(module.offset));
  mapping.Put("frozen", Of(module.frozen));
  mapping.Put("recompute", Of(module.recompute, RecomputeNames()));
  mapping.Put("weights", Of(module.weights));
  if (TraitsOf(a).predicts()) mapping.Put("loss_weight", Of(module.loss_weight));
  return mapping.tree;
}

Tree Of(const Edge& edge, const JobSpec& spec) {
  Mapping mapping;
  mapping.Put("from", Of(spec.modules[static_cast<size_t>(edge.from)].name));
  mapping.Put("to", Of(spec.modules[static_cast<size_t>(edge.to)].name));
  if (!edge.projector.has_value()) {
    mapping.Put("projector", Tree());
    return mapping.tree;
  }
  Mapping projector;
  projector.Put("type", Of(std::string("mlp")));
  // 0: a plan without architectures leaves it open.
  if (edge.projector->hidden_size > 0) {
    projector.Put("hidden_size", Of(edge.projector->hidden_size));
  }
  projector.Put("frozen", Of(edge.projector->frozen));
  mapping.Put("projector", std::move(projector.tree));
  return mapping.tree;
}

Tree Of(const Schedule& schedule) {
  Mapping mapping;
  mapping.Put("name", Of(schedule.name, ScheduleNames()));
  mapping.Put("chunks", Of(schedule.chunks));
  mapping.Put("encoder_chunks", Of(schedule.encoder_chunks));
  return mapping.tree;
}

Tree Of(const Data& data) {
  Mapping mapping;
  mapping.Put("format", Of(std::string("webdataset")));
  mapping.Put("shards", ListOf(data.shards));
  mapping.Put("validation", data.validation.empty() ? Tree() : ListOf(data.validation));
  mapping.Put("tokenizer", Of(data.tokenizer));
  mapping.Put("items_max", Of(data.items_max));
  mapping.Put("corrupt_max", Of(data.corrupt_max));
  return mapping.tree;
}

Tree Of(const Optimizer& optimizer) {
  Mapping mapping;
  mapping.Put("name", Of(std::string("adamw")));
  mapping.Put("learning_rate", Of(optimizer.learning_rate));
  mapping.Put("minimum_learning_rate", Of(optimizer.minimum_learning_rate));
  mapping.Put("warmup_steps", Of(optimizer.warmup_steps));
  mapping.Put("decay", Of(optimizer.decay, DecayNames()));
  mapping.Put("weight_decay", Of(optimizer.weight_decay));
  mapping.Put("betas", ListOf(optimizer.betas));
  mapping.Put("epsilon", Of(optimizer.epsilon));
  mapping.Put("clip_norm", Of(optimizer.clip_norm));
  return mapping.tree;
}

Tree Of(const Checkpoint& checkpoint) {
  Mapping mapping;
  mapping.Put("directory", Of(checkpoint.directory));
  mapping.Put("every", Of(checkpoint.every));
  mapping.Put("keep", Of(checkpoint.keep));
  mapping.Put("resume_from", Of(checkpoint.resume_from));
  return mapping.tree;
}

Tree Of(const Recovery& recovery) {
  Mapping mapping;
  Tree ladder;
  ladder.kind = Tree::Kind::kSequence;
  for (const Rung rung : recovery.ladder) ladder.items.push_back(Of(rung, RungNames()));
  mapping.Put("ladder", std::move(ladder));
  mapping.Put("widths", Of(recovery.widths, WidthsNames()));
  mapping.Put("state_home", Of(recovery.state_home, StateHomeNames()));
  mapping.Put("state_copies", Of(recovery.state_copies));
  mapping.Put("state_every", Of(recovery.state_every));
  Mapping budget;
  budget.Put("total", Of(recovery.budget.total));
  budget.Put("without_progress", Of(recovery.budget.without_progress));
  budget.Put("window", Of(recovery.budget.window));
  mapping.Put("budget", std::move(budget.tree));
  return mapping.tree;
}

Tree Of(const Resources& resources) {
  Mapping mapping;
  mapping.Put("device", Of(resources.device, DeviceNames()));
  mapping.Put("devices", Of(resources.devices));
  mapping.Put("spares", Of(resources.spares));
  mapping.Put("node_selector", Of(resources.node_selector));
  return mapping.tree;
}

Tree SpecOf(const JobSpec& spec) {
  Mapping mapping;
  mapping.Put("seed", Of(spec.seed));
  mapping.Put("steps", Of(spec.steps));
  mapping.Put("priority", Of(spec.priority));
  mapping.Put("preemptible", Of(spec.preemptible));
  mapping.Put("time_limit", spec.time_limit.has_value() ? Of(*spec.time_limit) : Tree());
  Mapping precision;
  precision.Put("compute", Of(spec.compute, PrecisionNames()));
  mapping.Put("precision", std::move(precision.tree));
  mapping.Put("language", Of(spec.modules[static_cast<size_t>(spec.language)].name));
  Tree modules;
  modules.kind = Tree::Kind::kSequence;
  for (const Module& module : spec.modules) modules.items.push_back(Of(module));
  mapping.Put("modules", std::move(modules));
  Tree edges;
  edges.kind = Tree::Kind::kSequence;
  for (const Edge& edge : spec.edges) edges.items.push_back(Of(edge, spec));
  mapping.Put("edges", std::move(edges));
  Mapping batch;
  batch.Put("global", Of(spec.batch.global));
  batch.Put("micro", Of(spec.batch.micro));
  mapping.Put("batch", std::move(batch.tree));
  mapping.Put("schedule", Of(spec.schedule));
  if (spec.data.has_value()) mapping.Put("data", Of(*spec.data));
  mapping.Put("optimizer", Of(spec.optimizer));
  mapping.Put("checkpoint", spec.checkpoint.has_value() ? Of(*spec.checkpoint) : Tree());
  mapping.Put("recovery", Of(spec.recovery));
  mapping.Put("resources", Of(spec.resources));
  mapping.Put("output", Of(spec.output));
  mapping.Put("trace", Of(spec.trace));
  return mapping.tree;
}

}  // namespace

Tree WriteJobSpec(const JobSpec& spec) {
  Mapping document;
  document.Put("apiVersion", Of(std::string("phalanx/v1")));
  document.Put("kind", Of(std::string("TrainingJob")));
  Mapping metadata;
  metadata.Put("name", Of(spec.name));
  metadata.Put("labels", Of(spec.labels));
  document.Put("metadata", std::move(metadata.tree));
  document.Put("spec", SpecOf(spec));
  return document.tree;
}

}  // namespace phalanx::job
