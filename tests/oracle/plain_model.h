// tests/oracle/plain_model.h: the whole model in one process, unsharded, by LibTorch autograd.
//
// The oracle that the engine is compared with: written from the definition of the layers alone,
// with none of the engine's code but the names, shapes and initial values of parameters
// (core/plan). Works on whole microbatches; gradients accumulate over them until Step.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "core/job/job_spec.h"
#include "core/plan/parameters.h"

namespace phalanx::oracle {

// Tensors by "module/tensor name": matrices [rows, cols], vectors [n].
using NamedTensors = std::map<std::string, at::Tensor>;

// Samples that are worked on together. The result does not depend on how samples are grouped, but
// for rounding. All decoders see the same [B, T]. Vectors by module may be shorter than the job has
// modules; undefined: none.
struct PlainMicrobatch {
  at::Tensor tokens;               // [B, T] int64
  at::Tensor labels;               // [B, T] int64
  at::Tensor label_weights;        // [B, T]
  std::vector<at::Tensor> pixels;  // by module: [items, 3, image, image]
  std::vector<at::Tensor> sounds;  // by module: [items, mel bins, frames]
  // By module, [R] int64: flat position b * T + t, in every decoder that the module feeds, of each
  // row that it sends. Undefined for a decoder: it sends every position.
  std::vector<at::Tensor> positions;
  // In place of `positions` where the language module alone is fed: [R] int64, rows of all edges,
  // concatenated in edge order.
  at::Tensor row_positions;
  // Of every regressor that has a loss: [R, hidden], flat positions [R] int64, weights [R].
  at::Tensor targets, target_positions, target_weights;
};

struct PlainStep {
  double loss = 0;  // mean over counted tokens
  double counted_tokens = 0;
  double gradient_norm = 0;  // of the mean loss, over all modules, before clipping
};

// Not thread-safe.
class PlainModel {
 public:
  // Parameters of a job, whatever its layout, with their initial values. Ends the test on a spec
  // that cannot be planned on one device a module.
  PlainModel(const job::JobSpec& spec, at::ScalarType type);

  // The sum of the losses of all modules that have one, with its graph.
  at::Tensor Loss(const PlainMicrobatch& batch) const;
  // Features that an encoder sends along edge `edge` of the given items (pixels or sounds):
  // [items * rows, hidden of the destination].
  at::Tensor Features(int32_t edge, const at::Tensor& items) const;
  // Hidden states of the language module before the final norm, [B, T, hidden]; logits
  // [B, T, vocabulary].
  at::Tensor Hidden(const PlainMicrobatch& batch) const;
  at::Tensor Logits(const at::Tensor& hidden) const;
  // Of any decoder, after the final norm: [B, T, hidden].
  at::Tensor NormedHidden(int32_t module, const PlainMicrobatch& batch) const;

  // Adds a microbatch's loss, tokens and gradients to those of the step.
  void Accumulate(const PlainMicrobatch& batch);
  // Gradients so far, of the sum of losses; zeros where a parameter took no part.
  NamedTensors Gradients() const;
  // One AdamW update by the job's optimizer at `learning_rate`, after which gradients are zero
  // again. Without a counted token nothing changes and everything returned is 0.
  PlainStep Step(double learning_rate);

  // Leaves that require gradients; a caller may write values into them under at::NoGradGuard.
  NamedTensors& parameters() { return parameters_; }
  const NamedTensors& parameters() const { return parameters_; }

 private:
  const job::Module& ModuleAt(int32_t module) const {
    return spec_.modules[static_cast<size_t>(module)];
  }
  const job::Architecture& ArchitectureOf(int32_t module) const {
    return ModuleAt(module).architecture;
  }
  const at::Tensor& Get(int32_t module, const std::string& name) const;
  at::Tensor Linear(int32_t module, const at::Tensor& x, const std::string& name) const;
  at::Tensor Norm(int32_t module, const at::Tensor& x, const std::string& name) const;

  at::Tensor EncoderLayer(int32_t module, const at::Tensor& x, int32_t layer) const;
  at::Tensor VisionFeatures(int32_t module, const at::Tensor& pixels) const;
  at::Tensor AudioFeatures(int32_t module, const at::Tensor& sounds) const;
  at::Tensor DecoderLayer(int32_t module, const at::Tensor& x, int32_t layer) const;
  // Before the final norm, [B, T, hidden].
  at::Tensor DecoderHidden(int32_t module, const PlainMicrobatch& batch) const;
  // Of one edge: what arrives, undefined without any, and where it stands.
  at::Tensor RowsAlong(int32_t edge, const PlainMicrobatch& batch) const;
  at::Tensor PositionsOf(int32_t module, const PlainMicrobatch& batch) const;
  at::Tensor Projected(int32_t edge, const at::Tensor& rows) const;
  at::Tensor TokenLoss(const PlainMicrobatch& batch) const;
  at::Tensor TargetLoss(int32_t module, const PlainMicrobatch& batch) const;

  const job::JobSpec spec_;
  const at::ScalarType type_;
  NamedTensors parameters_, first_moments_, second_moments_;
  std::map<std::string, bool> decays_, frozen_;
  std::vector<bool> has_target_loss_;  // by module
  int64_t updates_ = 0;
  double loss_sum_ = 0, counted_tokens_ = 0;
};

// The spec with every module on one rank of its own: what the oracle plans.
job::JobSpec OnOneRankEach(job::JobSpec spec);

}  // namespace phalanx::oracle
