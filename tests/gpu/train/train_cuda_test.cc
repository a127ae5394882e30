// Training on CUDA with NCCL, each rank a thread on a GPU of its own: equal to the plain model on
// CPU, and all holders of a parameter or of optimizer state with the same bits (PutTogether).
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tests/oracle/training/harness.h"
#include "tests/support/specs.h"
#include "worker/comm/communicator.h"
#include "worker/device/cuda_device.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;

constexpr absl::Duration kPatience = absl::Seconds(60);

// Of the threads of this process.
class MemoryRendezvous final : public comm::Rendezvous {
 public:
  absl::Status Put(const std::string& key, const std::string& value) override {
    const absl::MutexLock lock(&mutex_);
    entries_.emplace(key, value);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, comm::Deadline) override {
    const absl::MutexLock lock(&mutex_);
    const auto there = [&] { return entries_.contains(key); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience))
      return absl::DeadlineExceededError(key);
    return entries_.at(key);
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::string> entries_;
};

class CudaGround final : public Ground {
 public:
  explicit CudaGround(int32_t world) : world_(world) {}
  ~CudaGround() override { comm::WaitForNcclReleases(comm::DeadlineIn(kPatience)); }
  at::Device DeviceOf(Rank rank) override {
    EXPECT_TRUE(device::UseCudaDevice(rank.value).ok());
    return at::Device(at::kCUDA, static_cast<int8_t>(rank.value));
  }
  absl::StatusOr<comm::Communicators> Connect(const std::vector<plan::CommunicatorSpec>& specs,
                                              Rank rank) override {
    comm::WorldOptions options;
    options.current_stream = device::CurrentStream;
    options.operation_timeout = kPatience;
    return comm::ConnectNccl(specs, rank, world_, rendezvous_, options);
  }
  // A rank that is waited for gives its peers up after operation_timeout.
  void Abort(const absl::Status&) override {}

 private:
  const int32_t world_;
  MemoryRendezvous rendezvous_;
};

int Devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

// Head sizes that the attention kernels take: 32.
job::Architecture Language(bool tied_head) {
  return Llama({.hidden_size = 256, .mlp_size = 128, .tied_head = tied_head});
}
job::Architecture Vision() { return ClipVision({.hidden_size = 128, .mlp_size = 128}); }

// Losses of both within `tolerance` of one another; the same parameters to `parameters`.
void ExpectEqualToPlain(const job::JobSpec& spec, int64_t steps, double tolerance,
                        double parameters) {
  CudaGround ground(spec.World());
  const std::vector<TrainedStep> trained = Train(spec, DataShapeOf(spec), steps, ground);
  const std::vector<TrainedStep> plain = TrainPlain(spec, DataShapeOf(spec), steps);
  ASSERT_EQ(trained.size(), plain.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NEAR(trained[i].decision.loss, plain[i].decision.loss,
                tolerance * plain[i].decision.loss)
        << "step " << i + 1;
  }
  const WorstTensor worst = Compare(trained.back().parameters, plain.back().parameters);
  EXPECT_LT(worst.error, parameters) << worst.name;
}

class TrainCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (Devices() < 2) GTEST_SKIP() << "needs 2 GPUs; there are " << Devices();
  }
  // As many as there are, up to three, behind stages or tensor groups of two.
  int32_t Replicas() const { return std::min(3, Devices() / 2); }
};

TEST_F(TrainCudaTest, TiedHeadOverTwoStages_StaysTheSameBitsFor50Steps) {
  const job::JobSpec spec =
      AJob().Module("language", Language(true), {.dp = Replicas(), .pp = 2}).Batch(12, 2);
  ExpectEqualToPlain(spec, 50, 1e-3, 1e-2);
}

TEST_F(TrainCudaTest, SharedHeads_StayTheSameBitsFor50Steps) {
  // With six devices three ranks share two KV heads.
  const int32_t tp = Devices() >= 6 ? 3 : 2;
  const job::JobSpec spec =
      AJob()
          .Module("language", Language(false), {.tp = tp, .dp = std::min(3, Devices() / tp)})
          .Batch(12, 2);
  ExpectEqualToPlain(spec, 50, 1e-3, 1e-2);
}

// Messages on streams of their own, in every order that schedules give them.
TEST_F(TrainCudaTest, EncoderOnTheRanksOfTheStages_EqualsThePlainModelUnderEverySchedule) {
  for (const job::ScheduleName schedule :
       {job::ScheduleName::k1F1B, job::ScheduleName::kZeroBubbleH1, job::ScheduleName::kZeroBubbleV,
        job::ScheduleName::kInterleaved, job::ScheduleName::kThreePhase}) {
    const bool chunks =
        schedule == job::ScheduleName::kZeroBubbleV || schedule == job::ScheduleName::kInterleaved;
    const job::JobSpec spec = AJob()
                                  .Module("vision", Vision(), {.dp = 2, .offset = 0})
                                  .Module("language", Language(false), {.pp = 2, .offset = 0})
                                  .Edge("vision", "language", {.projector = 48})
                                  .Batch(12, 2)
                                  .Schedule(schedule, chunks ? 2 : 1);
    SCOPED_TRACE(static_cast<int>(schedule));
    ExpectEqualToPlain(spec, 5, 1e-4, 1e-3);
  }
}

TEST_F(TrainCudaTest, ModulesOnDevicesOfTheirOwn_ExchangeSlices) {
  const job::JobSpec spec = AJob()
                                .Module("vision", Vision())
                                .Module("language", Language(false))
                                .Edge("vision", "language", {.projector = 48})
                                .Batch(12, 2);
  ExpectEqualToPlain(spec, 5, 1e-4, 1e-3);
}

}  // namespace
}  // namespace phalanx::oracle
