#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "worker/train/step_timer.h"

namespace phalanx::train {
namespace {

class CudaMarks final : public Marks {
 public:
  ~CudaMarks() override {
    for (Events& events : steps_) {
      for (cudaEvent_t event : events.all) cudaEventDestroy(event);
    }
  }
  void Clear(int64_t step) override { steps_[Slot(step)].used = 0; }
  int32_t Mark(int64_t step) override {
    Events& events = steps_[Slot(step)];
    if (events.used == events.all.size()) {
      events.all.emplace_back();
      C10_CUDA_CHECK(cudaEventCreate(&events.all.back()));
    }
    C10_CUDA_CHECK(
        cudaEventRecord(events.all[events.used], c10::cuda::getCurrentCUDAStream().stream()));
    return static_cast<int32_t>(events.used++);
  }
  // What is not recorded has no time.
  int32_t MarkOn(int64_t step, void* stream) override {
    Events& events = steps_[Slot(step)];
    if (events.used == events.all.size()) {
      events.all.emplace_back();
      if (cudaEventCreate(&events.all.back()) != cudaSuccess) cudaGetLastError();
    }
    const cudaError_t recorded =
        cudaEventRecord(events.all[events.used], static_cast<cudaStream_t>(stream));
    if (recorded != cudaSuccess) cudaGetLastError();
    return static_cast<int32_t>(events.used++);
  }
  double SecondsBetween(int64_t step, int32_t from, int32_t to) override {
    Events& events = steps_[Slot(step)];
    float milliseconds = 0;
    if (cudaEventElapsedTime(&milliseconds, events.all[static_cast<size_t>(from)],
                             events.all[static_cast<size_t>(to)]) != cudaSuccess) {
      cudaGetLastError();
      return 0;
    }
    // An event that was not recorded in this step stands where an earlier one left it.
    return std::max(0.0F, milliseconds) * 1e-3;
  }

 private:
  struct Events {
    std::vector<cudaEvent_t> all;
    size_t used = 0;
  };
  static size_t Slot(int64_t step) { return static_cast<size_t>(step % 3); }
  std::array<Events, 3> steps_;
};

}  // namespace

std::unique_ptr<Marks> MakeCudaMarks() { return std::make_unique<CudaMarks>(); }

}  // namespace phalanx::train
