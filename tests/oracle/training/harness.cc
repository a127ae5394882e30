#include "tests/oracle/training/harness.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <thread>
#include <tuple>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/prng.h"
#include "core/base/status.h"
#include "core/plan/loss.h"
#include "core/plan/plan.h"
#include "worker/comm/communicator.h"
#include "worker/data/job_data.h"
#include "worker/train/learning_rate.h"
#include "worker/train/part_state.h"
#include "worker/train/trainer.h"

namespace phalanx::oracle {
namespace {

// What the ranks of one step hold, put together.
class Collector {
 public:
  explicit Collector(const plan::Plan& plan) : plan_(plan) {}

  // Replicas may be of any widths: each holder's runs go to the unsharded tensors at once.
  void Add(const HeldPart& part) {
    const std::string module = plan_.module_spec(part.place.module).name;
    const auto key = std::make_tuple(part.place.module, part.place.pp, part.place.width,
                                     part.place.tp, part.chunk);
    const auto [entry, first] = parameters_.try_emplace(key);
    if (first) entry->second = plan::ParametersOf(plan_, part.place, part.chunk);
    const plan::StageParameters& parameters = entry->second;
    for (const HeldState& state : part.states) {
      Scatter(module, parameters, state.gradients, /*copies=*/false, gradients_);
      Scatter(module, parameters, state.master, /*copies=*/false, masters_);
      Scatter(module, parameters, state.first_moment, /*copies=*/false, first_moments_);
      Scatter(module, parameters, state.second_moment, /*copies=*/false, second_moments_);
      Count(module, part.place, parameters, state.master);
    }
    Scatter(module, parameters, part.weights, /*copies=*/true, weights_);
  }

  void Finish(TrainedStep& step) {
    step.gradients = std::move(gradients_);
    for (auto& [name, tensor] : step.gradients)
      tensor.div_(std::max(step.decision.counted_tokens, 1.0));
    step.parameters = std::move(weights_);
    for (const NamedTensors* tensors :
         {&step.gradients, &step.parameters, &masters_, &first_moments_, &second_moments_}) {
      for (const auto& [name, tensor] : *tensors) {
        EXPECT_FALSE(at::isnan(tensor).any().item<bool>()) << name << " is not held completely";
      }
    }
    for (const auto& [name, homes] : homes_) {
      EXPECT_TRUE(homes.count.eq(homes.expected).all().item<bool>())
          << name << " has " << homes.count.min().item<double>() << " to "
          << homes.count.max().item<double>() << " homes, not " << homes.expected;
    }
  }

 private:
  // Copies of one element are the same bits, wherever they are held; NaN: not held here. Without
  // `copies`: of what only those that lead hold (plan/copies.h).
  static void Scatter(const std::string& module, const plan::StageParameters& parameters,
                      const at::Tensor& flat, bool copies, NamedTensors& out) {
    for (const plan::LocalMatrix& matrix : parameters.matrices) {
      const at::Tensor local =
          flat.narrow(0, matrix.offset, matrix.rows * matrix.cols).view({matrix.rows, matrix.cols});
      for (const plan::Piece& piece : matrix.pieces) {
        if (!copies && !piece.primary) continue;
        const plan::LogicalTensor& logical = parameters.logical[static_cast<size_t>(piece.logical)];
        at::Tensor& tensor = out[module + "/" + logical.name];
        if (!tensor.defined()) tensor = at::full({logical.rows, logical.cols}, NAN, at::kDouble);
        at::Tensor target =
            (matrix.transposed ? tensor.t() : tensor).narrow(0, piece.logical_row, piece.rows);
        const at::Tensor value = local.narrow(0, piece.local_row, piece.rows);
        const at::Tensor one_alone = at::logical_or(at::isnan(target), at::isnan(value));
        EXPECT_TRUE(at::logical_or(one_alone, target == value).all().item<bool>())
            << "holders of " << module << "/" << logical.name << " disagree";
        target.copy_(at::where(at::isnan(value), target, value));
      }
    }
  }

