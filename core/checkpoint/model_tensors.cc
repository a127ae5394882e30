#include "core/checkpoint/model_tensors.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/fields.h"
#include "core/job/json.h"
#include "core/job/report.h"
#include "core/job/rules.h"
#include "core/plan/grid.h"
#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/plan/units.h"

namespace phalanx::checkpoint {
namespace {

using job::Tree;

// The same rows in as few units as there can be: they have no bearing on logical tensors, and a
// manifest may ask for very many.
void MakeCoarse(job::Architecture& architecture) {
  const int64_t kv_heads = plan::KvHeads(architecture);
  architecture.head_size = plan::HeadSize(architecture) * kv_heads;
  architecture.heads = static_cast<int32_t>(architecture.heads / kv_heads);
  architecture.kv_heads = 1;
  architecture.block =
      std::max({architecture.block, architecture.mlp_size, architecture.vocabulary});
}

// Every module whole on rank 0: as much of a plan as its parameters depend on.
plan::Plan OnOneRank(const job::JobSpec& spec) {
  using plan::Axis;
  const plan::Grid grid = *plan::Grid::Create(
      0, {{Axis::kTensor, 1}, {Axis::kContext, 1}, {Axis::kData, 1}, {Axis::kPipeline, 1}});
  plan::Plan plan;
  plan.spec.language = spec.language;
  plan.spec.modules = spec.modules;
  plan.spec.edges = spec.edges;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    job::Module& module = plan.spec.modules[i];
    module.parallel = job::Parallel();
    if (job::TraitsOf(module.architecture).known()) MakeCoarse(module.architecture);
    plan.modules.push_back({.index = static_cast<int32_t>(i),
                            .grid = grid,
                            .expert_grid = grid,
                            .replicas = *plan::ReplicaTable::Create(grid, {}),
                            .stage_layers = {{0, module.architecture.layers}}});
  }
  return plan;
}

// ---- A manifest's model as a job document ----

// With which the schema reads numbers and words alike.
Tree Plain(const std::string& text) {
  Tree tree = job::TextTree(text);
  tree.quoted = false;
  return tree;
}

Tree DocumentOf(const Model& model) {
  std::vector<Tree> modules, edges;
  for (const Model::Module& module : model.modules) {
    std::vector<Tree::Entry> architecture;
    for (const auto& [field, value] : module.architecture)
      architecture.push_back({field, Plain(value)});
    modules.push_back(job::MappingTree({{"name", job::TextTree(module.name)},
                                        {"architecture", job::MappingTree(std::move(architecture))},
                                        {"frozen", job::FlagTree(!module.trains)}}));
  }
  for (const Model::Projector& projector : model.projectors) {
    edges.push_back(job::MappingTree(
        {{"from", job::TextTree(projector.from)},
         {"to", job::TextTree(projector.to)},
         {"projector", job::MappingTree({{"hidden_size", job::NumberTree(projector.hidden_size)},
                                         {"frozen", job::FlagTree(!projector.trains)}})}}));
  }
  return job::MappingTree(
      {{"spec", job::MappingTree({{"modules", job::ListTree(std::move(modules))},
                                  {"edges", job::ListTree(std::move(edges))}})}});
}

// The first of what is wrong with modules and projectors; all else the document lacks.
absl::Status FirstOf(const job::Report& report) {
  for (const Violation& violation : report.Sorted()) {
    if (!absl::StartsWith(violation.field, "spec.modules") &&
        !absl::StartsWith(violation.field, "spec.edges")) {
      continue;
    }
    const std::string path = absl::StrReplaceAll(
        violation.field, {{"spec.edges", "projectors"}, {"].projector", "]"}, {"spec.", ""}});
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", violation.value, violation.value.empty() ? "" : ": ", violation.rule));
  }
  return absl::OkStatus();
}

absl::StatusOr<job::JobSpec> SpecOf(const Model& model) {
  const Tree document = DocumentOf(model);
  job::Report report(document);
  job::JobSpec spec;
  job::ReadFields(job::Purpose::kSubmit, report, spec);
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    job::Architecture& architecture = spec.modules[i].architecture;
    architecture.kv_heads = static_cast<int32_t>(plan::KvHeads(architecture));
    architecture.head_size = plan::HeadSize(architecture);
    job::CheckModule(spec.modules[i], i, report);
  }
  if (!report.Sound("spec.modules") || !report.Sound("spec.edges")) {
    RETURN_IF_ERROR(FirstOf(report));
    return absl::InvalidArgumentError("modules: describe no model");
  }
  const auto index_of = [&](const std::string& name) {
    const auto found = std::find_if(model.modules.begin(), model.modules.end(),
                                    [&](const Model::Module& one) { return one.name == name; });
    return static_cast<int32_t>(found - model.modules.begin());
  };
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    spec.edges[i].from = index_of(model.projectors[i].from);
    spec.edges[i].to = index_of(model.projectors[i].to);
  }
  spec.language = -1;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (job::TraitsOf(spec.modules[i].architecture).vocabulary())
      spec.language = static_cast<int32_t>(i);
  }
  return spec;
}

}  // namespace

std::vector<ModelTensor> TensorsOf(const job::JobSpec& spec) {
  std::vector<ModelTensor> tensors;
  const plan::Plan plan = OnOneRank(spec);
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const plan::StageParameters parameters =
        plan::ParametersOf(plan, {.module = static_cast<int32_t>(i)});
    const size_t first = tensors.size();
    for (const plan::LogicalTensor& logical : parameters.logical) {
      tensors.push_back({.module = spec.modules[i].name,
                         .tensor = logical.name,
                         .rows = logical.rows,
                         .cols = logical.cols});
    }
    for (const plan::LocalMatrix& matrix : parameters.matrices) {
      for (const plan::Piece& piece : matrix.pieces)
        tensors[first + static_cast<size_t>(piece.logical)].trains = matrix.trains;
    }
  }
  return tensors;
}

absl::StatusOr<std::vector<ModelTensor>> TensorsOf(const Model& model, int64_t entries) {
  ASSIGN_OR_RETURN(const job::JobSpec spec, SpecOf(model));
  int64_t layers = 0;
  for (const job::Module& module : spec.modules) {
    layers += module.architecture.layers;
    if (layers <= entries) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("module ", module.name, ": the model has ", module.architecture.layers,
                     " layers, and the files have ", entries, " entries"));
  }
  std::vector<ModelTensor> tensors = TensorsOf(spec);
  const absl::string_view predict = "predict.weight";
  for (ModelTensor& tensor : tensors) tensor.required = tensor.tensor != predict;
  return tensors;
}

}  // namespace phalanx::checkpoint
