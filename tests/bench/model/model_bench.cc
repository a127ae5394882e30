// One microbatch of the quickstart's modules, forward and backward, on one thread: the engine's
// stages, whole and cut, against the oracle. The cut ones compute what one rank of the quickstart
// computes; their collectives do nothing.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/oracle/plain_model.h"
#include "tests/support/specs.h"
#include "worker/model/stage_io.h"

namespace phalanx::model {
namespace {

constexpr int64_t kSamples = 2, kPatches = 16, kText = 12, kLength = kPatches + kText;

// A member of a group whose other members add nothing.
class SilentCommunicator final : public comm::Communicator {
 public:
  explicit SilentCommunicator(int32_t size) : size_(size) {}
  int32_t rank() const override { return 0; }
  int32_t size() const override { return size_; }
  absl::Status AllReduceSum(void*, int64_t, comm::DType) override { return absl::OkStatus(); }
  absl::Status ReduceScatterSum(const void*, void*, int64_t, comm::DType) override {
    return absl::OkStatus();
  }
  absl::Status AllGather(const void* in, void* out, int64_t count, comm::DType type) override {
    const size_t bytes = static_cast<size_t>(count * comm::SizeOf(type));
    for (int32_t r = 0; r < size_; ++r)
      std::memcpy(static_cast<char*>(out) + static_cast<size_t>(r) * bytes, in, bytes);
    return absl::OkStatus();
  }
  absl::Status Exchange(absl::Span<const comm::Outgoing>,
                        absl::Span<const comm::Incoming>) override {
    return absl::OkStatus();
  }
  absl::Status Join() override { return absl::OkStatus(); }
  absl::Status Flush() override { return absl::OkStatus(); }
  void Abort(absl::Status) override {}

 private:
  int32_t size_;
};

job::JobSpec QuickstartSpec(int32_t tp, int32_t pp) {
  return support::AJob()
      .Module("vision", support::ClipVision({.hidden_size = 128,
                                             .layers = 4,
                                             .heads = 4,
                                             .mlp_size = 512,
                                             .block = 128,
                                             .image_size = 64,
                                             .patch_size = 16}))
      .Module("language",
              support::Llama({.hidden_size = 192,
                              .layers = 6,
                              .heads = 6,
                              .kv_heads = 2,
                              .mlp_size = 512,
                              .block = 128,
                              .vocabulary = 512,
                              .context = 64}),
              {.tp = tp, .pp = pp})
      .Edge("vision", "language", {.projector = 192});
}

oracle::PlainMicrobatch Microbatch() {
  oracle::PlainMicrobatch batch;
  batch.tokens = at::randint(512, {kSamples, kLength}, at::kLong);
  batch.labels = at::randint(512, {kSamples, kLength}, at::kLong);
  batch.label_weights = at::ones({kSamples, kLength});
  batch.label_weights.narrow(1, 0, kPatches).zero_();
  batch.pixels = {at::randn({kSamples, 3, 64, 64}), {}};
  batch.row_positions =
      at::cat({at::arange(kPatches, at::kLong), at::arange(kPatches, at::kLong) + kLength});
  return batch;
}

// The first stage of a module at tensor coordinate 0, by itself.
class OneRank {
 public:
  OneRank(const job::JobSpec& spec, int32_t module, int32_t stage)
      : plan_(*plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1})),
        place_{.module = module,
               .pp = stage,
               .width = spec.modules[static_cast<size_t>(module)].parallel.tp},
        parameters_(plan::ParametersOf(plan_, place_)),
        weights_(at::empty({parameters_.elements})),
        gradients_(at::zeros({parameters_.elements})),
        group_(place_.width) {
    InitialiseWeights(plan_, place_, parameters_, weights_, 1);
    stage_ = *MakeStage(plan_, place_, 0, parameters_, weights_, gradients_, &group_, {});
  }
  void Run(const StageInput& input, const std::vector<at::Tensor>& output_gradient) {
    if (!stage_->Forward(0, input).ok() || !stage_->BackwardInput(0, output_gradient).ok() ||
        !stage_->BackwardWeight(0).ok()) {
      std::abort();
    }
  }

 private:
  plan::Plan plan_;
  plan::Place place_;
  plan::StageParameters parameters_;
  at::Tensor weights_, gradients_;
  SilentCommunicator group_;
  std::unique_ptr<Stage> stage_;
};

void Oracle(benchmark::State& state) {
  at::set_num_threads(1);
  oracle::PlainModel model(QuickstartSpec(1, 1), at::kFloat);
  const oracle::PlainMicrobatch batch = Microbatch();
  for (auto _ : state) model.Accumulate(batch);
}
BENCHMARK(Oracle)->Unit(benchmark::kMicrosecond);

void Vision(benchmark::State& state) {
  at::set_num_threads(1);
  OneRank rank(QuickstartSpec(1, 1), 0, 0);
  StageInput input;
  input.pixels = Microbatch().pixels[0];
  input.batch = input.pixels.size(0);
  const at::Tensor gradient = at::randn({kSamples * kPatches, 192});
  for (auto _ : state) rank.Run(input, {gradient});
}
BENCHMARK(Vision)->Unit(benchmark::kMicrosecond);

// Arguments: tensor width, stages, stage.
void Language(benchmark::State& state) {
  at::set_num_threads(1);
  const auto width = static_cast<int32_t>(state.range(0)),
             stages = static_cast<int32_t>(state.range(1));
  OneRank rank(QuickstartSpec(width, stages), 1, static_cast<int32_t>(state.range(2)));
  const oracle::PlainMicrobatch batch = Microbatch();
  StageInput input;
  input.tokens = MakeTokenRows(batch.tokens, batch.row_positions);
  input.labels = batch.labels;
  input.label_weights = batch.label_weights;
  input.rows = at::randn({kSamples * kPatches, 192});
  input.row_positions = batch.row_positions;
  input.batch = kSamples;
  input.length = kLength;
  input.hidden = at::randn({kSamples * kLength, 192});
  const at::Tensor gradient = at::randn({kSamples * kLength, 192});
  for (auto _ : state) rank.Run(input, {gradient});
}
BENCHMARK(Language)->Args({1, 1, 0})->Args({2, 2, 0})->Args({2, 2, 1})->Unit(
    benchmark::kMicrosecond);

}  // namespace
}  // namespace phalanx::model
