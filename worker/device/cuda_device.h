// worker/device/cuda_device.h: the few CUDA calls that are neither a layer's nor a communicator's.
// In a build without CUDA they say so. What a device does wrong is of the kind kDeviceFailed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "c10/core/Stream.h"

namespace phalanx::device {

// Whether this is a build for GPUs.
#ifdef PHALANX_WITH_CUDA
inline constexpr bool kWithCuda = true;
#else
inline constexpr bool kWithCuda = false;
#endif

// Makes device `index` current for this thread and loads its kernels. What the thread enqueues from
// then on runs on one stream of the process, of StreamPriority::kPasses, which waits for no other
// one: not for CUDA's legacy default stream either, on which threads enqueue that have not called
// it. LibTorch's allocator takes its memory in segments that grow (expandable_segments), unless the
// environment says otherwise (PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF). Errors: Unimplemented
// in a build without CUDA; ResourceExhausted if memory of the device or of the host does not
// suffice for a context; Unavailable with CUDA's message.
absl::Status UseCudaDevice(int32_t index);

// Waits until the current device has done everything it was given. `in_vain`: asked every 10 ms
// whether it never will. Errors: DeadlineExceeded if it has not in time, or is waited for in vain;
// Internal with CUDA's message if the context is broken.
absl::Status AwaitDevice(absl::Duration timeout, const std::function<bool()>& in_vain = nullptr);

// The stream on which this thread enqueues now; nullptr without CUDA.
void* CurrentStream();

// Whose blocks the device takes first where several streams have some.
enum class StreamPriority : uint8_t {
  kFirst,   // somebody waits for them
  kPasses,  // those of UseCudaDevice
  kLast,    // beside passes, where these leave room
};
// A stream that nobody else has, for as long as this lives. Then whoever takes the next one of the
// kind gets it, behind what it was given: CUDA keeps memory for each stream that was made, which
// recoveries would add to. Movable; thread-safe to make and to destroy.
class OwnedStream {
 public:
  OwnedStream() = default;  // none
  OwnedStream(OwnedStream&& other) noexcept { *this = std::move(other); }
  OwnedStream& operator=(OwnedStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    std::swap(priority_, other.priority_);
    return *this;
  }
  ~OwnedStream();

  const std::optional<c10::Stream>& get() const { return stream_; }

 private:
  friend OwnedStream TakeStream(StreamPriority priority);
  std::optional<c10::Stream> stream_;
  StreamPriority priority_ = StreamPriority::kFirst;
};
// Of the current device. Not of LibTorch's pool, which makes all of its streams at once: there are
// then more than hardware queues, and a stream that waits holds up another. None without CUDA.
// Throws c10::Error.
OwnedStream TakeStream(StreamPriority priority = StreamPriority::kFirst);

// Its cudaStream_t; nullptr without CUDA.
void* Handle(const c10::Stream& stream);

// Bytes in use on the current device, by everybody; 0 without CUDA.
int64_t MemoryInUse();
// Bytes that nobody uses there; 0 without CUDA.
int64_t MemoryFree();

// LibTorch's allocator takes so many bytes of the current device and keeps them for the current
// stream, so that what is allocated later need not wait for CUDA. Nothing where 4 GiB would not be
// left beside them, and without CUDA. Throws c10::Error.
void ReserveMemory(int64_t bytes);

// LibTorch's allocator gives back what it has of the current device and no tensor uses, which may
// wait for the device. Nothing without CUDA. Throws c10::Error.
void GiveCachedMemoryBack();

// What LibTorch's allocator has asked of the current device since the process began, each of which
// may hold its work up, and what it has of it. All 0 without CUDA.
struct AllocatorCounts {
  int64_t allocations = 0;  // segments taken
  int64_t frees = 0;        // segments given back
  int64_t retries = 0;      // of allocations, once what was cached was given back
  int64_t taken_bytes = 0;  // now, of segments
  int64_t used_bytes = 0;   // now, of tensors
};
AllocatorCounts CountAllocations();

}  // namespace phalanx::device
