#include "tests/oracle/model_harness.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <thread>
#include <utility>

#include "core/job/graph.h"
#include "tests/oracle/random_microbatch.h"
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

// Calls body(logical tensor, the matrix, piece, the piece's rows of `buffer`) for every piece.
template <typename Body>
void ForEachPiece(const plan::StageParameters& parameters, const at::Tensor& buffer,
                  const Body& body) {
  for (const plan::LocalMatrix& matrix : parameters.matrices) {
    const at::Tensor local =
        buffer.narrow(0, matrix.offset, matrix.rows * matrix.cols).view({matrix.rows, matrix.cols});
    for (const plan::Piece& piece : matrix.pieces) {
      body(parameters.logical[static_cast<size_t>(piece.logical)], matrix, piece,
           local.narrow(0, piece.local_row, piece.rows));
    }
  }
}

// What a piece of a matrix covers of the whole tensor.
at::Tensor Covered(const at::Tensor& whole, const plan::LocalMatrix& matrix,
                   const plan::Piece& piece) {
  return (matrix.transposed ? whole.t() : whole).narrow(0, piece.logical_row, piece.rows);
}

}  // namespace

StageWorld::StageWorld(const job::JobSpec& spec, at::ScalarType type, at::Device device)
    : plan_(PlanOf(spec)), type_(type), device_(device), world_(plan_.world) {
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan_);
  for (int32_t rank = 0; rank < plan_.world; ++rank) {
    communicators_.push_back(world_.Connect(specs, Rank{rank}));
    for (const plan::Place& place : plan_.PlacesOf(Rank{rank})) {
      const int32_t group =
          plan::FindCommunicator(specs, plan::CommunicatorSpec::Use::kTensor,
                                 plan_.TensorGroup(place.module, place.dp, place.pp));
      comm::Communicator* tensor_group =
          group < 0 ? nullptr : communicators_.back()[static_cast<size_t>(group)].get();
      const int32_t chunks = plan_.modules[static_cast<size_t>(place.module)].chunks();
      for (int32_t chunk = 0; chunk < chunks; ++chunk) AddStage(place, chunk, tensor_group);
    }
  }
}

void StageWorld::AddStage(const plan::Place& place, int32_t chunk,
                          comm::Communicator* tensor_group) {
  auto stage = std::make_unique<RankStage>();
  stage->place = place;
  stage->chunk = chunk;
  stage->parameters = plan::ParametersOf(plan_, place, chunk);
  const at::TensorOptions options(device_);
  const at::ScalarType gradient = type_ == at::kDouble ? at::kDouble : at::kFloat;
  stage->weights = at::empty({stage->parameters.elements}, options.dtype(type_));
  if (stage->parameters.TrainedElements() > 0) {
    stage->gradients = at::zeros({stage->parameters.trained_extent}, options.dtype(gradient));
  }
  model::InitialiseWeights(plan_, place, stage->parameters, stage->weights, 1);
  stage->by_layer = std::make_unique<LayeredWeights>(stage->parameters, stage->weights);
  const model::StageOptions how{
      .device = device_,
      .compute = type_,
      .gradient = gradient,
      .layer_begins = [by_layer = stage->by_layer.get()] { by_layer->LayerBegins(); }};
  auto made = model::MakeStage(plan_, place, chunk, stage->parameters, stage->weights,
                               stage->gradients, tensor_group, how);
  EXPECT_TRUE(made.ok()) << made.status();
  stage->stage = *std::move(made);
  stages_.push_back(std::move(stage));
}

void StageWorld::LoadWeights(const NamedTensors& parameters) {
  const at::NoGradGuard no_grad;
  for (auto& stage : stages_) {
    const std::string module = plan_.module_spec(stage->place.module).name + "/";
    ForEachPiece(stage->parameters, stage->weights,
                 [&](const plan::LogicalTensor& logical, const plan::LocalMatrix& matrix,
                     const plan::Piece& piece, const at::Tensor& local) {
                   const at::Tensor& whole = parameters.at(module + logical.name);
                   local.copy_(Covered(whole.view({logical.rows, logical.cols}), matrix, piece));
                 });
  }
}

