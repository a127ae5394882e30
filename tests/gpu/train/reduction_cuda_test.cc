// What reduces a part by messages, on GPUs: packing and summing of runs, and the whole exchange
// between two replicas over NCCL, whose sums are those that the host computes, to the bit. Where
// there are too few devices, a test says so and is skipped.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/reduction.h"
#include "tests/gpu/ranks.h"
#include "tests/support/specs.h"
#include "worker/comm/communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/model/torch_boundary.h"
#include "worker/train/device_wait.h"
#include "worker/train/packed_runs.h"
#include "worker/train/part_reduction.h"

namespace phalanx::train {
namespace {

constexpr int32_t kReductionSecondsMax = 120;

std::string Of(const absl::Status& status) {
  return status.ok() ? "fine" : std::string(status.message());
}

// Runs that begin at anything, at eights, at sixteens: copied in units of every width.
std::string RunsAreMoved() {
  const auto device = at::Device(at::kCUDA, 0);
  for (const int64_t unit : {1, 2, 4, 8, 16}) {
    const std::vector<plan::UnitRange> list = {
        {3 * unit, 5 * unit}, {11 * unit, unit}, {20 * unit, 1000 * unit}};
    const PackedRuns on_cpu(list, at::kCPU), on_cuda(list, device);
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const at::Tensor flat = at::arange(2000 * unit).remainder(251).to(type);
      at::Tensor packed = at::empty({on_cpu.elements()}, flat.options());
      at::Tensor packed_on_cuda = at::empty({on_cuda.elements()}, flat.options().device(device));
      on_cpu.Pack(flat, packed);
      on_cuda.Pack(flat.to(device), packed_on_cuda);
      if (!packed_on_cuda.cpu().equal(packed)) return absl::StrCat("packed by ", unit);
      at::Tensor back = at::zeros_like(flat), back_on_cuda = back.to(device);
      on_cpu.Unpack(packed, back);
      on_cuda.Unpack(packed_on_cuda, back_on_cuda);
      if (!back_on_cuda.cpu().equal(back)) return absl::StrCat("unpacked by ", unit);
    }
  }
  const std::vector<plan::SummedRun> sums = {{.elements = {5, 700}, .sources = {0, -1, 1000}},
                                             {.elements = {800, 3}, .sources = {-1, 700, 1700}}};
  const at::Tensor taken = at::randn({3000}), flat = at::randn({1000});
  at::Tensor expected = flat.clone(), summed = flat.to(device);
  SummedRuns(sums, 3, at::kCPU).Sum(taken, expected);
  SummedRuns(sums, 3, device).Sum(taken.to(device), summed);
  return summed.cpu().equal(expected) ? "fine" : "the sums differ";
}

TEST(PackedRunsCudaTest, RunsOfEveryAlignment_AreMovedAndSummedAsOnTheCpu) {
  if (gpu::DeviceCount() < 1) GTEST_SKIP() << "needs a GPU; there is none";
  const auto reports =
      gpu::RunRanks(1, kReductionSecondsMax, [](const gpu::ForkedRank&) { return RunsAreMoved(); });
  EXPECT_EQ(reports, std::vector<std::string>{"fine"});
}

plan::Plan TwoReplicas(const support::LlamaShape& shape) {
  job::JobSpec spec = support::AJob()
                          .Module("language", support::Llama(shape), {.dp = 2})
                          .Batch(2, 1)
                          .Compute(job::Precision::kBf16);
  return *plan::MakePlan(spec, plan::MakeCluster(1, 2), Epoch{1});
}

// What replica `replica` has of a gradient before it is reduced.
at::Tensor GradientOf(int32_t replica, int64_t elements) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(replica) + 1);
  return at::randn({elements}, generator);
}

