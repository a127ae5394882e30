#include "tests/oracle/model_harness.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <thread>
#include <utility>

#include "worker/model/torch_boundary.h"

namespace phalanx::oracle {
namespace {

plan::Plan PlanOf(const job::JobSpec& spec) {
  int32_t ranks = 0;
  for (const job::Module& module : spec.modules)
    ranks = std::max(ranks, module.offset + module.parallel.ranks);
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, ranks), Epoch{1});
  if (!plan.ok()) {
    ADD_FAILURE() << plan.status();
    std::abort();
  }
  return *std::move(plan);
}

// Calls body(logical tensor, piece, the piece's rectangle of `buffer`, the matrix) for every piece.
template <typename Body>
void ForEachPiece(const plan::StageParameters& parameters, const at::Tensor& buffer,
                  const Body& body) {
  for (const plan::LocalMatrix& matrix : parameters.matrices) {
    const at::Tensor local =
        buffer.narrow(0, matrix.offset, matrix.rows * matrix.cols).view({matrix.rows, matrix.cols});
    for (const plan::Piece& piece : matrix.pieces) {
      body(parameters.logical[static_cast<size_t>(piece.logical)], piece,
           local.narrow(0, piece.local_row, piece.rows).narrow(1, piece.local_col, piece.cols));
    }
  }
}

at::Tensor Rectangle(const at::Tensor& logical, const plan::Piece& piece) {
  return logical.narrow(0, piece.logical_row, piece.rows).narrow(1, piece.logical_col, piece.cols);
}

}  // namespace

StageWorld::StageWorld(const job::JobSpec& spec, at::ScalarType type, at::Device device)
    : plan_(PlanOf(spec)), type_(type), device_(device), world_(plan_.world) {
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan_);
  for (int32_t rank = 0; rank < plan_.world; ++rank) {
    communicators_.push_back(world_.Connect(specs, Rank{rank}));
    for (const plan::Place& place : plan_.PlacesOf(Rank{rank})) {
      auto stage = std::make_unique<RankStage>();
      stage->place = place;
      stage->parameters = plan::ParametersOf(plan_, place);
      stage->weights =
          at::empty({stage->parameters.elements}, at::TensorOptions(device).dtype(type));
      const at::ScalarType gradient = type == at::kDouble ? at::kDouble : at::kFloat;
      stage->gradients =
          at::zeros({stage->parameters.elements}, at::TensorOptions(device).dtype(gradient));
      model::InitialiseWeights(plan_, place, stage->parameters, stage->weights, 1);
      const int32_t group =
          plan::FindCommunicator(specs, plan::CommunicatorSpec::Use::kTensor,
                                 plan_.TensorGroup(place.module, place.dp, place.pp));
      comm::Communicator* tensor_group =
          group < 0 ? nullptr : communicators_.back()[static_cast<size_t>(group)].get();
      auto made =
          model::MakeStage(plan_, place, 0, stage->parameters, stage->weights, stage->gradients,
                           tensor_group, {.device = device, .compute = type, .gradient = gradient});
      EXPECT_TRUE(made.ok()) << made.status();
      stage->stage = *std::move(made);
      stages_.push_back(std::move(stage));
    }
  }
}

void StageWorld::LoadWeights(const NamedTensors& parameters) {
  const at::NoGradGuard no_grad;
  for (auto& stage : stages_) {
    const std::string module = plan_.module_spec(stage->place.module).name + "/";
    ForEachPiece(
        stage->parameters, stage->weights,
        [&](const plan::LogicalTensor& logical, const plan::Piece& piece, const at::Tensor& local) {
          const at::Tensor& whole = parameters.at(module + logical.name);
          local.copy_(Rectangle(whole.view({logical.rows, logical.cols}), piece));
        });
  }
}

std::vector<StageWorld::Part> StageWorld::PartsOf(int32_t module) {
  std::vector<Part> parts(static_cast<size_t>(plan_.modules[static_cast<size_t>(module)].pp()));
  for (auto& stage : stages_) {
    if (stage->place.module == module)
      parts[static_cast<size_t>(stage->place.pp)].push_back(stage.get());
  }
  return parts;
}

template <typename Body>
void StageWorld::OnEachRank(const Part& part, const Body& body) {
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < part.size(); ++i) {
    threads.emplace_back([&body, &part, i] {
      // In threads of their own, what the test library's tensors throw would end the process.
      const absl::Status status = model::CallTorch("a rank", [&] { return body(*part[i], i); });
      EXPECT_TRUE(status.ok()) << status;
    });
  }
}

