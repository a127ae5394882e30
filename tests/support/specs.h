// tests/support/specs.h: job specs as tests write them, with only what matters visible.
//
//   job::JobSpec spec = AJob().Module("vision", ClipVision(), {.dp = 2})
//                             .Module("language", Llama({.tied_head = true}), {.tp = 2, .pp = 2})
//                             .Edge("vision", "language", {.projector = 48})
//                             .Batch(8, 2);
//
// What is left out: each module begins after the one before it, the language module is the one
// named "language" or else the last, one step, fp32, seed 7.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job_spec.h"

namespace phalanx::support {

struct LlamaShape {
  int64_t hidden_size = 32;
  int32_t layers = 4, heads = 8, kv_heads = 2;
  int64_t mlp_size = 64, block = 8, vocabulary = 96, context = 32;
  bool tied_head = false;
};
job::Architecture Llama(const LlamaShape& shape = {});

// Of layers as wide as those of a model of 8 billion parameters.
struct LargeLlamaShape {
  int32_t layers = 18;
  int64_t vocabulary = 128256, context = 4096;
};
job::Architecture LargeLlama(const LargeLlamaShape& shape = {});

struct ClipShape {
  int64_t hidden_size = 32;
  int32_t layers = 2, heads = 4;
  int64_t mlp_size = 64, block = 8, image_size = 8, patch_size = 4;
};
job::Architecture ClipVision(const ClipShape& shape = {});

// ViT-L of pictures of 336 pixels.
job::Architecture LargeClipVision();

// Of the shape of a ClipVision; its norm's epsilon is 1e-6.
job::Architecture SiglipVision(const ClipShape& shape = {});

struct WhisperShape {
  int64_t hidden_size = 32;
  int32_t layers = 2, heads = 4;
  int64_t mlp_size = 64, block = 8, mel_bins = 5, frames = 8;
};
job::Architecture Whisper(const WhisperShape& shape = {});

// A decoder like Llama(shape) that predicts rows; its vocabulary and head do not count.
job::Architecture Regressor(const LlamaShape& shape = {});

// No shape at all: `phalanx plan` of a bare layout. `layers` may be given.
job::Architecture NoArchitecture(int32_t layers = 0);

struct Layout {
  int32_t tp = 1, cp = 1, dp = 1, pp = 1, ep = 1, expt_tp = 1;
  std::array<job::MeshAxis, 4> order = job::Parallel{}.order;
  std::vector<int32_t> layers = {};
  int32_t offset = -1;  // -1: after the module before
  bool frozen = false;
  job::Recompute recompute = job::Recompute::kNone;
  bool sequence = false;
};

struct EdgeShape {
  int64_t projector = 0;  // its hidden size; 0: none
  bool frozen = false;
};

class AJob {
 public:
  AJob();
  AJob& Module(const std::string& name, const job::Architecture& architecture,
               const Layout& layout = {});
  AJob& Edge(const std::string& from, const std::string& to, const EdgeShape& shape = {});
  AJob& Batch(int64_t global, int64_t micro);
  AJob& Steps(int64_t steps);
  AJob& Seed(uint64_t seed);
  AJob& Compute(job::Precision precision);
  AJob& Linear(job::LinearFormat linear);
  AJob& Schedule(job::ScheduleName name, int32_t chunks = 1);
  AJob& Language(const std::string& name);
  // Everything else, directly.
  job::JobSpec& spec() { return spec_; }

  job::JobSpec Build() const;
  operator job::JobSpec() const { return Build(); }  // NOLINT: a builder stands for what it builds

 private:
  int32_t IndexOf(const std::string& module) const;

  job::JobSpec spec_;
  int32_t next_offset_ = 0;
};

}  // namespace phalanx::support
