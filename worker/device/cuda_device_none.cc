#include "worker/device/cuda_device.h"

namespace phalanx::device {

absl::Status UseCudaDevice(int32_t) {
  return absl::UnimplementedError("this build has no GPU support: configure the preset cuda");
}

absl::Status AwaitDevice(absl::Duration) { return absl::OkStatus(); }

void* CurrentStream() { return nullptr; }

std::optional<c10::Stream> NewStream() { return std::nullopt; }

int64_t MemoryInUse() { return 0; }

}  // namespace phalanx::device
