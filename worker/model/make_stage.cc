#include "worker/model/make_stage.h"

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "worker/model/torch_boundary.h"

namespace phalanx::model {
namespace {

std::vector<OutgoingEdge> EdgesOf(const plan::Plan& plan, int32_t module) {
  std::vector<OutgoingEdge> edges;
  for (size_t i = 0; i < plan.spec.edges.size(); ++i) {
    const job::Edge& edge = plan.spec.edges[i];
    if (edge.from != module) continue;
    edges.push_back({static_cast<int32_t>(i), edge.projector.has_value()});
  }
  return edges;
}

absl::Status CheckBuffers(const plan::StageParameters& parameters, const at::Tensor& weights,
                          const at::Tensor& gradients, const StageOptions& options) {
  if (weights.numel() != parameters.elements || weights.scalar_type() != options.compute) {
    return absl::InternalError(absl::StrCat("the weight buffer has ", weights.numel(),
                                            " elements of ", c10::toString(weights.scalar_type()),
                                            "; the stage needs ", parameters.elements, " of ",
                                            c10::toString(options.compute)));
  }
  if (gradients.defined() && (gradients.numel() != parameters.trained_extent ||
                              gradients.scalar_type() != options.gradient)) {
    return absl::InternalError(absl::StrCat("the gradient buffer has ", gradients.numel(),
                                            " elements of ", c10::toString(gradients.scalar_type()),
                                            "; the stage needs ", parameters.trained_extent, " of ",
                                            c10::toString(options.gradient)));
  }
  return absl::OkStatus();
}

}  // namespace

LayerContext ContextOf(const StageParts& parts) {
  const job::Architecture& architecture = parts.module.architecture;
  LayerContext context;
  context.architecture = architecture;
  context.recompute = parts.module.recompute;
  context.trains = !parts.module.frozen;
  context.back = parts.LayersBack();
  context.fp8 = parts.linear == job::LinearFormat::kFp8;
  context.group = parts.group.WithSlices(parts.sequence);
  context.heads = MakeHeadMap(parts.units, architecture.heads / plan::KvHeads(architecture),
                              plan::HeadSize(architecture), parts.options.device);
  context.heads.deterministic = parts.deterministic;
  return context;
}

Outgoing OutgoingOf(const StageParts& parts) {
  Outgoing outgoing;
  for (const OutgoingEdge& edge : parts.edges) {
    if (edge.projector) {
      outgoing.AddProjector(parts.group, parts.table, edge.index);
    } else {
      outgoing.AddPlain();
    }
  }
  return outgoing;
}

absl::StatusOr<std::unique_ptr<Stage>> MakeStage(const plan::Plan& plan, const plan::Place& place,
                                                 int32_t chunk,
                                                 const plan::StageParameters& parameters,
                                                 at::Tensor weights, at::Tensor gradients,
                                                 comm::Communicator* tensor_group,
                                                 const StageOptions& options) {
  std::unique_ptr<Stage> stage;
  RETURN_IF_ERROR(CallTorch("making a stage", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckBuffers(parameters, weights, gradients, options));
    if (plan.spec.linear == job::LinearFormat::kFp8) RETURN_IF_ERROR(CheckFp8(options.device));
    const job::Module& module = plan.module_spec(place.module);
    const plan::ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
    if (chunk < 0 || chunk >= layout.chunks()) {
      return absl::InternalError(absl::StrCat("module ", module.name, " has no chunk ", chunk));
    }
    const ParameterTable table(parameters, weights, gradients);
    const StageParts parts{.module = module,
                           .table = table,
                           .group = TensorGroup(place.width == 1 ? nullptr : tensor_group),
                           .sequence = module.parallel.sequence,
                           .units = plan::TensorUnitsOf(module.architecture, place.width, place.tp),
                           .layers = layout.layers(place.pp, chunk),
                           .first = layout.IsFirst(place.pp, chunk),
                           .last = layout.IsLast(place.pp, chunk),
                           .has_loss = plan.HasLoss(place.module),
                           .trains = layout.TrainsOf(place.pp, chunk),
                           .edges = EdgesOf(plan, place.module),
                           .linear = plan.spec.linear,
                           .deterministic = plan.spec.deterministic,
                           .options = options};
    switch (job::TraitsOf(module.architecture).kind) {
      case job::FamilyKind::kDecoder:
        stage = MakeDecoderStage(parts);
        return absl::OkStatus();
      case job::FamilyKind::kEncoder:
        stage = MakeEncoderStage(parts);
        return absl::OkStatus();
      case job::FamilyKind::kNone:
        break;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("module ", module.name, " has no architecture, so it cannot be trained"));
  }));
  return stage;
}

}  // namespace phalanx::model