  // How many homes have an element's state.
  struct Homes {
    at::Tensor count;
    int32_t expected = 1;
  };
  void Count(const std::string& module, const plan::Place& place,
             const plan::StageParameters& parameters, const at::Tensor& flat) {
    plan::StageParameters trained = parameters;
    std::erase_if(trained.matrices, [](const plan::LocalMatrix& matrix) { return !matrix.trains; });
    NamedTensors held;
    Scatter(module, trained, flat, /*copies=*/false, held);
    const plan::ModuleLayout& layout = plan_.layout.modules[static_cast<size_t>(place.module)];
    const int32_t replicas = plan_.replicas(place.module).present_replicas();
    for (const auto& [name, tensor] : held) {
      Homes& homes = homes_[name];
      if (!homes.count.defined()) homes.count = at::zeros_like(tensor);
      homes.count.add_(at::isnan(tensor).logical_not());
      homes.expected = std::min(layout.state_copies, replicas);
    }
  }

  const plan::Plan& plan_;
  // By module, pp, width, tp and chunk.
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>, plan::StageParameters>
      parameters_;
  NamedTensors weights_, gradients_, masters_, first_moments_, second_moments_;
  std::map<std::string, Homes> homes_;
};

at::Tensor Stacked(const std::vector<std::vector<float>>& items, at::IntArrayRef shape,
                   at::ScalarType type) {
  if (items.empty()) return {};
  std::vector<int64_t> sizes = {static_cast<int64_t>(items.size())};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  at::Tensor stacked = at::empty(sizes);
  float* out = stacked.mutable_data_ptr<float>();
  for (const std::vector<float>& item : items) out = std::copy(item.begin(), item.end(), out);
  return stacked.to(type);
}

template <typename Values>
at::Tensor Integers(const Values& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

PlainMicrobatch PlainBatchOf(const data::Sample& sample, const job::JobSpec& spec,
                             at::ScalarType type) {
  const data::ItemShapes shapes = data::ItemShapesOf(spec);
  PlainMicrobatch batch;
  const int64_t length = static_cast<int64_t>(sample.tokens.size());
  batch.tokens = Integers(sample.tokens).unsqueeze(0);
  batch.labels = Integers(sample.labels).unsqueeze(0);
  batch.label_weights = Integers(sample.label_counts).unsqueeze(0).to(type);
  const size_t modules = spec.modules.size();
  batch.pixels.resize(modules);
  batch.sounds.resize(modules);
  batch.positions.resize(modules);
  for (size_t i = 0; i < shapes.encoders.size(); ++i) {
    const data::Encoder& encoder = shapes.encoders[i];
    const data::Sample::Items& items = sample.encoders[i];
    const size_t m = static_cast<size_t>(encoder.module);
    if (encoder.kind == data::ItemKind::kImage) {
      batch.pixels[m] = Stacked(items.values, {3, encoder.image_size, encoder.image_size}, type);
    } else {
      batch.sounds[m] = Stacked(items.values, {encoder.mel_bins, encoder.frames}, type);
    }
    if (!items.values.empty()) batch.positions[m] = Integers(items.positions);
  }
  if (shapes.targets) {
    const int64_t rows = static_cast<int64_t>(sample.target.size()) / shapes.target_hidden;
    at::Tensor targets = at::empty({rows, shapes.target_hidden});
    std::copy(sample.target.begin(), sample.target.end(), targets.mutable_data_ptr<float>());
    batch.targets = targets.to(type);
    batch.target_positions = at::arange(length - rows, length, at::kLong);
    batch.target_weights = at::ones({rows}, type);
  }
  return batch;
}

// fp64 copies, vectors as [n, 1].
NamedTensors Flattened(const NamedTensors& tensors) {
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor copy = tensor.detach().to(at::kDouble).clone();
    result[name] = copy.dim() == 1 ? copy.unsqueeze(1) : copy;
  }
  return result;
}

}  // namespace

HeldPart HeldBy(train::PartState& state) {
  HeldPart part;
  part.place = state.place();
  part.chunk = state.chunk();
  for (const train::StateBlock& block : state.blocks()) {
    if (!block.lacking.empty()) continue;  // no home yet
    HeldState held;
    for (at::Tensor* tensor :
         {&held.gradients, &held.master, &held.first_moment, &held.second_moment}) {
      *tensor = at::full({state.parameters().elements}, NAN, at::kDouble);
    }
    for (const train::StateRun& run : block.runs) {
      const auto flat = [&run](const at::Tensor& buffer) {
        return buffer.narrow(0, run.gradient_offset, run.count);
      };
      const auto own = [&run](const at::Tensor& tensor) {
        return tensor.narrow(0, run.state_offset, run.count);
      };
      flat(held.gradients).copy_(flat(state.gradients()));
      flat(held.master).copy_(block.master.defined() ? own(block.master) : flat(state.weights()));
      flat(held.first_moment).copy_(own(block.first_moment));
      flat(held.second_moment).copy_(own(block.second_moment));
    }
    part.states.push_back(std::move(held));
  }
  if (part.states.empty()) {
    const at::Tensor nowhere = at::full({state.parameters().elements}, NAN, at::kDouble);
    part.states.push_back({nowhere.clone(), nowhere.clone(), nowhere.clone(), nowhere.clone()});
  }
  HeldState& own = part.states.front();
  for (const at::Tensor* tensor :
       {&own.gradients, &own.master, &own.first_moment, &own.second_moment}) {
    for (const plan::LocalMatrix& matrix : state.parameters().matrices) {
      if (!matrix.trains) tensor->narrow(0, matrix.offset, matrix.rows * matrix.cols).zero_();
    }
  }
  part.weights = state.weights().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  return part;
}

TrainedStep PutTogether(const plan::Plan& plan, const train::Decision& decision,
                        const std::vector<HeldPart>& parts) {
  TrainedStep step;
  step.decision = decision;
  Collector collector(plan);
  for (const HeldPart& part : parts) collector.Add(part);
  collector.Finish(step);
  return step;
}

absl::StatusOr<plan::Plan> PlanWithout(const job::JobSpec& spec, const plan::RankList& lost,
                                       Epoch epoch) {
  ASSIGN_OR_RETURN(plan::Plan healthy,
                   plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), epoch));
  if (lost.empty()) return healthy;
  return plan::PlanWithout(healthy, lost);
}

