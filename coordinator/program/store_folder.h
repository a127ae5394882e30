// coordinator/program/store_folder.h: the folder of a store that is one coordinator's alone.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/store/store_check.h"

namespace phalanx::coordinator {

std::string JournalIn(const std::string& folder);
std::string TokensIn(const std::string& folder);
// Lines of the audit about what people did, about what workers did, and about what was not done:
// apart, so that refusals, which anybody can bring about, and sessions, which a broken node opens
// without end, take no room from what people did.
std::string AuditIn(const std::string& folder);
std::string AuditOfWorkersIn(const std::string& folder);
std::string RefusalsIn(const std::string& folder);

// With those above it; one that is there stays. Errors: Unavailable, with `flag`, where there is no
// folder then or this process may not write in it.
absl::Status MakeStoreFolder(const std::string& folder, absl::string_view flag);

// CheckStore of the journal, and whether the join tokens beside it can be read.
absl::StatusOr<StoreReport> CheckStoreIn(const std::string& folder);

}  // namespace phalanx::coordinator
