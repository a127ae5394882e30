// worker/model/make_stage.h: what the stages of every family are made from.
#pragma once

#include <memory>
#include <vector>

#include "core/job/job_spec.h"
#include "core/plan/plan.h"
#include "core/plan/units.h"
#include "worker/model/layer.h"
#include "worker/model/outgoing.h"
#include "worker/model/stage.h"
#include "worker/model/stage_io.h"

namespace phalanx::model {

// An outgoing edge of the module.
struct OutgoingEdge {
  int32_t index = 0;  // into spec.edges
  bool projector = false;
};

// One part of one module at one tensor coordinate. Alive while a stage is made.
struct StageParts {
  const job::Module& module;
  const ParameterTable& table;
  TensorGroup group;
  bool sequence;  // sequence parallelism between the products of the layers
  plan::TensorUnits units;
  plan::LayerRange layers;          // of the module
  bool first = true, last = true;   // whether it is the module's first, last part
  bool has_loss = false;            // whether the module has a loss
  plan::Trains trains;              // of the part
  std::vector<OutgoingEdge> edges;  // of the module, in the order of spec.edges
  job::LinearFormat linear = job::LinearFormat::kCompute;
  bool deterministic = false;  // attention's gradients
  StageOptions options;

  // Whether the layers have a backward pass, not a projector alone.
  bool LayersBack() const { return trains.inputs || !module.frozen; }
};

// Without the tables of rotary positions.
LayerContext ContextOf(const StageParts& parts);
Outgoing OutgoingOf(const StageParts& parts);

std::unique_ptr<Stage> MakeDecoderStage(const StageParts& parts);
std::unique_ptr<Stage> MakeEncoderStage(const StageParts& parts);

}  // namespace phalanx::model
