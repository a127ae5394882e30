// worker/train/device_wait.h: a host's wait for what its device is to bring about.
//
// A device says nothing of its own accord: one that has failed looks like one that waits for a
// peer. So who waits asks it, and its communicators, now and then.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace phalanx::train {

// For what peers bring about: past it they are taken for lost.
inline constexpr absl::Duration kPatience = absl::Minutes(10);

struct DeviceWait {
  absl::FunctionRef<bool()> done;
  absl::FunctionRef<bool()> stopped;
  absl::FunctionRef<absl::Status()> check;  // what device and communicators say of themselves
  // Whether the device may take long for a reason that is known, such as a checkpoint that is
  // copied: then a long wait says nothing (core/posix/activity.h).
  absl::FunctionRef<bool()> excused;
  absl::Duration patience;
  absl::string_view missing;  // what is missing at the end of it: "step 7 is not decided"
};

// Looks again and again. Errors: Cancelled once `stopped`; that of `check`; DeadlineExceeded of the
// kind PeerLost after `patience`, since a healthy device waits for nobody but peers.
absl::Status AwaitDevice(const DeviceWait& wait);

}  // namespace phalanx::train
