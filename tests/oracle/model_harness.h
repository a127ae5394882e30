// tests/oracle/model_harness.h: every stage of a plan run on threads of this process, against the
// plain model.
//
// Modules have one replica each, their ranks what the plan says, chunks of stages included. A
// microbatch goes forward through all modules in the order of data flow, then backward, all tensor
// ranks of a part at a time; what parts and modules send each other is handed over. Parts that have
// no backward pass get none, and no gradient buffer where nothing trains. A forward pass has no
// more of the weights than it may read (layered_weights.h).
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "core/job/job_spec.h"
#include "core/plan/plan.h"
#include "tests/oracle/layered_weights.h"
#include "tests/oracle/plain_model.h"
#include "worker/comm/communicator.h"
#include "worker/model/stage_io.h"

namespace phalanx::oracle {

class StageWorld {
 public:
  // Weights are the job's initial values. On CUDA every module has tensor width 1: threads of one
  // process share host memory only.
  StageWorld(const job::JobSpec& spec, at::ScalarType type, at::Device device = at::kCPU);

  // The same weights as the oracle's, for tests that change those.
  void LoadWeights(const NamedTensors& parameters);

  // Which rows the last language part is told to be held to labels. kCounted: those of weight above
  // 0, or one; the last of them thrice.
  enum class Labelled : uint8_t { kAll, kCounted };
  void set_labelled(Labelled labelled) { labelled_ = labelled; }

  // All passes of one microbatch in a slot; returns the sum of the losses of all modules, on each
  // of which the ranks of its last part agree.
  double RunStep(int32_t slot, const PlainMicrobatch& batch);
  // The passes one by one.
  double Forward(int32_t slot, const PlainMicrobatch& batch);
  void BackwardInput(int32_t slot);
  void BackwardWeight(int32_t slot);  // of every module
  void BackwardWeight(int32_t module, int32_t slot);
  // Predicts at every position.
  model::StageOutput Evaluate(const PlainMicrobatch& batch);

  // A module alone: through its parts, and back from the gradients of what its last part put out.
  // Returns the outputs of the last part, and the gradient of the first part's incoming rows.
  // `rows` arrive in edge order.
  model::StageOutput ForwardModule(int32_t module, int32_t slot, const PlainMicrobatch& batch,
                                   const at::Tensor& rows = {}) {
    return RunModule(module, Pass::kForward, slot, batch, rows);
  }
  at::Tensor BackwardModule(int32_t module, int32_t slot,
                            const std::vector<at::Tensor>& output_gradient);

  // Of the sum of losses. Fails the test where duplicates differ or padding has a gradient.
  NamedTensors Gradients() const;
  NamedTensors Weights() const;

  const plan::Plan& plan() const { return plan_; }

 private:
  struct RankStage {
    plan::Place place;
    int32_t chunk = 0;
    plan::StageParameters parameters;
    at::Tensor weights, gradients;  // gradients undefined where nothing trains
    std::unique_ptr<LayeredWeights> by_layer;
    std::unique_ptr<model::Stage> stage;
  };
  using Part = std::vector<RankStage*>;  // the tensor ranks of one part

  enum class Pass { kForward, kEvaluate };
  std::vector<Part> PartsOf(int32_t module);
  // Runs `body` for every rank of the part at once.
  template <typename Body>
  void OnEachRank(const Part& part, const Body& body);
  model::StageOutput RunModule(int32_t module, Pass pass, int32_t slot,
                               const PlainMicrobatch& batch, const at::Tensor& rows);
  model::StageInput InputOf(int32_t module, const PlainMicrobatch& batch, const at::Tensor& rows,
                            Labelled labelled) const;
  void AddLabels(const PlainMicrobatch& batch, Labelled labelled, model::StageInput* input) const;
  // All modules in the order of data flow: the outputs of their last parts.
  std::vector<model::StageOutput> RunAll(Pass pass, int32_t slot, const PlainMicrobatch& batch);
  void AddStage(const plan::Place& place, int32_t chunk, comm::Communicator* tensor_group);
  const plan::Trains& TrainsOf(const RankStage& stage) const {
    return plan_.modules[static_cast<size_t>(stage.place.module)].TrainsOf(stage.place.pp,
                                                                           stage.chunk);
  }
  NamedTensors Assemble(at::Tensor RankStage::*buffer, bool sum_partials) const;

  plan::Plan plan_;
  const at::ScalarType type_;
  const at::Device device_;
  Labelled labelled_ = Labelled::kCounted;
  comm::InProcessWorld world_;
  std::vector<comm::Communicators> communicators_;  // of each rank
  std::vector<std::unique_ptr<RankStage>> stages_;
  std::map<int32_t, std::vector<int64_t>> row_counts_;  // by slot: rows of each edge
};

// Fails the test unless the stages of the spec's layout give the plain model's losses and gradients
// in fp64 to 1e-9, with weights and biases all away from zero: two microbatches in flight at once,
// of `items` and `items` - 1 items of each encoder.
void ExpectSameAsPlain(const job::JobSpec& spec, int64_t items = 3);

// The largest error over all tensors by the measure of rules.md 9: max|a - b| / max(max|b|, s), s
// the largest |b| over the module's tensors of that kind (the name without the layer's number).
double LargestError(const NamedTensors& a, const NamedTensors& b);

}  // namespace phalanx::oracle
