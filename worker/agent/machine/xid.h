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

}  // namespace phalanx::agent
