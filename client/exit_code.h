// client/exit_code.h: how the `phalanx` command ends. Scripts rely on these numbers (docs/cli.md).
#pragma once

#include "absl/status/status.h"
#include "phalanx/v1/common.pb.h"

namespace phalanx::client {

enum ExitCode : int {
  kSuccess = 0,
  kFailure = 1,
  kUsage = 2,
  // sysexits.h
  kBadJobFile = 65,
  kNoInput = 66,
  kUnreachable = 69,
  kInternal = 70,
  kCannotCreate = 73,
  kNotAllowed = 77,
  kBadConfig = 78,
  // The outcome of a job: `run`, `watch`, `submit --wait`.
  kJobFailed = 100,
  kJobNotFinished = 101,
  kJobNotFound = 102,
  kJobCancelled = 103,
};

// What a failed operation exits with.
int ExitCodeOf(const absl::Status& status);
// What a command that waits for a job exits with.
int ExitCodeOf(v1::JobPhase phase);

}  // namespace phalanx::client
