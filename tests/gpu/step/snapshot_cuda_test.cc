// Copies of state beside training: what they wait for, what waits for them, and what is in them.
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <stop_token>
#include <thread>

#include "tests/support/specs.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/device/cuda_device.h"

namespace phalanx::checkpoint {
namespace {

constexpr int64_t kBusyCycles = 4'000'000'000;  // two seconds and more

class SnapshotCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    const absl::Status used = device::UseCudaDevice(0);
    ASSERT_TRUE(used.ok()) << used;
    state_ = *train::TrainingState::Create(plan_, Rank{0}, options_);
    ASSERT_TRUE(state_->GoOn(plan_, {}).ok());
    ASSERT_TRUE(device::AwaitDevice(absl::Minutes(1)).ok());
    sections_ = SectionsToWrite(plan_, *state_);
  }

  std::unique_ptr<PinnedMapping> Memory() {
    auto memory = *PinnedMapping::Map(-1, Snapshot::BytesOf(sections_), PinningOf(options_.device));
    EXPECT_TRUE(memory->Pin([] { return true; }).ok());
    return memory;
  }

  void Train(int64_t step) {
    train::PartState& part = *state_->parts()[0];
    state_->AwaitUpdates();  // they read the gradients
    part.gradients().fill_(0.01 * static_cast<double>(step));
    const train::Decision decision{
        .step = step, .verdict = train::Verdict::kCommitted, .gradient_scale = 0.25};
    state_->kernels().SetDecision(decision);
    ASSERT_TRUE(state_->Optimize(plan_, part, step, {}).ok());
    state_->Account(decision);
  }

  // Large enough that a copy takes far longer than an update.
  const plan::Plan plan_ =
      *plan::MakePlan(support::AJob()
                          .Module("language", support::Llama({.hidden_size = 1024,
                                                              .layers = 4,
                                                              .heads = 16,
                                                              .kv_heads = 4,
                                                              .mlp_size = 4096,
                                                              .block = 64,
                                                              .vocabulary = 32000}))
                          .Batch(2, 1)
                          .Steps(20)
                          .Compute(job::Precision::kBf16),
                      plan::MakeCluster(1, 1), Epoch{1});
  const train::BufferOptions options_{.device = at::Device(at::kCUDA, 0), .compute = at::kBFloat16};
  std::unique_ptr<train::TrainingState> state_;
  std::vector<Section> sections_;
};

TEST_F(SnapshotCudaTest, CopyThatStepsGoOnBeside_HasTheStateOfItsStep) {
  const auto quiet_memory = Memory(), memory = Memory();
  const auto quiet = Snapshot::Into(*quiet_memory, 0, *state_, sections_);
  const auto snapshot = Snapshot::Into(*memory, 0, *state_, sections_);
  Train(1);
  ASSERT_TRUE(quiet->Begin().ok());
  ASSERT_TRUE(quiet->Await(std::stop_token()).ok());
  ASSERT_TRUE(snapshot->Begin().ok());
  Train(2);
  Train(3);
  ASSERT_TRUE(snapshot->Await(std::stop_token()).ok());
  const auto bytes = static_cast<size_t>(memory->bytes());
  EXPECT_EQ(std::memcmp(memory->data(), quiet_memory->data(), bytes), 0);
  // Behind all three steps it is another state.
  ASSERT_TRUE(quiet->Begin().ok());
  ASSERT_TRUE(quiet->Await(std::stop_token()).ok());
  EXPECT_NE(std::memcmp(memory->data(), quiet_memory->data(), bytes), 0);
}

TEST_F(SnapshotCudaTest, NextUpdateOfABucket_WaitsForTheCopyOfNoOther) {
  const auto memory = Memory();
  const auto snapshot = Snapshot::Into(*memory, 0, *state_, sections_);
  Train(1);
  ASSERT_TRUE(device::AwaitDevice(absl::Minutes(1)).ok());
  train::PartState& part = *state_->parts()[0];
  const size_t buckets = part.parameters().buckets.size();
  ASSERT_GT(buckets, 2);
  ASSERT_TRUE(snapshot->Begin().ok());
  Train(2);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!part.updated(buckets - 1).Passed() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_TRUE(part.updated(buckets - 1).Passed());
  EXPECT_FALSE(*snapshot->Done());
  EXPECT_TRUE(state_->IsRead());
  ASSERT_TRUE(snapshot->Await(std::stop_token()).ok());
  EXPECT_FALSE(state_->IsRead());
}

// What does not train is copied once: there is nothing to wait for, or to copy, the next time.
TEST_F(SnapshotCudaTest, CopyOfWhatDoesNotTrain_IsThereAgainAtOnce) {
  job::JobSpec spec = plan_.spec;
  spec.modules[0].frozen = true;
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, 1), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto state = *train::TrainingState::Create(*plan, Rank{0}, options_);
  ASSERT_TRUE(state->GoOn(*plan, {}).ok());
  const auto snapshot = *Snapshot::Create(*plan, *state);
  ASSERT_GT(snapshot->bytes(), 0);
  at::cuda::sleep(kBusyCycles);
  const train::Moment passes = train::Moment::Now(options_.device);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(snapshot->Begin().ok());
    ASSERT_TRUE(snapshot->Await(std::stop_token()).ok());
    EXPECT_FALSE(state->IsRead());
  }
  EXPECT_FALSE(passes.Passed());
  ASSERT_TRUE(device::AwaitDevice(absl::Minutes(1)).ok());
}

TEST_F(SnapshotCudaTest, Copy_DoesNotWaitForThePassesThatTheHostIsAheadWith) {
  const auto memory = Memory();
  const auto snapshot = Snapshot::Into(*memory, 0, *state_, sections_);
  Train(1);
  at::cuda::sleep(kBusyCycles);
  const train::Moment passes = train::Moment::Now(options_.device);
  ASSERT_TRUE(snapshot->Begin().ok());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!*snapshot->Done() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_TRUE(*snapshot->Done());
  EXPECT_FALSE(passes.Passed());
  ASSERT_TRUE(device::AwaitDevice(absl::Minutes(1)).ok());
}

}  // namespace
}  // namespace phalanx::checkpoint
