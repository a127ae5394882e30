#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/job/failure.h"
#include "worker/train/step_kernels.cuh"
#include "worker/train/step_kernels.h"

namespace phalanx::train {
namespace {

cudaStream_t StepStream() { return c10::cuda::getCurrentCUDAStream().stream(); }

// Calls body(table) for all runs of a block, as many at a time as a launch takes.
template <typename Body>
void ForTables(const StateBlock& block, const Body& body) {
  RunTable table;
  for (const StateRun& run : block.runs) {
    table.run[table.runs++] = {.gradient_offset = run.gradient_offset,
                               .state_offset = run.state_offset,
                               .count = run.count,
                               .first_tile = table.tiles,
                               .decay = run.decay};
    table.tiles += static_cast<int32_t>((run.count + kTile - 1) / kTile);
    if (table.runs < kRunsAtOnce) continue;
    body(table);
    table.runs = table.tiles = 0;
  }
  if (table.runs > 0) body(table);
}

class CudaStepKernels final : public StepKernels {
 public:
  explicit CudaStepKernels(int32_t homes) {
    C10_CUDA_CHECK(
        cudaHostAlloc(reinterpret_cast<void**>(&words_), sizeof(CommitWords), cudaHostAllocMapped));
    std::memset(static_cast<void*>(words_), 0, sizeof(CommitWords));
    SetHomes(homes, 0);
    C10_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&decisions_), 2 * sizeof(Decision)));
    C10_CUDA_CHECK(cudaMemsetAsync(decisions_, 0, 2 * sizeof(Decision), StepStream()));
  }
  ~CudaStepKernels() override {
    cudaFreeHost(words_);
    cudaFreeHost(applied_);
    cudaFree(decisions_);
  }

  void SetStop(bool stop) override { std::atomic_ref<int64_t>(words_->stop).store(stop ? 1 : 0); }
  bool stopped() const override { return std::atomic_ref<int64_t>(words_->stop).load() != 0; }

  void AddSquaredNorm(const at::Tensor& gradients, const StateBlock& block,
                      at::Tensor& accumulator) override {
    const auto tables = (static_cast<int64_t>(block.runs.size()) + kRunsAtOnce - 1) / kRunsAtOnce;
    const int64_t partials = tables * kNormBlocks;
    if (partials == 0) return;
    if (!partials_.defined() || partials_.numel() < partials)
      partials_ = at::empty({partials}, accumulator.options());
    double* out = partials_.mutable_data_ptr<double>();
    ForTables(block, [&](const RunTable& table) {
      LaunchSquaredNormPartials(gradients.const_data_ptr<float>(), table, out, StepStream());
      out += kNormBlocks;
    });
    LaunchSumPartials(partials_.const_data_ptr<double>(), partials,
                      accumulator.mutable_data_ptr<double>(), StepStream());
  }

  void WriteRecord(at::Tensor& records, int32_t rank, const Record& header,
                   const at::Tensor& sums) override {
    LaunchWriteRecord(reinterpret_cast<Record*>(records.mutable_data_ptr<uint8_t>()) + rank, header,
                      sums.const_data_ptr<double>(), applied_, homes_, words_, StepStream());
  }

  void MakeDecision(const at::Tensor& records, int32_t world,
                    const Expectation& expected) override {
    LaunchMakeDecision(reinterpret_cast<const Record*>(records.const_data_ptr<uint8_t>()), world,
                       expected, decisions_, words_, StepStream());
  }

  bool ReadDecision(int64_t step, Decision* decision) override {
    const PublishedDecision& slot = words_->decisions[step % 2];
    if (*const_cast<const volatile int64_t*>(&slot.ready_step) != step) return false;
    std::atomic_thread_fence(std::memory_order_acquire);
    *decision = slot.decision;
    return true;
  }

  void SetDecision(const Decision& last) override {
    for (PublishedDecision& slot : words_->decisions) slot = {};
    Decision on_device[2];
    if (last.step > 0) {
      words_->decisions[last.step % 2] = {last, last.step};
      on_device[last.step % 2] = last;
    }
    C10_CUDA_CHECK(cudaMemcpyAsync(decisions_, on_device, sizeof on_device, cudaMemcpyHostToDevice,
                                   StepStream()));
  }

  void AdamW(const at::Tensor& gradients, StateBlock& block, at::Tensor* weights,
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
    factors.weight_decay = static_cast<float>(step.weight_decay);
    AdamWBuffers buffers{};
    buffers.gradients = gradients.const_data_ptr<float>();
    if (weights != nullptr && weights->scalar_type() == at::kBFloat16) {
      buffers.weights_bf16 =
          reinterpret_cast<__nv_bfloat16*>(weights->mutable_data_ptr<at::BFloat16>());
    } else if (weights != nullptr) {
      buffers.weights_fp32 = weights->mutable_data_ptr<float>();
    }
    if (block.master.defined()) buffers.master = block.master.mutable_data_ptr<float>();
    buffers.first = block.first_moment.mutable_data_ptr<float>();
    buffers.second = block.second_moment.mutable_data_ptr<float>();
    ForTables(block, [&](const RunTable& table) {
      LaunchAdamW(buffers, table, factors, decisions_ + expected_step % 2, expected_step,
                  StepStream());
    });
  }

  void MarkApplied(int32_t home, int64_t step) override {
    LaunchMarkApplied(applied_ + home, step, decisions_ + step % 2, StepStream());
  }
  void SetHomes(int32_t homes, int64_t step) override {
    const int32_t words = std::max(homes, kHomesAtLeast);
    if (words > words_of_homes_) {
      cudaFreeHost(applied_);
      applied_ = nullptr;
      C10_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&applied_),
                                   static_cast<size_t>(words) * sizeof(int64_t),
                                   cudaHostAllocMapped));
      words_of_homes_ = words;
    }
    homes_ = homes;
    std::fill_n(applied_, words_of_homes_, step);
  }
  void SetApplied(int32_t home, int64_t step) override {
    std::atomic_ref<int64_t>(applied_[home]).store(step);
  }
  int64_t applied(int32_t home) const override {
    return *const_cast<const volatile int64_t*>(applied_ + home);
  }

  absl::Status Check() override {
    const cudaError_t error = cudaStreamQuery(StepStream());
    if (error == cudaSuccess) return absl::OkStatus();
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // it is no error, and the next launch must not find it
      return absl::OkStatus();
    }
    return job::WithKind(job::FailureKind::kDeviceFailed,
                         absl::InternalError(absl::StrCat("the GPU: ", cudaGetErrorString(error))));
  }

  void MarkProgress(int64_t count) override { LaunchMarkProgress(words_, count, StepStream()); }
  int64_t progress() const override {
    return *const_cast<const volatile int64_t*>(&words_->progress);
  }

 private:
  // Room for as many, so that another layout needs no other memory: a page at least is pinned.
  static constexpr int32_t kHomesAtLeast = 512;
  int32_t homes_ = 0, words_of_homes_ = 0;
  CommitWords* words_ = nullptr;   // pinned
  int64_t* applied_ = nullptr;     // [words_of_homes_], pinned
  Decision* decisions_ = nullptr;  // [2], on the device
  at::Tensor partials_;            // fp64; of one block after the other, on whatever stream
};

}  // namespace

std::unique_ptr<StepKernels> MakeCudaStepKernels(int32_t homes) {
  return std::make_unique<CudaStepKernels>(homes);
}

}  // namespace phalanx::train
