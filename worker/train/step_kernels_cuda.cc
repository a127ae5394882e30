#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cmath>
#include <map>

#include "worker/train/step_kernels.cuh"
#include "worker/train/step_kernels.h"

namespace phalanx::train {
namespace {

cudaStream_t Stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

class CudaStepKernels final : public StepKernels {
 public:
  CudaStepKernels() {
    C10_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&published_),
                                 2 * sizeof(PublishedDecision), cudaHostAllocMapped));
    published_[0].ready_step = published_[1].ready_step = 0;
    C10_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&decision_), sizeof(Decision)));
    C10_CUDA_CHECK(cudaMemset(decision_, 0, sizeof(Decision)));
  }
  ~CudaStepKernels() override {
    cudaFreeHost(published_);
    cudaFree(decision_);
  }

  void AddSquaredNorm(const at::Tensor& gradients, const ShardState& shard,
                      at::Tensor& accumulator) override {
    int64_t counted = 0;
    for (const ShardRun& run : shard.runs) counted += run.counted;
    at::Tensor& partials = partials_[&shard];
    if (!partials.defined()) partials = at::empty({counted * kNormBlocks}, accumulator.options());
    double* out = partials.mutable_data_ptr<double>();
    for (const ShardRun& run : shard.runs) {
      if (!run.counted) continue;
      LaunchSquaredNormPartials(gradients.const_data_ptr<float>() + run.gradient_offset, run.count,
                                out, Stream());
      out += kNormBlocks;
    }
    LaunchSumPartials(partials.const_data_ptr<double>(), partials.numel(),
                      accumulator.mutable_data_ptr<double>(), Stream());
  }

  void WriteRecord(at::Tensor& records, int32_t rank, const Record& header,
                   const at::Tensor& sums) override {
    LaunchWriteRecord(reinterpret_cast<Record*>(records.mutable_data_ptr<uint8_t>()) + rank, header,
                      sums.const_data_ptr<double>(), Stream());
  }

  void MakeDecision(const at::Tensor& records, int32_t world,
                    const Expectation& expected) override {
    LaunchMakeDecision(reinterpret_cast<const Record*>(records.const_data_ptr<uint8_t>()), world,
                       expected, decision_, &published_[expected.step % 2], Stream());
  }

  bool ReadDecision(int64_t step, Decision* decision) override {
    PublishedDecision& slot = published_[step % 2];
    if (*const_cast<volatile int64_t*>(&slot.ready_step) != step) return false;
    std::atomic_thread_fence(std::memory_order_acquire);
    *decision = slot.decision;
    return true;
  }

  void AdamW(const at::Tensor& gradients, ShardState& shard, at::Tensor& weights,
             const AdamWStep& step, int64_t expected_step) override {
    const double updates = static_cast<double>(step.update);
    AdamWFactors factors{};
    factors.beta1 = static_cast<float>(step.beta1);
    factors.rest1 = static_cast<float>(1 - step.beta1);
    factors.beta2 = static_cast<float>(step.beta2);
    factors.rest2 = static_cast<float>(1 - step.beta2);
    factors.correction1 = static_cast<float>(1 / (1 - std::pow(step.beta1, updates)));
    factors.correction2 = static_cast<float>(1 / (1 - std::pow(step.beta2, updates)));
    factors.rate = static_cast<float>(step.learning_rate);
    factors.epsilon = static_cast<float>(step.epsilon);
    const bool bf16 = weights.scalar_type() == at::kBFloat16;
    for (const ShardRun& run : shard.runs) {
      factors.weight_decay = static_cast<float>(run.decay ? step.weight_decay : 0);
      void* weight_bf16 =
          bf16 ? weights.mutable_data_ptr<at::BFloat16>() + run.gradient_offset : nullptr;
      float* master = bf16 ? shard.master.mutable_data_ptr<float>() + run.state_offset
                           : weights.mutable_data_ptr<float>() + run.gradient_offset;
      LaunchAdamW(gradients.const_data_ptr<float>() + run.gradient_offset, master,
                  shard.first_moment.mutable_data_ptr<float>() + run.state_offset,
                  shard.second_moment.mutable_data_ptr<float>() + run.state_offset, weight_bf16,
                  run.count, factors, decision_, expected_step, Stream());
    }
  }

 private:
  PublishedDecision* published_ = nullptr;  // [2], pinned
  Decision* decision_ = nullptr;            // on the device
  std::map<const ShardState*, at::Tensor> partials_;
};

}  // namespace

std::unique_ptr<StepKernels> MakeCudaStepKernels() { return std::make_unique<CudaStepKernels>(); }

}  // namespace phalanx::train
