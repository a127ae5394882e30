#include "tests/support/specs.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace phalanx::support {

job::Architecture Llama(const LlamaShape& shape) {
  job::Architecture architecture;
  architecture.family = job::Family::kLlama;
  architecture.hidden_size = shape.hidden_size;
  architecture.layers = shape.layers;
  architecture.heads = shape.heads;
  architecture.kv_heads = shape.kv_heads;
  architecture.head_size = shape.hidden_size / shape.heads;
  architecture.mlp_size = shape.mlp_size;
  architecture.block = shape.block;
  architecture.vocabulary = shape.vocabulary;
  architecture.context = shape.context;
  architecture.tied_head = shape.tied_head;
  return architecture;
}

job::Architecture LargeLlama(const LargeLlamaShape& shape) {
  return Llama({.hidden_size = 4096,
                .layers = shape.layers,
                .heads = 32,
                .kv_heads = 8,
                .mlp_size = 14336,
                .block = 128,
                .vocabulary = shape.vocabulary,
                .context = shape.context});
}

job::Architecture ClipVision(const ClipShape& shape) {
  job::Architecture architecture;
  architecture.family = job::Family::kClipVision;
  architecture.hidden_size = shape.hidden_size;
  architecture.layers = shape.layers;
  architecture.heads = shape.heads;
  architecture.kv_heads = shape.heads;
  architecture.head_size = shape.hidden_size / shape.heads;
  architecture.mlp_size = shape.mlp_size;
  architecture.block = shape.block;
  architecture.image_size = shape.image_size;
  architecture.patch_size = shape.patch_size;
  return architecture;
}

job::Architecture LargeClipVision() {
  return ClipVision({.hidden_size = 1024,
                     .layers = 24,
                     .heads = 16,
                     .mlp_size = 4096,
                     .block = 128,
                     .image_size = 336,
                     .patch_size = 14});
}

job::Architecture SiglipVision(const ClipShape& shape) {
  job::Architecture architecture = ClipVision(shape);
  architecture.family = job::Family::kSiglipVision;
  architecture.norm_epsilon = 1e-6;
  return architecture;
}

job::Architecture Whisper(const WhisperShape& shape) {
  job::Architecture architecture;
  architecture.family = job::Family::kWhisper;
  architecture.hidden_size = shape.hidden_size;
  architecture.layers = shape.layers;
  architecture.heads = shape.heads;
  architecture.kv_heads = shape.heads;
  architecture.head_size = shape.hidden_size / shape.heads;
  architecture.mlp_size = shape.mlp_size;
  architecture.block = shape.block;
  architecture.mel_bins = shape.mel_bins;
  architecture.frames = shape.frames;
  return architecture;
}

job::Architecture Regressor(const LlamaShape& shape) {
  job::Architecture architecture = Llama(shape);
  architecture.family = job::Family::kRegressor;
  architecture.vocabulary = 0;
  architecture.tied_head = false;
  return architecture;
}

job::Architecture NoArchitecture(int32_t layers) {
  job::Architecture architecture;
  architecture.layers = layers;
  return architecture;
}

AJob::AJob() {
  spec_.name = "test";
  spec_.seed = 7;
  spec_.compute = job::Precision::kFp32;
}

AJob& AJob::Module(const std::string& name, const job::Architecture& architecture,
                   const Layout& layout) {
  job::Module module;
  module.name = name;
  module.architecture = architecture;
  module.frozen = layout.frozen;
  module.recompute = layout.recompute;
  job::Parallel& parallel = module.parallel;
  parallel.tp = layout.tp;
  parallel.cp = layout.cp;
  parallel.dp = layout.dp;
  parallel.pp = layout.pp;
  parallel.ep = layout.ep;
  parallel.expt_tp = layout.expt_tp;
  parallel.ranks = layout.tp * layout.cp * layout.dp * layout.pp;
  parallel.expt_dp = parallel.ranks / (layout.expt_tp * layout.ep * layout.pp);
  parallel.order = layout.order;
  parallel.layers = layout.layers;
  parallel.sequence = layout.sequence;
  module.offset = layout.offset < 0 ? next_offset_ : layout.offset;
  next_offset_ = module.offset + parallel.ranks;
  spec_.modules.push_back(std::move(module));
  spec_.language = static_cast<int32_t>(spec_.modules.size()) - 1;
  for (size_t i = 0; i < spec_.modules.size(); ++i) {
    if (spec_.modules[i].name == "language") spec_.language = static_cast<int32_t>(i);
  }
  return *this;
}

AJob& AJob::Edge(const std::string& from, const std::string& to, const EdgeShape& shape) {
  job::Edge edge{.from = IndexOf(from), .to = IndexOf(to)};
  if (shape.projector > 0) {
    edge.projector = job::Projector{.hidden_size = shape.projector, .frozen = shape.frozen};
  }
  spec_.edges.push_back(edge);
  return *this;
}

AJob& AJob::Batch(int64_t global, int64_t micro) {
  spec_.batch = {.global = global, .micro = micro};
  return *this;
}

AJob& AJob::Steps(int64_t steps) {
  spec_.steps = steps;
  return *this;
}

AJob& AJob::Seed(uint64_t seed) {
  spec_.seed = seed;
  return *this;
}

AJob& AJob::Compute(job::Precision precision) {
  spec_.compute = precision;
  return *this;
}

AJob& AJob::Linear(job::LinearFormat linear) {
  spec_.linear = linear;
  return *this;
}

AJob& AJob::Schedule(job::ScheduleName name, int32_t chunks) {
  spec_.schedule.name = name;
  spec_.schedule.chunks = chunks;
  return *this;
}

AJob& AJob::Language(const std::string& name) {
  spec_.language = IndexOf(name);
  return *this;
}

job::JobSpec AJob::Build() const {
  job::JobSpec spec = spec_;
  for (const job::Module& module : spec.modules) {
    spec.resources.devices =
        std::max(spec.resources.devices, module.offset + module.parallel.ranks);
  }
  return spec;
}

int32_t AJob::IndexOf(const std::string& module) const {
  for (size_t i = 0; i < spec_.modules.size(); ++i) {
    if (spec_.modules[i].name == module) return static_cast<int32_t>(i);
  }
  std::fprintf(stderr, "AJob has no module %s\n", module.c_str());
  std::abort();
}

}  // namespace phalanx::support
