#include "worker/train/copy_list.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#ifdef PHALANX_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "worker/train/copy_list.cuh"
#endif

namespace phalanx::train {
namespace {

// What one block of threads copies: enough for a block, and enough blocks for a device.
constexpr int64_t kPieceBytes = int64_t{1} << 18;
constexpr int64_t kFields = 3;

}  // namespace

void CopyList::Add(const at::Tensor& to, int64_t first, const at::Tensor& from) {
  device_ = to.device();
  auto* begin = static_cast<std::byte*>(to.mutable_data_ptr()) +
                first * static_cast<int64_t>(to.element_size());
  const auto* source = static_cast<const std::byte*>(from.const_data_ptr());
  const auto bytes = static_cast<int64_t>(from.nbytes());
  keep_.push_back(from);
  if (!copies_.empty()) {
    Copy& last = copies_.back();
    if (last.to + last.bytes == begin && last.from + last.bytes == source) {
      last.bytes += bytes;
      return;
    }
  }
  copies_.push_back({begin, source, bytes});
}

void CopyList::Run() {
#ifdef PHALANX_WITH_CUDA
  if (device_.is_cuda()) {
    std::vector<int64_t> table;  // of pieces: to, from, bytes
    for (const Copy& copy : copies_) {
      for (int64_t at = 0; at < copy.bytes; at += kPieceBytes) {
        table.push_back(reinterpret_cast<int64_t>(copy.to + at));
        table.push_back(reinterpret_cast<int64_t>(copy.from + at));
        table.push_back(std::min(kPieceBytes, copy.bytes - at));
      }
    }
    if (!table.empty()) {
      const at::Tensor pieces = at::tensor(table, at::kLong).to(device_);
      LaunchCopyList(pieces.const_data_ptr<int64_t>(), static_cast<int64_t>(table.size()) / kFields,
                     c10::cuda::getCurrentCUDAStream().stream());
    }
  }
#endif
  if (device_.is_cpu()) {
    for (const Copy& copy : copies_)
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
  }
  copies_.clear();
  keep_.clear();
}

}  // namespace phalanx::train
