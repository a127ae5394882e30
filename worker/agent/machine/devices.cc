// What devices report (xid.h).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/agent/machine/machine.h"
#include "worker/agent/machine/xid.h"

namespace phalanx::agent {

void Machine::Apply(const DeviceFaulted& event) {
  if (event.device < 0 || event.device >= options_.devices) return;
  const XidTraits xid = TraitsOfXid(event.xid, event.action);
  DeviceFigures& figures = counted_.devices[static_cast<size_t>(event.device)];
  ++figures.errors[static_cast<size_t>(xid.effect)];
  figures.last_xid = event.xid;
  const std::string brief = absl::StrCat("device ", event.device, " of node ", options_.node,
                                         " reported XID ", event.xid, " (", xid.name);
  const std::string what = absl::StrCat(brief, "; to do: ", xid.next, ")");
  const bool lost = xid.effect == XidEffect::kDeviceLost;
  Log(absl::StrCat(what, lost ? "; it is not used again before this daemon restarts" : ""));
  if (lost && !lost_devices_.emplace(event.device, what).second) return;
  for (auto& [number, process] : processes_) {
    if (process.device != event.device || process.job == JobId{} || process.killed ||
        process.state == ProcessState::kEnding || process.state == ProcessState::kDead) {
      continue;
    }
    if (lost) {
      process.fault = brief + ")";
      process.fault_next = std::string(xid.next);
      process.fault_kind = job::FailureKind::kDeviceFailed;
      Kill(number, process);
    } else {
      std::string told = what;
      if (xid.effect == XidEffect::kProcessFault) {
        absl::StrAppend(&told, ToWords(xid_history_.Add({.at = now_,
                                                         .device = event.device,
                                                         .process = number,
                                                         .job = process.job,
                                                         .rank = process.rank})));
      }
      if (told != what) Log(told);
      reports_.Add({process.job, process.epoch, process.rank, RankNote{"DeviceError", told}},
                   ReportKind::kEvent);
    }
  }
  SendQueuedReports();
  if (lost) FailWaiting(event.device);
}

void Machine::FailWaiting(int32_t device) {
  std::vector<JobId> waiting;
  for (const auto& [job, assignment] : assignments_) {
    if (assignment.to_start.contains(device)) waiting.push_back(job);
  }
  for (const JobId job : waiting) {
    Assignment& assignment = assignments_.at(job);
    if (!assignment.takes_over) {
      FailAssignment(job, LostDevice(device));
    } else {
      GoWithout(assignment, device, job::FailureKind::kDeviceFailed, LostDevice(device));
      AnswerIfStarted(assignment);
    }
  }
}

absl::Status Machine::LostDevice(int32_t device) const {
  const auto lost = lost_devices_.find(device);
  if (lost != lost_devices_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(lost->second, " and is not used again before phalanx-worker restarts"));
  }
  const bool held = std::any_of(left_checks_.begin(), left_checks_.end(),
                                [device](const auto& entry) { return entry.second == device; });
  if (!held) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("device ", device, " of node ", options_.node,
                                                    " has a check that was killed and does not "
                                                    "end: its driver does not answer"));
}

}  // namespace phalanx::agent
