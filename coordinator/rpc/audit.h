// coordinator/rpc/audit.h: lines about who changed what, or was not let.
//
//   audit who=alice role=submitter method=CancelJob job=7 outcome=OK
//   audit who=bob role=viewer method=CancelJob outcome=PERMISSION_DENIED reason="..."
//
// who and role are "-" where nobody was asked, or has said. Immutable; safe to read from any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/rpc/access.h"

namespace phalanx::coordinator {

// `object`: "job=7", "node=a"; empty: it is not known.
std::string AuditLine(const Caller& caller, absl::string_view method, absl::string_view object,
                      const absl::Status& outcome);
// Text of others in quotes, cut to 256 bytes: nothing in it ends the quotes, or the line.
std::string Quoted(absl::string_view text);

}  // namespace phalanx::coordinator