std::vector<StageWorld::Part> StageWorld::PartsOf(int32_t module) {
  const plan::ModulePlan& layout = plan_.modules[static_cast<size_t>(module)];
  std::map<int32_t, Part> parts;  // by stage of the module graph: in the order of data flow
  for (auto& stage : stages_) {
    if (stage->place.module != module) continue;
    parts[layout.GraphStage(stage->place.pp, stage->chunk)].push_back(stage.get());
  }
  std::vector<Part> ordered;
  for (auto& [position, part] : parts) ordered.push_back(std::move(part));
  return ordered;
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

void StageWorld::AddLabels(const PlainMicrobatch& batch, Labelled labelled,
                           model::StageInput* input) const {
  const at::Tensor labels = batch.labels.flatten(), weights = batch.label_weights.flatten();
  input->labels = labels.to(device_);
  input->label_weights = weights.to(device_);
  if (labelled == Labelled::kAll) return;
  at::Tensor rows = weights.ne(0).nonzero().flatten();
  if (rows.numel() == 0) rows = at::zeros({1}, at::kLong);
  const at::Tensor place = at::zeros_like(labels);
  place.index_copy_(0, rows, at::arange(rows.numel(), at::kLong));
  const at::Tensor chosen = at::zeros_like(labels, at::kBool).index_fill_(0, rows, true);
  rows = at::cat({rows, rows.slice(0, -1).expand({2})});
  at::Tensor chosen_weights = weights.index_select(0, rows);
  chosen_weights.slice(0, -2).zero_();
  input->labelled = {rows.to(device_), place.to(device_), chosen.to(device_)};
  input->labels = labels.index_select(0, rows).to(device_);
  input->label_weights = chosen_weights.to(device_);
}

model::StageInput StageWorld::InputOf(int32_t module, const PlainMicrobatch& batch,
                                      const at::Tensor& rows, Labelled labelled) const {
  const auto there = [this](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(device_) : tensor;
  };
  const auto of = [&](const std::vector<at::Tensor>& tensors, int32_t index) {
    const auto at = static_cast<size_t>(index);
    return at < tensors.size() ? there(tensors[at]) : at::Tensor();
  };
  model::StageInput input;
  if (batch.labels.defined()) AddLabels(batch, labelled, &input);
  input.pixels = of(batch.pixels, module);
  input.sounds = of(batch.sounds, module);
  if (!job::TraitsOf(plan_.module_spec(module).architecture).encoder()) {
    if (batch.tokens.defined()) {
      input.batch = batch.tokens.size(0);
      input.length = batch.tokens.size(1);
    }
  } else if (const at::Tensor& items = input.pixels.defined() ? input.pixels : input.sounds;
             items.defined()) {
    input.batch = items.size(0);
  }
  input.output_positions = of(batch.positions, module);
  input.targets = there(batch.targets);
  input.target_positions = there(batch.target_positions);
  input.target_weights = there(batch.target_weights);
  input.rows = rows;
  std::vector<at::Tensor> positions;
  for (const job::Edge& edge : plan_.spec.edges) {
    const at::Tensor from = of(batch.positions, edge.from);
    if (edge.to == module && from.defined()) positions.push_back(from);
  }
  if (rows.defined()) input.row_positions = at::cat(positions);
  if (batch.tokens.defined()) {
    const at::Tensor items = input.row_positions;
    input.tokens =
        model::MakeTokenRows(batch.tokens, items.defined() ? items.cpu() : items, device_);
  }
  return input;
}

model::StageOutput StageWorld::RunModule(int32_t module, Pass pass, int32_t slot,
                                         const PlainMicrobatch& batch, const at::Tensor& rows) {
  model::StageInput input =
      InputOf(module, batch, rows, pass == Pass::kEvaluate ? Labelled::kAll : labelled_);
  model::StageOutput result;
  for (const Part& part : PartsOf(module)) {
    std::vector<model::StageOutput> outputs(part.size());
    OnEachRank(part, [&](RankStage& rank, size_t i) -> absl::Status {
      rank.by_layer->Hide();
      auto output =
          pass == Pass::kForward ? rank.stage->Forward(slot, input) : rank.stage->Evaluate(input);
      rank.by_layer->Show();
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

std::vector<model::StageOutput> StageWorld::RunAll(Pass pass, int32_t slot,
                                                   const PlainMicrobatch& batch) {
  const std::vector<job::Edge>& edges = plan_.spec.edges;
  std::vector<at::Tensor> sent(edges.size());
  std::vector<model::StageOutput> outputs(plan_.modules.size());
  row_counts_[slot].assign(edges.size(), 0);
  for (const int32_t module : job::DataFlowOrder(plan_.spec)) {
    std::vector<at::Tensor> rows;
    for (size_t i = 0; i < edges.size(); ++i) {
      if (edges[i].to == module && sent[i].defined()) rows.push_back(sent[i]);
    }
    model::StageOutput& output = outputs[static_cast<size_t>(module)];
    output = RunModule(module, pass, slot, batch, rows.empty() ? at::Tensor() : at::cat(rows));
    size_t next = 0;
    for (size_t i = 0; i < edges.size(); ++i) {
      if (edges[i].from != module) continue;
      sent[i] = output.hidden.at(next++);
      row_counts_[slot][i] = sent[i].defined() ? sent[i].size(0) : 0;
    }
  }
  return outputs;
}

double StageWorld::Forward(int32_t slot, const PlainMicrobatch& batch) {
  double loss = 0;
  for (const model::StageOutput& output : RunAll(Pass::kForward, slot, batch)) {
    if (output.loss_sum.defined()) loss += output.loss_sum.item<double>();
  }
  return loss;
}

model::StageOutput StageWorld::Evaluate(const PlainMicrobatch& batch) {
  return RunAll(Pass::kEvaluate, -1, batch)[static_cast<size_t>(plan_.spec.language)];
}

at::Tensor StageWorld::BackwardModule(int32_t module, int32_t slot,
                                      const std::vector<at::Tensor>& output_gradient) {
  std::vector<at::Tensor> gradient = output_gradient;
  std::vector<Part> parts = PartsOf(module);
  std::reverse(parts.begin(), parts.end());
  for (const Part& part : parts) {
    const plan::Trains& trains = TrainsOf(*part[0]);
    if (!trains.any()) return {};
    std::vector<model::StageOutput> outputs(part.size());
    OnEachRank(part, [&](RankStage& rank, size_t i) -> absl::Status {
      auto output = rank.stage->BackwardInput(slot, gradient);
      if (output.ok()) outputs[i] = *std::move(output);
      return output.status();
    });
    if (!trains.inputs) {
      EXPECT_FALSE(outputs[0].hidden.at(0).defined() || outputs[0].rows.defined())
          << "a gradient that nobody asked for";
    }
    gradient = outputs[0].hidden;
    if (part == parts.back()) return outputs[0].rows;
  }
  return {};
}

void StageWorld::BackwardInput(int32_t slot) {
  const std::vector<job::Edge>& edges = plan_.spec.edges;
  std::vector<at::Tensor> received(edges.size());
  std::vector<int32_t> order = job::DataFlowOrder(plan_.spec);
  std::reverse(order.begin(), order.end());
  for (const int32_t module : order) {
    std::vector<at::Tensor> gradient;
    for (size_t i = 0; i < edges.size(); ++i) {
      if (edges[i].from == module) gradient.push_back(received[i]);
    }
    const at::Tensor rows = BackwardModule(module, slot, gradient);
    if (!rows.defined()) continue;
    int64_t first = 0;
    for (size_t i = 0; i < edges.size(); ++i) {
      const int64_t count = row_counts_[slot][i];
      if (edges[i].to != module || count == 0) continue;
      received[i] = rows.narrow(0, first, count);
      first += count;
    }
    EXPECT_EQ(first, rows.size(0));
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
    const at::Tensor& own = (*stage).*buffer;
    // Gradients are of the front of the buffer alone.
    const at::Tensor held =
        at::zeros({stage->parameters.elements},
                  (own.defined() ? own : stage->weights).options().device(at::kCPU));
    if (own.defined()) held.narrow(0, 0, own.numel()).copy_(own);
    const at::Tensor padding = held.clone();
    ForEachPiece(stage->parameters, held,
                 [&](const plan::LogicalTensor& logical, const plan::LocalMatrix& matrix,
                     const plan::Piece& piece, const at::Tensor& local) {
                   const std::string name = module + logical.name;
                   const auto shape = {logical.rows, logical.cols};
                   at::Tensor& sum =
                       whole.try_emplace(name, at::zeros(shape, local.options())).first->second;
                   at::Tensor& seen =
                       counted.try_emplace(name, at::zeros(shape, at::kBool)).first->second;
                   const at::Tensor to = Covered(sum, matrix, piece);
                   const at::Tensor mark = Covered(seen, matrix, piece);
                   const bool again = mark.any().item<bool>();
                   if (again && (piece.holding == plan::Holding::kDuplicate || !sum_partials)) {
                     EXPECT_TRUE(at::equal(to, local)) << name << ": holders disagree";
                   } else {
                     EXPECT_TRUE(!again || piece.holding == plan::Holding::kPartial ||
                                 piece.holding == plan::Holding::kTied)
                         << name;
                     to.add_(local);
                   }
                   mark.fill_(true);
                 });
    ForEachPiece(stage->parameters, padding,
                 [](const plan::LogicalTensor&, const plan::LocalMatrix&, const plan::Piece&,
                    const at::Tensor& local) { local.zero_(); });
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

void ExpectSameAsPlain(const job::JobSpec& spec, int64_t items) {
  constexpr double kTolerance = 1e-9;  // of rules.md 9 for fp64
  PlainModel plain(spec, at::kDouble);
  StageWorld world(spec, at::kDouble);
  EXPECT_EQ(LargestError(world.Weights(), plain.parameters()), 0);
  {
    const at::NoGradGuard no_grad;
    at::manual_seed(5);
    for (auto& [name, parameter] : plain.parameters()) {
      parameter.add_(at::randn_like(parameter), 0.1);
    }
  }
  world.LoadWeights(plain.parameters());
  double loss = 0, expected = 0;
  for (int32_t slot = 0; slot < 2; ++slot) {
    const auto seed = static_cast<uint64_t>(slot) + 1;
    const PlainMicrobatch batch =
        RandomMicrobatch(spec, {.items = items - slot, .seed = seed}, at::kDouble);
    loss += world.Forward(slot, batch);
    expected += plain.Loss(batch).item<double>();
    plain.Accumulate(batch);
  }
  world.BackwardInput(1);
  world.BackwardInput(0);
  world.BackwardWeight(1);
  world.BackwardWeight(0);
  EXPECT_NEAR(loss, expected, kTolerance * expected);
  const double error = LargestError(world.Gradients(), plain.Gradients());
  testing::Test::RecordProperty("gradient_error", std::to_string(error * 1e15) + "e-15");
  EXPECT_LT(error, kTolerance);
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
    const at::Tensor difference = entry->second.to(at::kDouble) - expected.to(at::kDouble);
    const double largest = difference.abs().max().item<double>();
    const double error = largest == 0 ? 0 : largest / s;
    if (error > 1e-3) ADD_FAILURE() << name << ": error " << error << ", scale " << s;
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace phalanx::oracle
