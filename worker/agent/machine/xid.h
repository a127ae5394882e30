// worker/agent/machine/xid.h: what the error numbers of NVIDIA's driver (XID) mean for a device and
// the rank on it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace phalanx::agent {

enum class XidEffect : uint8_t {
  kNote,          // training goes on
  kProcessFault,  // the process that used the device ends of it, or will; the device is sound
  kDeviceLost,    // nothing may run on the device until somebody has seen to it
};

inline constexpr size_t kXidEffects = 3;
inline constexpr int32_t kRecoveryActionChanged = 154;  // XID

// What the driver wants done with a device before it is used again.
enum class RecoveryAction : uint8_t {
  kUnknown,  // the driver does not say, or nothing
  kReset,
  kReboot,
  kDrain,  // it may be used until the node is drained for a reset
};

struct XidTraits {
  int32_t xid;
  absl::string_view name;
  XidEffect effect;
  absl::string_view next;  // what a person does
};

// In the order of their numbers.
absl::Span<const XidTraits> AllXids();
// A number that is not in the table is a note.
const XidTraits& TraitsOfXid(int32_t xid);
// XID 154 says that the driver wants something else done with the device than before, and not what:
// of that one `action` decides, of any other the table.
XidTraits TraitsOfXid(int32_t xid, RecoveryAction action);

}  // namespace phalanx::agent