model::StageOutput StageWorld::RunModule(int32_t module, Pass pass, int32_t slot,
                                         const PlainMicrobatch& batch, const at::Tensor& rows) {
  const auto there = [this](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(device_) : tensor;
  };
  model::StageInput input;
  input.tokens = there(batch.tokens);
  input.labels = there(batch.labels);
  input.label_weights = there(batch.label_weights);
  input.row_positions = rows.defined() ? there(batch.row_positions) : at::Tensor();
  input.rows = rows;
  if (static_cast<size_t>(module) < batch.pixels.size())
    input.pixels = there(batch.pixels[static_cast<size_t>(module)]);
  model::StageOutput result;
  for (const Part& part : PartsOf(module)) {
    std::vector<model::StageOutput> outputs(part.size());
    OnEachRank(part, [&](RankStage& rank, size_t i) -> absl::Status {
      auto output =
          pass == Pass::kForward ? rank.stage->Forward(slot, input) : rank.stage->Evaluate(input);
      if (output.ok()) outputs[i] = *std::move(output);
      return output.status();
    });
    for (const model::StageOutput& output : outputs) {
      if (!output.loss_sum.defined()) continue;
      EXPECT_TRUE(at::equal(output.loss_sum, outputs[0].loss_sum));
    }
    result = outputs[0];
    input.hidden = result.hidden.empty() ? at::Tensor() : result.hidden[0];
  }
  return result;
}

at::Tensor StageWorld::RowsFor(Pass pass, int32_t slot, const PlainMicrobatch& batch) {
  std::vector<at::Tensor> rows;
  std::vector<int64_t> counts;
  for (const job::Edge& edge : plan_.spec.edges) {
    const model::StageOutput output = RunModule(edge.from, pass, slot, batch, {});
    const at::Tensor features = output.hidden.at(0);  // one edge a source
    counts.push_back(features.defined() ? features.size(0) : 0);
    if (features.defined()) rows.push_back(features);
  }
  row_counts_[slot] = std::move(counts);
  return rows.empty() ? at::Tensor() : at::cat(rows);
}

double StageWorld::Forward(int32_t slot, const PlainMicrobatch& batch) {
  const at::Tensor rows = RowsFor(Pass::kForward, slot, batch);
  return RunModule(plan_.spec.language, Pass::kForward, slot, batch, rows).loss_sum.item<double>();
}

model::StageOutput StageWorld::Evaluate(const PlainMicrobatch& batch) {
  const at::Tensor rows = RowsFor(Pass::kEvaluate, -1, batch);
  return RunModule(plan_.spec.language, Pass::kEvaluate, -1, batch, rows);
}

at::Tensor StageWorld::BackwardModule(int32_t module, int32_t slot,
                                      const std::vector<at::Tensor>& output_gradient) {
  std::vector<at::Tensor> gradient = output_gradient;
  at::Tensor rows;
  std::vector<Part> parts = PartsOf(module);
  std::reverse(parts.begin(), parts.end());
  for (const Part& part : parts) {
    std::vector<model::StageOutput> outputs(part.size());
    OnEachRank(part, [&](RankStage& rank, size_t i) -> absl::Status {
      auto output = rank.stage->BackwardInput(slot, gradient);
      if (output.ok()) outputs[i] = *std::move(output);
      return output.status();
    });
    gradient = outputs[0].hidden;
    rows = outputs[0].rows;
  }
  return rows;
}

void StageWorld::BackwardInput(int32_t slot) {
  const at::Tensor rows = BackwardModule(plan_.spec.language, slot, {});
  int64_t first = 0;
  for (size_t i = 0; i < plan_.spec.edges.size(); ++i) {
    const int64_t count = row_counts_[slot][i];
    const at::Tensor gradient = count == 0 ? at::Tensor() : rows.narrow(0, first, count);
    first += count;
    BackwardModule(plan_.spec.edges[i].from, slot, {gradient});
  }
}

void StageWorld::BackwardWeight(int32_t slot) {
  for (size_t module = 0; module < plan_.modules.size(); ++module) {
    BackwardWeight(static_cast<int32_t>(module), slot);
  }
}

void StageWorld::BackwardWeight(int32_t module, int32_t slot) {
  for (auto& stage : stages_) {
    if (stage->place.module != module) continue;
    const absl::Status status = stage->stage->BackwardWeight(slot);
    EXPECT_TRUE(status.ok()) << status;
  }
}

double StageWorld::RunStep(int32_t slot, const PlainMicrobatch& batch) {
  const double loss = Forward(slot, batch);
  BackwardInput(slot);
  BackwardWeight(slot);
  return loss;
}

