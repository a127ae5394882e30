#include "client/exit_code.h"

#include "core/base/violation.h"

namespace phalanx::client {

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kSuccess;
    case absl::StatusCode::kInvalidArgument:
      return ViolationsOf(status).empty() ? kFailure : kBadJobFile;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kUnreachable;
    case absl::StatusCode::kInternal:
      return kInternal;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kNotAllowed;
    default:
      return kFailure;
  }
}

int ExitCodeOf(v1::JobPhase phase) {
  switch (phase) {
    case v1::JOB_PHASE_SUCCEEDED:
      return kSuccess;
    case v1::JOB_PHASE_FAILED:
      return kJobFailed;
    case v1::JOB_PHASE_CANCELLED:
      return kJobCancelled;
    default:
      return kJobNotFinished;
  }
}

}  // namespace phalanx::client
