// Backward passes of layers whose tensor ranks exchange rows while they work, in fp64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/plan/plan.h"
#include "tests/support/specs.h"
#include "worker/comm/communicator.h"
#include "worker/model/layer.h"

namespace phalanx::model {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;

constexpr int32_t kWidth = 2, kLayers = 3;

// Like a device's: a collective reads and writes its memory only when it is waited for, and until
// then what it will write is no number.
class LateCommunicator final : public comm::Communicator {
 public:
  explicit LateCommunicator(comm::Communicator& inner) : inner_(inner) {}
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }
  absl::Status AllReduceSum(void* data, int64_t count, comm::DType dtype) override {
    late_.push_back([=, this] { return inner_.AllReduceSum(data, count, dtype); });
    return absl::OkStatus();
  }
  absl::Status ReduceScatterSum(const void* in, void* out, int64_t count,
                                comm::DType dtype) override {
    Spoil(out, count);
    late_.push_back([=, this] { return inner_.ReduceScatterSum(in, out, count, dtype); });
    return absl::OkStatus();
  }
  absl::Status AllGather(const void* in, void* out, int64_t count, comm::DType dtype) override {
    const double* own = static_cast<double*>(out) + rank() * count;
    for (int32_t rank = 0; rank < size(); ++rank) {
      double* block = static_cast<double*>(out) + rank * count;
      if (block != own || in != own) Spoil(block, count);
    }
    ++gathers_;
    late_.push_back([=, this] { return inner_.AllGather(in, out, count, dtype); });
    return absl::OkStatus();
  }
  absl::Status Exchange(absl::Span<const comm::Outgoing> sends,
                        absl::Span<const comm::Incoming> receives) override {
    return inner_.Exchange(sends, receives);
  }
  absl::Status Join() override { return RunUntil(done_ + late_.size()); }
  absl::Status Flush() override { return Join(); }
  absl::StatusOr<Point> Mark() override {
    return [this, end = done_ + late_.size()] { return RunUntil(end); };
  }
  void Abort(absl::Status reason) override { inner_.Abort(std::move(reason)); }
  int gathers() const { return gathers_; }

 private:
  static void Spoil(void* out, int64_t count) {
    std::fill_n(static_cast<double*>(out), count, std::numeric_limits<double>::quiet_NaN());
  }
  absl::Status RunUntil(size_t end) {
    for (; done_ < end; ++done_) {
      const absl::Status status = late_.front()();
      late_.pop_front();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  comm::Communicator& inner_;
  std::deque<std::function<absl::Status()>> late_;
  size_t done_ = 0;
  int gathers_ = 0;
};

struct LayerConfig {
  bool decoder = true, sequence = false;
  job::Recompute recompute = job::Recompute::kNone;
};
struct Mode {
  bool late = false;   // communicator
  bool along = false;  // weight products inside the pass
  bool frozen = false;
};
struct Result {
  at::Tensor output, input_gradient, gradients;
  std::vector<int> waiting;  // products, between two layers
  int gathers = 0;           // of the backward pass, where the communicator is late
};

// Forward and backward passes of some layers on one rank of a tensor group.
Result RunLayers(const LayerConfig& config, const Mode& mode, comm::Communicator& group) {
  const support::Layout layout{.tp = kWidth, .sequence = config.sequence};
  const job::JobSpec spec =
      config.decoder ? AJob().Module("language", Llama({.layers = kLayers}), layout).Build()
                     : AJob()
                           .Module("vision", ClipVision({.layers = kLayers}), layout)
                           .Module("language", Llama())
                           .Edge("vision", "language")
                           .Build();
  const plan::Plan plan = *plan::MakePlan(spec, plan::MakeCluster(1, kWidth + 1), Epoch{1});
  const plan::Place place{.module = 0, .tp = group.rank(), .width = kWidth};
  const plan::StageParameters parameters = plan::ParametersOf(plan, place);
  const job::Architecture& a = plan.module_spec(0).architecture;
  const plan::TensorUnits units = plan::TensorUnitsOf(a, kWidth, place.tp);

  at::Generator random = at::detail::createCPUGenerator(17);
  const auto values = [&random](at::IntArrayRef sizes) {
    return at::randn(sizes, random, at::TensorOptions().dtype(at::kDouble));
  };
  const at::Tensor weights = values({parameters.elements}).mul_(0.3);
  const SequenceShape rows{.batch = 2, .length = 13};  // no multiple of slices
  const at::Tensor input = values({rows.rows(), a.hidden_size}), upstream = at::sin(input);
  const at::Tensor angles = values({16, plan::HeadSize(a) / 2});

  LateCommunicator late(group);
  LayerContext context;
  context.architecture = a;
  context.recompute = config.recompute;
  context.trains = !mode.frozen;
  context.group =
      TensorGroup(mode.late ? static_cast<comm::Communicator*>(&late) : &group, config.sequence);
  context.heads = MakeHeadMap(units, a.heads / plan::KvHeads(a), plan::HeadSize(a), at::kCPU);
  context.cos = angles.cos();
  context.sin = angles.sin();

  Result result{.gradients = at::zeros_like(weights)};
  WeightWork work;
  bool backward = false;
  LayerStack layers([&] {
    if (backward) result.waiting.push_back(work.waiting());
  });
  const at::Tensor gradients = mode.frozen ? at::Tensor() : result.gradients;
  const ParameterTable table(parameters, weights, gradients);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    layers.Add(config.decoder ? MakeDecoderLayer(context, table, layer)
                              : MakeEncoderLayer(context, table, layer));
  }
  std::vector<LayerState> states;
  LayerRows output = context.group.Mine(input);
  EXPECT_TRUE(layers.Forward(rows, &states, &output).ok());
  output.Add();
  result.output = output.rows;
  backward = true;
  const int gathers_before = late.gathers();
  if (mode.along) work.RunAlong();
  result.input_gradient = context.group.Mine(upstream);
  EXPECT_TRUE(layers.BackwardInput(rows, &states, &work, &result.input_gradient).ok());
  result.gathers = late.gathers() - gathers_before;
  work.Run();
  EXPECT_EQ(work.waiting(), 0);
  return result;
}

// On each rank.
void ForEachRank(const std::function<void(comm::Communicator&)>& body) {
  const plan::CommunicatorSpec spec{
      .use = plan::CommunicatorSpec::Use::kTensor, .name = "group", .ranks = {Rank{0}, Rank{1}}};
  comm::InProcessWorld world(kWidth);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kWidth; ++rank) {
    threads.emplace_back([&, rank] { body(*world.Connect({spec}, Rank{rank})[0]); });
  }
  for (std::thread& thread : threads) thread.join();
}