NamedTensors StageWorld::Assemble(at::Tensor RankStage::*buffer, bool sum_partials) const {
  NamedTensors whole, counted;
  for (const auto& stage : stages_) {
    const std::string module = plan_.module_spec(stage->place.module).name + "/";
    const at::Tensor held = ((*stage).*buffer).cpu(), padding = held.clone();
    ForEachPiece(
        stage->parameters, held,
        [&](const plan::LogicalTensor& logical, const plan::Piece& piece, const at::Tensor& local) {
          const std::string name = module + logical.name;
          const auto shape = {logical.rows, logical.cols};
          at::Tensor& sum =
              whole.try_emplace(name, at::zeros(shape, local.options())).first->second;
          at::Tensor& seen = counted.try_emplace(name, at::zeros(shape, at::kBool)).first->second;
          const at::Tensor to = Rectangle(sum, piece), mark = Rectangle(seen, piece);
          const bool again = mark.any().item<bool>();
          if (again && (piece.holding == plan::Holding::kDuplicate || !sum_partials)) {
            EXPECT_TRUE(at::equal(to, local)) << name << ": holders disagree";
          } else {
            EXPECT_TRUE(!again || piece.holding == plan::Holding::kPartial) << name;
            to.add_(local);
          }
          mark.fill_(true);
        });
    ForEachPiece(stage->parameters, padding,
                 [](const plan::LogicalTensor&, const plan::Piece&, const at::Tensor& local) {
                   local.zero_();
                 });
    EXPECT_EQ(padding.abs().max().item<double>(), 0) << "padding is not zero";
  }
  for (auto& [name, tensor] : whole) {
    EXPECT_TRUE(counted.at(name).all().item<bool>()) << name << " is not covered";
    if (tensor.size(1) == 1) tensor = tensor.squeeze(1);
  }
  return whole;
}

NamedTensors StageWorld::Gradients() const { return Assemble(&RankStage::gradients, true); }
NamedTensors StageWorld::Weights() const { return Assemble(&RankStage::weights, false); }

PlainMicrobatch RandomMicrobatch(const job::JobSpec& spec, const MicrobatchShape& shape,
                                 at::ScalarType type) {
  const at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  at::Generator random = generator;
  random.set_current_seed(shape.seed);
  const job::Architecture& language = spec.modules[static_cast<size_t>(spec.language)].architecture;
  PlainMicrobatch batch;
  batch.pixels.resize(spec.modules.size());
  std::vector<std::vector<int64_t>> rows_of(
      static_cast<size_t>(shape.samples));             // positions in each sample
  std::vector<std::pair<int64_t, int64_t>> positions;  // sample, position in it
  for (const job::Edge& edge : spec.edges) {
    const job::Architecture& vision = spec.modules[static_cast<size_t>(edge.from)].architecture;
    if (shape.items == 0) continue;
    const int64_t side = vision.image_size / vision.patch_size;
    batch.pixels[static_cast<size_t>(edge.from)] =
        at::randn({shape.items, 3, vision.image_size, vision.image_size}, random, at::kDouble)
            .to(type);
    for (int64_t item = 0; item < shape.items; ++item) {
      const int64_t sample = item % shape.samples;
      auto& taken = rows_of[static_cast<size_t>(sample)];
      for (int64_t row = 0; row < side * side; ++row) {
        taken.push_back(static_cast<int64_t>(taken.size()));
        positions.emplace_back(sample, taken.back());
      }
    }
  }
  int64_t length = 0;
  for (const auto& rows : rows_of)
    length = std::max(length, static_cast<int64_t>(rows.size()) + shape.text);
  batch.tokens = at::randint(language.vocabulary, {shape.samples, length}, random, at::kLong);
  batch.labels = at::randint(language.vocabulary, {shape.samples, length}, random, at::kLong);
  batch.label_weights =
      at::ones({shape.samples, length}, type == at::kDouble ? at::kDouble : at::kFloat);
  for (int64_t i = 0; i < shape.samples; ++i) {
    batch.label_weights[i]
        .narrow(0, 0, static_cast<int64_t>(rows_of[static_cast<size_t>(i)].size()))
        .zero_();
    if (i % 2 == 1) batch.label_weights[i].narrow(0, length - shape.padding, shape.padding).zero_();
  }
  std::vector<int64_t> flat;
  for (const auto& [sample, position] : positions) flat.push_back(sample * length + position);
  if (!flat.empty()) batch.row_positions = at::tensor(flat, at::kLong);
  return batch;
}

double LargestError(const NamedTensors& a, const NamedTensors& b) {
  static const std::regex kLayer("\\.[0-9]+\\.");
  std::map<std::string, double> scale;
  const auto kind = [](const std::string& name) { return std::regex_replace(name, kLayer, ".N."); };
  for (const auto& [name, tensor] : b) {
    double& largest = scale[kind(name)];
    largest = std::max(largest, tensor.abs().max().item<double>());
  }
  // A key bias has a true gradient of zero, so its kind is that of all biases of the projection.
  double worst = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, expected] : b) {
    const auto entry = a.find(name);
    if (entry == a.end()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    std::string sibling = kind(name);
    const size_t at = sibling.find("k_proj.bias");
    double s = scale.at(sibling);
    if (at != std::string::npos) s = std::max(s, scale.at(sibling.replace(at, 1, "q")));
    const double difference =
        (entry->second.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
    const double error = difference == 0 ? 0 : difference / s;
    if (error > 1e-3) ADD_FAILURE() << name << ": error " << error << ", scale " << s;
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace phalanx::oracle