// One part of one of two replicas, with a communicator.
class Replica {
 public:
  Replica(const gpu::ForkedRank& me, const support::LlamaShape& shape)
      : plan_(TwoReplicas(shape)),
        place_(plan_.PlacesOf(Rank{me.rank})[0]),
        device_(at::kCUDA, static_cast<int8_t>(me.device)),
        means_(device_) {
    gpu::FolderRendezvous rendezvous(me.folder);
    const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan_);
    comm::WorldOptions options;
    options.current_stream = device::CurrentStream;
    auto connected = comm::ConnectNccl(specs, Rank{me.rank}, 2, rendezvous, options);
    if (!connected.ok()) throw std::runtime_error(std::string(connected.status().message()));
    communicators_ = *std::move(connected);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].use == plan::CommunicatorSpec::Use::kData) data_ = communicators_[i].get();
    }
    state_ = std::make_unique<PartState>(
        plan_, place_, 0, BufferOptions{.device = device_, .compute = at::kBFloat16});
  }

  PartState& state() { return *state_; }
  plan::Reduction ByMessages() const {
    return plan::ReductionByMessages(plan_, place_, 0, state_->parameters());
  }
  plan::Reduction ByCollectives() const {
    return plan::ReductionOf(plan_, place_, 0, state_->parameters());
  }
  std::unique_ptr<PartReduction> Bind(plan::Reduction reduction) {
    return std::make_unique<PartReduction>(std::move(reduction), *state_, PartGroups{.data = data_},
                                           means_);
  }

 private:
  const plan::Plan plan_;
  const plan::Place place_;
  const at::Device device_;
  ReductionMeans means_;
  comm::Communicators communicators_;
  comm::Communicator* data_ = nullptr;
  std::unique_ptr<PartState> state_;
};

at::Tensor Pieces(const at::Tensor& flat, const std::vector<plan::UnitRange>& runs) {
  std::vector<at::Tensor> pieces;
  for (const plan::UnitRange& run : runs) pieces.push_back(flat.narrow(0, run.first, run.count));
  return at::cat(pieces);
}

absl::Status SumsAreTheHosts(const gpu::ForkedRank& me) {
  Replica replica(me, {.hidden_size = 64, .layers = 3, .mlp_size = 256, .block = 16});
  const plan::Reduction by_messages = replica.ByMessages();
  const auto reduction = replica.Bind(by_messages);
  at::Tensor& gradients = replica.state().gradients();
  const at::Tensor sum = GradientOf(0, gradients.numel()) + GradientOf(1, gradients.numel());
  gradients.copy_(GradientOf(me.rank, gradients.numel()));
  at::Tensor& weights = replica.state().weights();
  weights.fill_(me.rank + 1);
  RETURN_IF_ERROR(reduction->Reduce());
  RETURN_IF_ERROR(reduction->Await());
  const at::Tensor reduced = gradients.cpu();
  RETURN_IF_ERROR(reduction->Gather());
  RETURN_IF_ERROR(reduction->Await());
  const at::Tensor gathered = weights.to(at::kCPU, at::kFloat);
  for (const plan::ReducedBucket& bucket : by_messages.buckets) {
    if (!Pieces(reduced, bucket.own).equal(Pieces(sum, bucket.own)))
      return absl::InternalError("a share is not the sum");
    if (Pieces(gathered, bucket.own).ne(me.rank + 1).any().item<bool>())
      return absl::InternalError("a home's weights have changed");
    for (const plan::MirrorPeer& mirrored : bucket.from_primaries) {
      if (!Pieces(reduced, mirrored.runs).equal(Pieces(sum, mirrored.runs)))
        return absl::InternalError("a mirror has not the sum");
    }
    for (const plan::SharePeer& peer : bucket.peers) {
      if (Pieces(gathered, peer.give).ne(2 - me.rank).any().item<bool>())
        return absl::InternalError("weights are not the home's");
    }
  }
  weights.fill_(1);
  for (StateBlock& block : replica.state().blocks()) block.master.fill_(1);
  return reduction->VerifyCopies();
}

