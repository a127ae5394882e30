#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <optional>
#include <vector>

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
    C10_CUDA_CHECK(Record(events, c10::cuda::getCurrentCUDAStream().stream()));
    return static_cast<int32_t>(events.used++);
  }
  std::optional<int32_t> MarkOn(int64_t step, void* stream) override {
    Events& events = steps_[Slot(step)];
    if (Record(events, static_cast<cudaStream_t>(stream)) != cudaSuccess) {
      cudaGetLastError();
      return std::nullopt;
    }
    return static_cast<int32_t>(events.used++);
  }
  std::optional<double> SecondsBetween(int64_t step, int32_t from, int32_t to) override {
    const Events& events = steps_[Slot(step)];
    float milliseconds = 0;
    if (cudaEventElapsedTime(&milliseconds, events.all[static_cast<size_t>(from)],
                             events.all[static_cast<size_t>(to)]) != cudaSuccess) {
      cudaGetLastError();
      return std::nullopt;
    }
    return milliseconds * 1e-3;
  }

 private:
  struct Events {
    std::vector<cudaEvent_t> all;
    size_t used = 0;  // recorded in this step; others may still have the times of an earlier one
  };
  // The next one, which is not used unless that succeeds.
  static cudaError_t Record(Events& events, cudaStream_t stream) {
    if (events.used == events.all.size()) {
      cudaEvent_t event = nullptr;
      if (const cudaError_t made = cudaEventCreate(&event); made != cudaSuccess) return made;
      events.all.push_back(event);
    }
    return cudaEventRecord(events.all[events.used], stream);
  }
  static size_t Slot(int64_t step) { return static_cast<size_t>(step % 3); }
  std::array<Events, 3> steps_;
};

}  // namespace

std::unique_ptr<Marks> MakeCudaMarks() { return std::make_unique<CudaMarks>(); }

}  // namespace phalanx::train
