#include "worker/agent/machine/figures.h"

#include "worker/agent/machine/machine.h"

namespace phalanx::agent {

MachineFigures Machine::Figures() const {
  MachineFigures figures = counted_;
  static constexpr const char* kStates[] = {"starting", "idle",   "running",
                                            "stopping", "ending", "dead"};
  for (const char* state : kStates) figures.ranks[state] = 0;
  for (const auto& [number, process] : processes_)
    ++figures.ranks[kStates[static_cast<size_t>(process.state)]];
  // Those that were not seen are 0: an alert on their growth sees the first.
  for (const char* cause : {"start_failed", "done", "told", "exited", "signal"})
    figures.rank_ends.try_emplace(cause, 0);
  for (const job::FailureKind kind : {job::FailureKind::kRankHung, job::FailureKind::kDeviceFailed})
    figures.rank_ends.try_emplace(std::string(job::ToString(kind)), 0);
  figures.session_open = session_state_ == SessionState::kOpen;
  figures.draining = draining_;
  figures.reports_waiting = static_cast<int64_t>(reports_.unwritten());
  for (const auto& [device, what] : lost_devices_)
    figures.devices[static_cast<size_t>(device)].lost = true;
  for (const job::DeviceCheck& check : checked_.devices) {
    DeviceFigures& device = figures.devices[static_cast<size_t>(check.device)];
    device.verdict = check.verdict;
    device.checked = check.time;
  }
  return figures;
}

std::string Machine::CauseOfEnd(const Process& process, int32_t exit_code, int32_t signal) {
  if (process.killed && !process.fault.empty())
    return std::string(job::ToString(process.fault_kind));
  if (process.state == ProcessState::kEnding) return "told";
  const bool has_given = process.keeps && exit_code == 0 && signal == 0;
  if (process.succeeded || has_given) return "done";
  return signal != 0 ? "signal" : "exited";
}

}  // namespace phalanx::agent
