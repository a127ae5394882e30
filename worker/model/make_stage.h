// worker/model/make_stage.h: what the stages of every family are made from.
#pragma once

#include <memory>
#include <vector>

#include "core/job/job_spec.h"
#include "core/plan/units.h"
#include "worker/model/layer.h"
#include "worker/model/stage.h"
#include "worker/model/stage_io.h"

namespace phalanx::model {

// An outgoing edge of the module, on its last stage.
struct OutgoingEdge {
  int32_t index = 0;  // into spec.edges
  bool projector = false;
  bool frozen = false;
};

// Alive while a stage is made.
struct StageParts {
  const job::Module& module;
  const ParameterTable& table;
  TensorGroup group;
  plan::Shard shard;
  int32_t first_layer = 0, end_layer = 0;  // of the module: [first_layer, end_layer)
  std::vector<OutgoingEdge> edges;         // of the module; empty but on its last stage
  StageOptions options;
};

std::unique_ptr<Stage> MakeLanguageStage(const StageParts& parts);
std::unique_ptr<Stage> MakeVisionStage(const StageParts& parts);

}  // namespace phalanx::model
