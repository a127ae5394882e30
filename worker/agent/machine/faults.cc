// Faults on demand, as far as they are this daemon's to bring about.
//
// Killing a process at once, what the driver says and what cuts off the node are its own doing. All
// else, and everything that waits for a step or a phase, goes to the process of the rank, which
// says when it has come there.
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/agent/machine/machine.h"
#include "worker/agent/machine/xid.h"

namespace phalanx::agent {

using job::FaultKind;

void Machine::Inject(ProcessNumber number, Process& process, const job::InjectedFault& fault) {
  Log(absl::StrCat(ToString(process.job), " epoch=", process.epoch.value, " rank=", fault.rank,
                   " fault on demand: ", job::Describe(fault)));
  const bool ours = fault.kind == FaultKind::kXid || fault.kind == FaultKind::kPartition;
  if (!fault.at_once()) {
    process.awaited = ours ? std::optional(fault) : std::nullopt;
    job::InjectedFault reached = fault;
    // The rank stands still until it is ended, but for what training goes on with.
    const bool is_note =
        fault.kind == FaultKind::kXid && TraitsOfXid(fault.xid).effect == XidEffect::kNote;
    if (is_note) reached.duration = absl::ZeroDuration();
    actions_.push_back(SendFault{number, std::move(reached)});
  } else if (ours) {
    BringAbout(number, process, fault);
  } else if (fault.kind == FaultKind::kKill) {
    actions_.push_back(KillProcess{number});  // an end that nobody here expects
  } else {
    process.awaited.reset();  // the rank forgets what waits there
    actions_.push_back(SendFault{number, fault});
  }
}

void Machine::Apply(const FaultReached& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end() || !found->second.awaited.has_value()) return;
  const job::InjectedFault fault = *std::exchange(found->second.awaited, std::nullopt);
  BringAbout(found->first, found->second, fault);
}

void Machine::BringAbout(ProcessNumber number, Process& process, const job::InjectedFault& fault) {
  if (fault.kind == FaultKind::kPartition) return Partition(fault);
  Apply(DeviceFaulted{process.device, fault.xid});
  const XidTraits& xid = TraitsOfXid(fault.xid);
  if (xid.effect != XidEffect::kProcessFault || process.killed) return;
  // A real one ends the process.
  process.fault = absl::StrCat("XID ", fault.xid, " (", xid.name, ")");
  process.fault_kind = job::FailureKind::kRankCrashed;
  Kill(number, process);
}

void Machine::Partition(job::InjectedFault fault) {
  fault.at_step = 0;
  fault.phase = job::FaultPhase::kAny;
  for (auto& [number, process] : processes_) {
    process.awaited.reset();
    actions_.push_back(SendFault{number, fault});
  }
  if (session_state_ == SessionState::kOpen || session_state_ == SessionState::kOpening) {
    actions_.push_back(CloseSession{session_});
    Apply(SessionClosed{session_, absl::UnavailableError("cut off on demand")});
  }
  if (session_state_ != SessionState::kClosed) return;
  session_deadline_ = now_ + fault.duration.value_or(absl::InfiniteDuration());
}

}  // namespace phalanx::agent
