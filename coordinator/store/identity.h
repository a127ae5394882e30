// coordinator/store/identity.h: what tells one store from another.
//
// Jobs are numbered from 1 in each store, so a number alone does not say which job is meant. A
// store draws its identity once, keeps it in a file beside its journal, and tells it to every
// daemon that registers.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace phalanx::coordinator {

// Of the store in `folder`, which exists; drawn and kept at the first call. Never 0. Errors:
// DataLoss for a file that holds none; Unavailable if it cannot be read or written.
absl::StatusOr<uint64_t> StoreIdentity(const std::string& folder);

}  // namespace phalanx::coordinator