// Some sums begin inside the pass, and a kernel has those of several buckets.
absl::Status AllHaveTheHostsSums(const gpu::ForkedRank& me) {
  Replica replica(me, {.hidden_size = 2048,
                       .layers = 3,
                       .heads = 16,
                       .kv_heads = 8,
                       .mlp_size = 8192,
                       .block = 128,
                       .vocabulary = 1024});
  const plan::Reduction for_all = replica.ByCollectives();
  if (!for_all.for_all) return absl::InternalError("sums are not for all");
  const auto reduction = replica.Bind(for_all);
  at::Tensor& gradients = replica.state().gradients();
  const at::Tensor sum = GradientOf(0, gradients.numel()) + GradientOf(1, gradients.numel());
  gradients.copy_(GradientOf(me.rank, gradients.numel()));
  RETURN_IF_ERROR(reduction->ReduceBehind(1));
  if (reduction->begun() < 2 || reduction->begun() == for_all.buckets.size()) {
    return absl::InternalError(absl::StrCat(reduction->begun(), " of ", for_all.buckets.size(),
                                            " sums begin behind the last layer"));
  }
  RETURN_IF_ERROR(reduction->Reduce());
  RETURN_IF_ERROR(reduction->Await());
  const at::Tensor reduced = gradients.cpu();
  for (const plan::ReducedBucket& bucket : for_all.buckets) {
    if (!Pieces(reduced, {bucket.elements}).equal(Pieces(sum, {bucket.elements})))
      return absl::InternalError("a bucket is not the sum");
  }
  return absl::OkStatus();
}

std::vector<std::string> OnTwo(absl::Status (*body)(const gpu::ForkedRank&)) {
  return gpu::RunRanks(2, kReductionSecondsMax, [body](const gpu::ForkedRank& me) -> std::string {
    at::set_num_threads(1);
    absl::Status status = device::UseCudaDevice(me.device);
    if (status.ok()) status = model::CallTorch("reduction", [&] { return body(me); });
    if (!comm::WaitForNcclReleases(comm::DeadlineIn(absl::Seconds(20)))) return "not released";
    return Of(status);
  });
}

TEST(ReductionCudaTest, ByMessages_SharesAndMirrorsHaveTheHostsSums) {
  if (gpu::DeviceCount() < 2) GTEST_SKIP() << "needs 2 GPUs; there are " << gpu::DeviceCount();
  EXPECT_EQ(OnTwo(SumsAreTheHosts), std::vector<std::string>(2, "fine"));
}

TEST(ReductionCudaTest, WhereEveryReplicaIsHome_AllHaveTheHostsSums) {
  if (gpu::DeviceCount() < 2) GTEST_SKIP() << "needs 2 GPUs; there are " << gpu::DeviceCount();
  EXPECT_EQ(OnTwo(AllHaveTheHostsSums), std::vector<std::string>(2, "fine"));
}

// Seconds of one reduction and gather of some 600 M elements, by messages and by collectives.
absl::Status Timed(const gpu::ForkedRank& me) {
  Replica replica(me, {.hidden_size = 4096,
                       .layers = 3,
                       .heads = 32,
                       .kv_heads = 8,
                       .mlp_size = 14336,
                       .block = 128,
                       .vocabulary = 1024});
  for (const bool by_messages : {false, true, true, false}) {
    const auto reduction =
        replica.Bind(by_messages ? replica.ByMessages() : replica.ByCollectives());
    constexpr int32_t kWarm = 5, kTimed = 50;
    std::chrono::steady_clock::time_point begin;
    for (int32_t i = 0; i < kWarm + kTimed; ++i) {
      if (i == kWarm) {
        RETURN_IF_ERROR(device::AwaitDevice(absl::Seconds(30)));
        begin = std::chrono::steady_clock::now();
      }
      RETURN_IF_ERROR(reduction->Reduce());
      RETURN_IF_ERROR(reduction->Await());
      RETURN_IF_ERROR(reduction->Gather());
      RETURN_IF_ERROR(reduction->Await());
    }
    RETURN_IF_ERROR(device::AwaitDevice(absl::Seconds(30)));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kTimed;
    if (me.rank > 0) continue;
    std::printf("%.0f M elements by %s: %.2f ms\n",
                static_cast<double>(replica.state().gradients().numel()) / 1e6,
                by_messages ? "messages" : "collectives", seconds * 1e3);
  }
  return absl::OkStatus();
}

TEST(ReductionCudaTest, ByMessages_TakesAsLongAsItDoes) {
  if (gpu::DeviceCount() < 2) GTEST_SKIP() << "needs 2 GPUs; there are " << gpu::DeviceCount();
  EXPECT_EQ(OnTwo(Timed), std::vector<std::string>(2, "fine"));
}

}  // namespace
}  // namespace phalanx::train
