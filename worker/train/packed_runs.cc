#include "worker/train/packed_runs.h"

#include <cstring>
#include <utility>

#ifdef PHALANX_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "worker/train/packed_runs.cuh"
#endif

namespace phalanx::train {
namespace {

// [2, runs] on `device`: offsets, and begins in the packed elements.
at::Tensor TableOf(const std::vector<plan::UnitRange>& runs, at::Device device) {
  const auto count = static_cast<int64_t>(runs.size());
  at::Tensor table = at::empty({2, count}, at::kLong);
  int64_t* offsets = table.mutable_data_ptr<int64_t>();
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const plan::UnitRange& run = runs[static_cast<size_t>(i)];
    offsets[i] = run.first;
    offsets[count + i] = begin;
    begin += run.count;
  }
  return table.to(device);
}

int64_t ElementsOf(const std::vector<plan::UnitRange>& runs) {
  int64_t elements = 0;
  for (const plan::UnitRange& run : runs) elements += run.count;
  return elements;
}

#ifdef PHALANX_WITH_CUDA
cudaStream_t PackingStream() { return c10::cuda::getCurrentCUDAStream().stream(); }

DeviceRuns RunsOf(const at::Tensor& table, int64_t elements) {
  const int64_t* offsets = table.const_data_ptr<int64_t>();
  return {offsets, offsets + table.size(1), table.size(1), elements};
}
#endif

template <typename T>
void SumOnCpu(const std::vector<plan::SummedRun>& runs, const T* taken, T* flat) {
  for (const plan::SummedRun& run : runs) {
    T* out = flat + run.elements.first;
    for (int64_t i = 0; i < run.elements.count; ++i) {
      const T own = out[i];
      T sum = 0;
      bool first = true;
      for (const int64_t source : run.sources) {
        const T summand = source < 0 ? own : taken[source + i];
        sum = std::exchange(first, false) ? summand : sum + summand;
      }
      out[i] = sum;
    }
  }
}

}  // namespace

PackedRuns::PackedRuns(std::vector<plan::UnitRange> runs, at::Device device)
    : runs_(std::move(runs)), elements_(ElementsOf(runs_)) {
  if (device.is_cpu()) return;
  constexpr int64_t kAlignedMost = 16;
  int64_t places = kAlignedMost;
  for (const plan::UnitRange& run : runs_) places |= run.first | run.count;
  aligned_ = places & -places;
  table_ = TableOf(runs_, device);
}

void PackedRuns::Pack(const at::Tensor& flat, at::Tensor packed) const {
#ifdef PHALANX_WITH_CUDA
  if (flat.is_cuda()) {
    return LaunchPackRuns(flat.const_data_ptr(), packed.mutable_data_ptr(),
                          RunsOf(table_, elements_), flat.element_size(), aligned_,
                          PackingStream());
  }
#endif
  const auto size = static_cast<int64_t>(flat.element_size());
  const char* from = static_cast<const char*>(flat.const_data_ptr());
  char* to = static_cast<char*>(packed.mutable_data_ptr());
  for (const plan::UnitRange& run : runs_) {
    const int64_t bytes = run.count * size;
    std::memcpy(to, from + run.first * size, static_cast<size_t>(bytes));
    to += bytes;
  }
}

void PackedRuns::Unpack(const at::Tensor& packed, at::Tensor& flat) const {
#ifdef PHALANX_WITH_CUDA
  if (flat.is_cuda()) {
    return LaunchUnpackRuns(packed.const_data_ptr(), flat.mutable_data_ptr(),
                            RunsOf(table_, elements_), flat.element_size(), aligned_,
                            PackingStream());
  }
#endif
  const auto size = static_cast<int64_t>(flat.element_size());
  const char* from = static_cast<const char*>(packed.const_data_ptr());
  char* to = static_cast<char*>(flat.mutable_data_ptr());
  for (const plan::UnitRange& run : runs_) {
    const int64_t bytes = run.count * size;
    std::memcpy(to + run.first * size, from, static_cast<size_t>(bytes));
    from += bytes;
  }
}

SummedRuns::SummedRuns(std::vector<plan::SummedRun> runs, int32_t replicas, at::Device device)
    : runs_(std::move(runs)), replicas_(replicas) {
  for (const plan::SummedRun& run : runs_) elements_ += run.elements.count;
  if (device.is_cpu()) return;
  std::vector<plan::UnitRange> places;
  const auto count = static_cast<int64_t>(runs_.size());
  at::Tensor sources = at::empty({count, replicas}, at::kLong);
  int64_t* out = sources.mutable_data_ptr<int64_t>();
  for (const plan::SummedRun& run : runs_) {
    places.push_back(run.elements);
    for (const int64_t source : run.sources) *out++ = source;
  }
  table_ = TableOf(places, device);
  sources_ = sources.to(device);
}

void SummedRuns::Sum(const at::Tensor& taken, at::Tensor& flat) const {
#ifdef PHALANX_WITH_CUDA
  if (flat.is_cuda()) {
    return LaunchSumRuns(taken.const_data_ptr<float>(), flat.mutable_data_ptr<float>(),
                         RunsOf(table_, elements_), sources_.const_data_ptr<int64_t>(), replicas_,
                         PackingStream());
  }
#endif
  if (flat.scalar_type() == at::kDouble) {
    SumOnCpu(runs_, taken.const_data_ptr<double>(), flat.mutable_data_ptr<double>());
  } else {
    SumOnCpu(runs_, taken.const_data_ptr<float>(), flat.mutable_data_ptr<float>());
  }
}

}  // namespace phalanx::train
