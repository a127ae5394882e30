#include "worker/device/cuda_device.h"

namespace phalanx::device {

absl::Status UseCudaDevice(int32_t) {
  return absl::UnimplementedError("this build has no GPU support: configure the preset cuda");
}

absl::Status AwaitDevice(absl::Duration, const std::function<bool()>&) { return absl::OkStatus(); }

void* CurrentStream() { return nullptr; }

OwnedStream TakeStream(StreamPriority) { return {}; }
OwnedStream::~OwnedStream() = default;

void* Handle(const c10::Stream&) { return nullptr; }

int64_t MemoryInUse() { return 0; }
int64_t MemoryFree() { return 0; }
void ReserveMemory(int64_t bytes) { static_cast<void>(bytes); }
void GiveCachedMemoryBack() {}

AllocatorCounts CountAllocations() { return {}; }

}  // namespace phalanx::device
