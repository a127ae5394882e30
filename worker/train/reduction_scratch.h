// worker/train/reduction_scratch.h: memory for packed elements that are on their way.
//
// One serves all parts of a process, whose exchanges are enqueued on one stream. Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace phalanx::train {

class ReductionScratch {
 public:
  explicit ReductionScratch(at::Device device) : device_(device) {}

  // At least so many bytes from now on. With nothing enqueued that uses it.
  void Reserve(int64_t given, int64_t taken) {
    given_ = Grown(given_, given);
    taken_ = Grown(taken_, taken);
  }
  at::Tensor Given(int64_t elements, at::ScalarType type) const {
    return Typed(given_, elements, type);
  }
  at::Tensor Taken(int64_t elements, at::ScalarType type) const {
    return Typed(taken_, elements, type);
  }

 private:
  at::Tensor Grown(const at::Tensor& buffer, int64_t bytes) const {
    if (buffer.defined() && buffer.numel() >= bytes) return buffer;
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
  }
  static at::Tensor Typed(const at::Tensor& buffer, int64_t elements, at::ScalarType type) {
    return buffer.narrow(0, 0, elements * static_cast<int64_t>(c10::elementSize(type))).view(type);
  }

  const at::Device device_;
  at::Tensor given_, taken_;  // bytes
};

}  // namespace phalanx::train
