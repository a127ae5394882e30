// client/advice.h: what a person does next about an error whose message does not say so.
//
// Every code that gRPC has leads to a sentence, so that no error ends with what is wrong alone. A
// message that names the rule it breaks, or ends with what to do, is left as it is.
//
// Pure: safe to call from any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace phalanx::client {

// Whether a message names a rule ("--items needs --search"), or its last clause, behind ';', ':' or
// the end of a line, begins with what to do ("...; ask again in 1 s").
bool SaysNext(absl::string_view message);

// One sentence about `status`, which is not OK: what WithNext() put there, before anything else;
// empty where its message says it, or where it lists violations, each of which names its rule.
std::string NextAfterCall(const absl::Status& status);     // of a call to a coordinator
std::string NextAfterFailure(const absl::Status& status);  // of anything else

}  // namespace phalanx::client
