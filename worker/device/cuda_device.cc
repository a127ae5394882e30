#include "worker/device/cuda_device.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/job/failure.h"

namespace phalanx::device {
namespace {

absl::Status Failed(absl::Status status) {
  return job::WithKind(job::FailureKind::kDeviceFailed, std::move(status));
}

// Blocks of state that another layout replaces are of another size. In segments of their own, they
// would stay beside those that come, and every recovery would ask CUDA for new ones.
void KeepMemoryTogether() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
      if (std::getenv(name) != nullptr) return;
    }
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  });
}

// Of the current device.
cudaError_t MakeStream(StreamPriority priority, cudaStream_t* stream) {
  int least = 0, greatest = 0;
  const cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (error != cudaSuccess) return error;
  const int chosen = priority == StreamPriority::kFirst  ? greatest
                     : priority == StreamPriority::kLast ? least
                                                         : (least + greatest) / 2;
  return cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, chosen);
}

// Streams that nobody has now.
class IdleStreams {
 public:
  static IdleStreams& Get() {
    static IdleStreams& idle = *new IdleStreams;  // for streams that go at the process's end
    return idle;
  }
  std::optional<c10::Stream> Take(c10::DeviceIndex device, StreamPriority priority) {
    const MutexLock lock(&mu_);
    std::vector<c10::Stream>& streams = streams_[{device, priority}];
    if (streams.empty()) return std::nullopt;
    const c10::Stream stream = streams.back();
    streams.pop_back();
    return stream;
  }
  void Give(const c10::Stream& stream, StreamPriority priority) {
    const MutexLock lock(&mu_);
    streams_[{stream.device_index(), priority}].push_back(stream);
  }

 private:
  Mutex mu_;
  std::map<std::pair<c10::DeviceIndex, StreamPriority>, std::vector<c10::Stream>> streams_
      ABSL_GUARDED_BY(mu_);
};

// The one of this process for passes on the current device, `index`, becomes this thread's.
cudaError_t TakePassesStream(int32_t index) {
  static Mutex mutex;
  static std::map<int32_t, cudaStream_t> streams ABSL_GUARDED_BY(mutex);
  const MutexLock lock(&mutex);
  auto found = streams.find(index);
  if (found == streams.end()) {
    cudaStream_t made = nullptr;
    if (const cudaError_t error = MakeStream(StreamPriority::kPasses, &made); error != cudaSuccess)
      return error;
    found = streams.emplace(index, made).first;
  }
  c10::cuda::setCurrentCUDAStream(
      c10::cuda::getStreamFromExternal(found->second, static_cast<c10::DeviceIndex>(index)));
  return cudaSuccess;
}

}  // namespace

absl::Status UseCudaDevice(int32_t index) {
  KeepMemoryTogether();
  cudaError_t error = cudaSetDevice(index);
  // Creates the context now, not inside the first collective.
  if (error == cudaSuccess) error = cudaFree(nullptr);
  if (error == cudaSuccess) error = TakePassesStream(index);
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string what = absl::StrCat("GPU ", index, ": ", cudaGetErrorString(error));
  // Its memory may be with a process that is about to end, and a later attempt finds it: a rank's
  // failure is of the same kind.
  return Failed(error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(what)
                                                   : absl::UnavailableError(what));
}

absl::Status AwaitDevice(absl::Duration timeout, const std::function<bool()>& in_vain) {
  constexpr std::chrono::milliseconds kLook{10};
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    // CUDA has no wait with a deadline. A thread that never returns goes with the process, which
    // has no other use for this device.
    auto done = std::make_shared<std::promise<cudaError_t>>();
    std::future<cudaError_t> waited = done->get_future();
    std::thread([device, done] {
      const cudaError_t chosen = cudaSetDevice(device);
      done->set_value(chosen == cudaSuccess ? cudaDeviceSynchronize() : chosen);
    }).detach();
    const auto begin = std::chrono::steady_clock::now();
    const auto deadline = begin + absl::ToChronoNanoseconds(timeout);
    const auto until = [&] {
      const std::chrono::steady_clock::time_point look = std::chrono::steady_clock::now() + kLook;
      return in_vain == nullptr ? deadline : std::min(deadline, look);
    };
    while (waited.wait_until(until()) != std::future_status::ready) {
      const std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
      if (now < deadline && (in_vain == nullptr || !in_vain())) continue;
      return Failed(absl::DeadlineExceededError(absl::StrCat(
          "the GPU is still at work after ", absl::FormatDuration(absl::FromChrono(now - begin)))));
    }
    error = waited.get();
  }
  if (error == cudaSuccess) return absl::OkStatus();
  return Failed(absl::InternalError(absl::StrCat("the GPU: ", cudaGetErrorString(error))));
}

void* CurrentStream() { return c10::cuda::getCurrentCUDAStream().stream(); }

OwnedStream TakeStream(StreamPriority priority) {
  int device = 0;
  C10_CUDA_CHECK(cudaGetDevice(&device));
  const auto index = static_cast<c10::DeviceIndex>(device);
  OwnedStream taken;
  taken.priority_ = priority;
  taken.stream_ = IdleStreams::Get().Take(index, priority);
  if (taken.stream_.has_value()) return taken;
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(MakeStream(priority, &stream));
  taken.stream_ = c10::cuda::getStreamFromExternal(stream, index);
  return taken;
}

OwnedStream::~OwnedStream() {
  if (stream_.has_value()) IdleStreams::Get().Give(*stream_, priority_);
}

void* Handle(const c10::Stream& stream) { return c10::cuda::CUDAStream(stream).stream(); }

int64_t MemoryInUse() {
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return 0;
  return static_cast<int64_t>(total_bytes - free_bytes);
}

int64_t MemoryFree() {
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return 0;
  return static_cast<int64_t>(free_bytes);
}

void ReserveMemory(int64_t bytes) {
  constexpr int64_t kRoom = int64_t{4} << 30;  // for what is not LibTorch's
  if (bytes <= 0 || MemoryFree() < bytes + kRoom) return;
  auto* const allocator = c10::cuda::CUDACachingAllocator::get();
  const c10::DataPtr memory = allocator->allocate(static_cast<size_t>(bytes));
}

void GiveCachedMemoryBack() { c10::cuda::CUDACachingAllocator::emptyCache(); }

AllocatorCounts CountAllocations() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {};
  const auto counts =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  constexpr size_t kAll = 0;  // pools
  return {.allocations = counts.num_device_alloc,
          .frees = counts.num_device_free,
          .retries = counts.num_alloc_retries,
          .taken_bytes = counts.reserved_bytes[kAll].current,
          .used_bytes = counts.allocated_bytes[kAll].current};
}

}  // namespace phalanx::device
