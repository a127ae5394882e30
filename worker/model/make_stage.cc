#include "worker/model/make_stage.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "worker/model/torch_boundary.h"

namespace phalanx::model {
namespace {

// The layers that this part of the module has parameters of; they are consecutive.
void FindLayers(const plan::StageParameters& parameters, StageParts* parts) {
  parts->first_layer = INT32_MAX;
  for (const plan::LocalMatrix& matrix : parameters.matrices) {
    if (matrix.layer < 0) continue;
    parts->first_layer = std::min(parts->first_layer, matrix.layer);
    parts->end_layer = std::max(parts->end_layer, matrix.layer + 1);
  }
  if (parts->end_layer == 0) parts->first_layer = 0;
}

void FindEdges(const plan::Plan& plan, int32_t module, StageParts* parts) {
  for (size_t i = 0; i < plan.spec.edges.size(); ++i) {
    const job::Edge& edge = plan.spec.edges[i];
    if (edge.from != module) continue;
    parts->edges.push_back({static_cast<int32_t>(i), edge.projector.has_value(),
                            edge.projector.has_value() && edge.projector->frozen});
  }
}

absl::Status CheckBuffers(const plan::StageParameters& parameters, const at::Tensor& weights,
                          const at::Tensor& gradients, const StageOptions& options) {
  if (weights.numel() != parameters.elements || weights.scalar_type() != options.compute) {
    return absl::InternalError(absl::StrCat("the weight buffer has ", weights.numel(),
                                            " elements of ", c10::toString(weights.scalar_type()),
                                            "; the stage needs ", parameters.elements, " of ",
                                            c10::toString(options.compute)));
  }
  if (gradients.defined() &&
      (gradients.numel() != parameters.elements || gradients.scalar_type() != options.gradient)) {
    return absl::InternalError(absl::StrCat("the gradient buffer has ", gradients.numel(),
                                            " elements of ", c10::toString(gradients.scalar_type()),
                                            "; the stage needs ", parameters.elements, " of ",
                                            c10::toString(options.gradient)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> MakeStage(const plan::Plan& plan, const plan::Place& place,
                                                 int32_t /*chunk*/,
                                                 const plan::StageParameters& parameters,
                                                 at::Tensor weights, at::Tensor gradients,
                                                 comm::Communicator* tensor_group,
                                                 const StageOptions& options) {
  std::unique_ptr<Stage> stage;
  RETURN_IF_ERROR(CallTorch("making a stage", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckBuffers(parameters, weights, gradients, options));
    const job::Module& module = plan.module_spec(place.module);
    const ParameterTable table(parameters, weights, gradients);
    StageParts parts{.module = module,
                     .table = table,
                     .group = TensorGroup(place.width == 1 ? nullptr : tensor_group),
                     .shard = plan::ShardOf(module.architecture, place.width, place.tp),
                     .options = options};
    FindLayers(parameters, &parts);
    if (parts.end_layer == module.architecture.layers) FindEdges(plan, place.module, &parts);
    switch (module.architecture.family) {
      case job::Family::kLlama:
        stage = MakeLanguageStage(parts);
        return absl::OkStatus();
      case job::Family::kClipVision:
        stage = MakeVisionStage(parts);
        return absl::OkStatus();
      default:
        return absl::UnimplementedError(absl::StrCat(
            "module ", module.name, ": only llama and clip_vision modules can be trained so far"));
    }
  }));
  return stage;
}

}  // namespace phalanx::model
