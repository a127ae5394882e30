// client/rpc_status.h: what a coordinator answers when it does not answer OK.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace phalanx::client {

// The same code and message; google.rpc.BadRequest details become violations (ViolationsOf).
absl::Status FromGrpc(const grpc::Status& status);

// Whether a coordinator said it, and not gRPC on the way to one.
bool SaidByCoordinator(const grpc::Status& status);

// google.rpc.RetryInfo's delay; zero where there is none.
absl::Duration RetryDelayOf(const grpc::Status& status);

}  // namespace phalanx::client
