// worker/agent/device_events.h: errors of this node's devices, as they come, how warm they are and
// how full.
//
// Each source has a thread that posts DeviceFaulted until the source is destroyed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/agent/inbox.h"
#include "worker/agent/nvml.h"

namespace phalanx::agent {

// Thread-safe.
class DeviceEvents {
 public:
  virtual ~DeviceEvents() = default;
  // Whether errors are seen: a driver that is wedged answers nobody.
  virtual bool Answers() const { return true; }
  // Degrees Celsius of each device as they were read last, 0: unknown; empty: of every one, also of
  // a driver that does not answer. Never waits for it.
  virtual std::vector<int32_t> Temperatures() const = 0;
  // Bytes in use of each device as they were read last, -1: unknown; empty: likewise. Never waits.
  virtual std::vector<int64_t> UsedMemory() const = 0;
};

// For tests: a file of lines "DEVICE xid N" and "DEVICE temperature N", followed as it grows from
// its beginning on; a FIFO, or one that is still to be made. What is no such line of one of
// `devices` is logged and passed over.
std::unique_ptr<DeviceEvents> FollowDeviceFile(std::string path, int32_t devices, Inbox& inbox);

// A driver that has not come back with anything for so long does not answer: it is asked for errors
// five times a second.
inline constexpr absl::Duration kDriverSilence = absl::Seconds(15);

// What the driver reports of the selected GPUs. Errors: Unavailable (no library, no driver, or one
// without events), NotFound, FailedPrecondition (as Nvml::DevicesOf).
absl::StatusOr<std::unique_ptr<DeviceEvents>> FollowNvml(const GpuSelection& selection,
                                                         Inbox& inbox,
                                                         absl::Duration silence = kDriverSilence);

}  // namespace phalanx::agent
