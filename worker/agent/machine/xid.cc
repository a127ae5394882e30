#include "worker/agent/machine/xid.h"

#include <algorithm>

namespace phalanx::agent {
namespace {

constexpr auto kNote = XidEffect::kNote, kProcess = XidEffect::kProcessFault,
               kLost = XidEffect::kDeviceLost;

constexpr absl::string_view kReadLog = "read the rank's log; another device if it comes again";
constexpr absl::string_view kNothing = "nothing";
constexpr absl::string_view kReset = "reset the GPU, then restart phalanx-worker";
constexpr absl::string_view kReboot = "reboot the node; replace the GPU if it comes again";
constexpr absl::string_view kDrain = "drain the node, then reset the GPU";

// Version 1 (2026). After NVIDIA's catalogue of XID errors: RESTART_APP, IGNORE, RESET_GPU and
// RESTART_BM. Where it calls for a procedure of its own, the effect is that of its gravest end for
// memory, and a note for what communication finds out by itself.
constexpr XidTraits kXids[] = {
    {13, "graphics engine exception", kProcess, kReadLog},
    {31, "memory page fault", kProcess, kReadLog},
    {32, "invalid push buffer stream", kProcess, kReadLog},
    {43, "GPU stopped processing", kNote, kNothing},
    {44, "fault at a context switch", kNote, kNothing},
    {45, "preemptive cleanup, follows another error", kNote, "look at the error before it"},
    {46, "GPU timeout", kLost, kReset},
    {48, "double-bit ECC error", kLost, kReset},
    {62, "internal microcontroller halt", kLost, kReset},
    {63, "row remapping recorded", kNote, "reset the GPU at the next opportunity"},
    {64, "row remapping failed", kLost, kReset},
    {69, "graphics engine class error", kProcess, kReadLog},
    {74, "NVLink error", kNote, "check the NVLink counters of both ends"},
    {79, "GPU has fallen off the bus", kLost, kReboot},
    {94, "contained ECC error", kProcess, kReadLog},
    {95, "uncontained ECC error", kLost, kReset},
    {109, "context switch timeout", kLost, kReset},
    {110, "security fault", kLost, kReset},
    {119, "GSP RPC timeout", kLost, kReset},
    {120, "GSP error", kLost, kReset},
    {121, "C2C link error", kNote, kNothing},
    {140, "unrecovered ECC error", kLost, kReset},
    {143, "GPU initialisation failure", kLost, kReset},
    {kRecoveryActionChanged, "recovery action changed", kNote, "nvidia-smi -q names the action"},
};
constexpr XidTraits kUnknown = {0, "unknown to this release", kNote, "look it up at NVIDIA"};

}  // namespace

absl::Span<const XidTraits> AllXids() { return kXids; }

const XidTraits& TraitsOfXid(int32_t xid) {
  const auto* found = std::find_if(std::begin(kXids), std::end(kXids),
                                   [xid](const auto& t) { return t.xid == xid; });
  return found == std::end(kXids) ? kUnknown : *found;
}

XidTraits TraitsOfXid(int32_t xid, RecoveryAction action) {
  XidTraits traits = TraitsOfXid(xid);
  if (xid != kRecoveryActionChanged) return traits;
  switch (action) {
    case RecoveryAction::kUnknown:
      break;
    case RecoveryAction::kReset:
      traits.effect = kLost;
      traits.next = kReset;
      break;
    case RecoveryAction::kReboot:
      traits.effect = kLost;
      traits.next = kReboot;
      break;
    case RecoveryAction::kDrain:
      traits.next = kDrain;
      break;
  }
  return traits;
}

}  // namespace phalanx::agent
