// client/rpc_status.h: what a coordinator answers when it does not answer OK.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace phalanx::client {

// The same code and message; google.rpc.BadRequest details become violations (ViolationsOf).
absl::Status FromGrpc(const grpc::Status& status);

// Whether a coordinator said it, and not gRPC on the way to one.
bool SaidByCoordinator(const grpc::Status& status);

// Whether it is one of several that does not lead: it has not begun with the call.
bool IsOfStandby(const grpc::Status& status);

// Whether a stream that its caller did not cancel has ended with its coordinator, or the way to it:
// somebody else may serve by now. CANCELLED is what gRPC 1.51 makes of a call that comes while a
// server shuts down, as coordinators of the release before do.
bool IsOfEnding(const grpc::Status& status);

// Of a call that failed: a coordinator may have taken it on, and may carry it out yet.
absl::Status AsMaybeDone(absl::Status status);
bool MayBeDone(const absl::Status& status);

// google.rpc.RetryInfo's delay; zero where there is none.
absl::Duration RetryDelayOf(const grpc::Status& status);

// What a person does next about an error; empty: nobody has said.
absl::Status WithNext(absl::Status status, absl::string_view next);
std::string NextOf(const absl::Status& status);

}  // namespace phalanx::client
