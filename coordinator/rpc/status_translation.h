// coordinator/rpc/status_translation.h: errors on the wire.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace phalanx::coordinator {

// The same code and message with google.rpc details: ErrorInfo of domain "phalanx" always,
// BadRequest with every violation that the status carries, RetryInfo for Unavailable and
// ResourceExhausted.
//
// Details travel as trailing metadata, of which clients accept 8 KiB by default; violations that
// would not fit are left out and counted in a last one.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace phalanx::coordinator