void ForEachConfig(const std::function<void(const LayerConfig&)>& body) {
  for (const bool decoder : {true, false}) {
    for (const bool sequence : {false, true}) {
      for (const job::Recompute recompute :
           {job::Recompute::kNone, job::Recompute::kSelective, job::Recompute::kFull}) {
        body({decoder, sequence, recompute});
      }
    }
  }
}

TEST(OverlapTest, CollectivesThatEndLate_GiveTheSameBits) {
  ForEachConfig([](const LayerConfig& config) {
    ForEachRank([&](comm::Communicator& group) {
      const Result expected = RunLayers(config, {}, group);
      for (const bool along : {false, true}) {
        const Result result = RunLayers(config, {.late = true, .along = along}, group);
        EXPECT_TRUE(at::equal(result.output, expected.output));
        EXPECT_TRUE(at::equal(result.input_gradient, expected.input_gradient));
        EXPECT_TRUE(at::equal(result.gradients, expected.gradients));
      }
    });
  });
}

// Gradients of what the layers put out and of the middle of each, and where all is computed again
// the inputs of two products; trained weights need those inputs in any case.
TEST(OverlapTest, FrozenLayers_GatherNoInputsForWeights) {
  ForEachConfig([](const LayerConfig& config) {
    const int computed_again = config.recompute == job::Recompute::kFull ? 2 : 0;
    ForEachRank([&](comm::Communicator& group) {
      const Result trained = RunLayers(config, {.late = true}, group);
      const Result frozen = RunLayers(config, {.late = true, .frozen = true}, group);
      EXPECT_TRUE(at::equal(frozen.input_gradient, trained.input_gradient));
      EXPECT_EQ(trained.gathers, config.sequence ? kLayers * 4 : 0);
      EXPECT_EQ(frozen.gathers, config.sequence ? kLayers * (2 + computed_again) : 0);
    });
  });
}

TEST(OverlapTest, BackwardInOne_KeepsOperandsOfOneProductBetweenLayersAtMost) {
  ForEachConfig([](const LayerConfig& config) {
    ForEachRank([&](comm::Communicator& group) {
      const std::vector<int> apart = RunLayers(config, {.along = false}, group).waiting;
      EXPECT_EQ(apart, (std::vector<int>{4, 8}));
      const std::vector<int> in_one = RunLayers(config, {.along = true}, group).waiting;
      // Under sequence parallelism the last one hides the next layer's first gather.
      const int most = config.sequence ? 1 : 0;
      EXPECT_EQ(in_one, (std::vector<int>{most, most}));
    });
  });
}

}  // namespace
}  // namespace phalanx::model
