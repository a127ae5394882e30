// core/job/job_phase.h: the phases of a job and the moves between them.
//
//   QUEUED -> STARTING -> RUNNING -> SUCCEEDED
//      \          \          \-----> FAILED | CANCELLED
//       \----------\---------------> FAILED | CANCELLED
//
// The last three are terminal: a job never leaves them. A running job is queued again that has
// waited too long for what it lost, and starts from its last checkpoint; so is one that loses ranks
// while it starts from there.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace phalanx::job {

enum class JobPhase : uint8_t { kQueued, kStarting, kRunning, kSucceeded, kFailed, kCancelled };

bool IsTerminal(JobPhase phase);
bool MayMove(JobPhase from, JobPhase to);
// "Queued", "Running", ...: what people read.
absl::string_view ToString(JobPhase phase);
std::optional<JobPhase> ParseJobPhase(absl::string_view text);

}  // namespace phalanx::job
