// worker/train/copy_list.h: many small copies between tensors.
//
// State that comes to lie in another layout is a few hundred pieces a bucket: launched one by one
// they take as long as all else that a recovery does. On CUDA they are one launch.
//
// Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace phalanx::train {

class CopyList {
 public:
  // The bytes of `from` to those of `to` from its element `first` on: both contiguous, on one
  // device. What is copied to overlaps nothing else of the list.
  void Add(const at::Tensor& to, int64_t first, const at::Tensor& from);
  // Enqueues the copies on the current stream, or makes them; the list is empty then.
  void Run();

 private:
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    int64_t bytes = 0;
  };
  at::Device device_ = at::kCPU;
  std::vector<Copy> copies_;
  std::vector<at::Tensor> keep_;  // what is read; `to` outlives Run
};

}  // namespace phalanx::train
