#include "core/job/job_phase.h"

#include <array>

namespace phalanx::job {
namespace {

constexpr std::array<absl::string_view, 6> kNames = {"Queued",    "Starting", "Running",
                                                     "Succeeded", "Failed",   "Cancelled"};

}  // namespace

bool IsTerminal(JobPhase phase) { return phase >= JobPhase::kSucceeded; }

bool MayMove(JobPhase from, JobPhase to) {
  if (IsTerminal(from)) return false;
  switch (to) {
    case JobPhase::kQueued:
      return from == JobPhase::kStarting || from == JobPhase::kRunning;
    case JobPhase::kStarting:
      return from == JobPhase::kQueued;
    case JobPhase::kRunning:
      return from == JobPhase::kStarting;
    case JobPhase::kSucceeded:
      return from == JobPhase::kRunning;
    case JobPhase::kFailed:
    case JobPhase::kCancelled:
      return true;
  }
  return false;
}

absl::string_view ToString(JobPhase phase) { return kNames[static_cast<size_t>(phase)]; }

std::optional<JobPhase> ParseJobPhase(absl::string_view text) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<JobPhase>(i);
  }
  return std::nullopt;
}

}  // namespace phalanx::job