std::vector<TrainedStep> TrainInProcess(const job::JobSpec& spec, const DataShape& data,
                                        int64_t steps) {
  job::JobSpec full = spec;
  full.steps = steps;
  const auto plan = plan::MakePlan(full, plan::MakeCluster(1, full.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? TrainInProcess(*plan, data) : std::vector<TrainedStep>();
}

std::vector<TrainedStep> TrainInProcess(const plan::Plan& plan, const DataShape& data) {
  at::set_num_threads(1);  // ranks are threads already, and tensors are tiny
  const int64_t steps = plan.spec.steps;
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  comm::InProcessWorld world(plan.world);
  std::vector<TrainedStep> result(static_cast<size_t>(steps));
  Mutex mu;
  train::Decision decided;      // guarded by mu
  std::vector<HeldPart> parts;  // guarded by mu
  std::barrier barrier(plan.world);
  auto run = [&](int32_t rank) {
    comm::Communicators communicators = world.Connect(specs, Rank{rank});
    std::unique_ptr<train::SampleSource> source = MakeData(data);
    const std::unique_ptr<train::TrainingState> state = *train::TrainingState::Create(
        plan, Rank{rank}, {.compute = train::ComputeType(plan.spec.compute)});
    auto trainer = train::Trainer::Create(plan, Rank{rank}, communicators, *source, *state, {}, {});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    const absl::Status prepared = trainer.ok() ? (*trainer)->Prepare() : trainer.status();
    EXPECT_TRUE(prepared.ok()) << prepared;
    if (!prepared.ok()) world.Abort(prepared);
    for (int64_t step = 1; step <= steps; ++step) {
      if (trainer.ok()) {
        const absl::StatusOr<train::Decision> decision = (*trainer)->RunOne(step);
        EXPECT_TRUE(decision.ok())
            << "rank " << rank << " step " << step << ": " << decision.status();
        if (!decision.ok()) world.Abort(decision.status());
        if (decision.ok()) {
          const MutexLock lock(&mu);
          // A rank without a module has nobody's record but its own.
          if (!plan.PlacesOf(Rank{rank}).empty()) {
            if (decided.step == step) {
              EXPECT_EQ(decided.gradient_scale, decision->gradient_scale)
                  << "rank " << rank << " step " << step;
            }
            decided = *decision;
          }
          for (const auto& part : state->parts()) parts.push_back(HeldBy(*part));
        }
      }
      barrier.arrive_and_wait();
      if (rank == 0) {
        const MutexLock lock(&mu);
        result[static_cast<size_t>(step - 1)] = PutTogether(plan, decided, parts);
        parts.clear();
      }
      barrier.arrive_and_wait();
    }
  };
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < plan.world; ++rank) threads.emplace_back(run, rank);
  threads.clear();
  return result;
}

std::vector<TrainedStep> TrainPlain(const job::JobSpec& spec, const DataShape& data,
                                    int64_t steps) {
  return TrainPlain(spec, *MakeData(data), steps);
}

std::vector<TrainedStep> TrainPlain(const job::JobSpec& spec, train::SampleSource& source,
                                    int64_t steps) {
  at::set_num_threads(1);
  const at::ScalarType type = train::ComputeType(spec.compute);
  PlainModel model(spec, type);
  std::vector<TrainedStep> result;
  for (int64_t step = 1; step <= steps; ++step) {
    TrainedStep trained;
    for (int64_t i = 0; i < spec.batch.global; ++i) {
      const int64_t number =
          plan::SampleAt(spec.seed, source.size(), (step - 1) * spec.batch.global + i);
      const std::shared_ptr<const data::Sample> sample = *source.Take(number);
      if (sample->corrupt) continue;
      data::Sample counted = *sample;
      if (!counted.target_finite) counted.target.clear();
      model.Accumulate(PlainBatchOf(counted, spec, type));
    }
    trained.gradients = Flattened(model.Gradients());
    job::Optimizer optimizer = spec.optimizer;
    const PlainStep plain = model.Step(train::LearningRate(optimizer, step, steps));
    for (auto& [name, tensor] : trained.gradients)
      tensor = tensor / std::max(plain.counted_tokens, 1.0);
    trained.parameters = Flattened(model.parameters());
    trained.decision.loss = plain.loss;
    trained.decision.gradient_norm = plain.gradient_norm;
    trained.decision.counted_tokens = plain.counted_tokens;
    result.push_back(std::move(trained));
  }
  return result;
}

WorstTensor Compare(const NamedTensors& a, const NamedTensors& b) {
  auto kind = [](const std::string& name, const at::Tensor& tensor) {
    return name.substr(0, name.find('/')) + (tensor.size(1) > 1 ? "/matrix" : "/vector");
  };
  std::map<std::string, double> scales;
  for (const auto& [name, tensor] : b) {
    double& scale = scales[kind(name, tensor)];
    scale = std::max(scale, tensor.abs().max().item<double>());
  }
  EXPECT_EQ(a.size(), b.size());
  WorstTensor worst;
  for (const auto& [name, tensor] : b) {
    const auto found = a.find(name);
    EXPECT_NE(found, a.end()) << name << " is missing";
    if (found == a.end()) continue;
    const double error = (found->second - tensor).abs().max().item<double>() /
                         std::max(scales[kind(name, tensor)], 1e-300);
    if (!(error <= worst.error)) worst = {name, error};
  }
  return worst;
}

}  // namespace phalanx::oracle
