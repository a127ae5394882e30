// What devices report (xid.h).
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/agent/machine/machine.h"
#include "worker/agent/machine/xid.h"

namespace phalanx::agent {

void Machine::Apply(const DeviceFaulted& event) {
  const XidTraits& xid = TraitsOfXid(event.xid);
  const std::string what =
      absl::StrCat("device ", event.device, " of node ", options_.node, " reported XID ", event.xid,
                   " (", xid.name, "; to do: ", xid.next, ")");
  const bool lost = xid.effect == XidEffect::kDeviceLost;
  Log(absl::StrCat(what, lost ? "; it is not used again before this daemon restarts" : ""));
  if (lost && !lost_devices_.emplace(event.device, what).second) return;
  for (auto& [number, process] : processes_) {
    if (process.device != event.device || process.job == JobId{} || process.killed ||
        process.state == ProcessState::kEnding || process.state == ProcessState::kDead) {
      continue;
    }
    if (lost) {
      process.fault = what;
      process.fault_kind = job::FailureKind::kDeviceFailed;
      Kill(number, process);
    } else {
      reports_.Add({process.job, process.epoch, process.rank, RankNote{"DeviceError", what}},
                   ReportKind::kEvent);
    }
  }
  SendQueuedReports();
  if (!lost) return;
  std::vector<JobId> waiting;
  for (const auto& [job, assignment] : assignments_) {
    if (assignment.to_start.contains(event.device)) waiting.push_back(job);
  }
  for (const JobId job : waiting) {
    Assignment& assignment = assignments_.at(job);
    if (!assignment.takes_over) {
      FailAssignment(job, LostDevice(event.device));
    } else {
      GoWithout(assignment, event.device, job::FailureKind::kDeviceFailed,
                LostDevice(event.device));
      AnswerIfStarted(assignment);
    }
  }
}

absl::Status Machine::LostDevice(int32_t device) const {
  const auto lost = lost_devices_.find(device);
  if (lost == lost_devices_.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(lost->second, " and is not used again before phalanx-worker restarts"));
}

}  // namespace phalanx::agent
