// coordinator/program/copying.h: --copy-store-to: the store of a coordinator that has ended, from a
// folder to etcd or back.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/program/flags.h"

namespace phalanx::coordinator {

// What was copied, for people. The place that it goes to has no store until all is there and was
// read back. Errors: FailedPrecondition if a coordinator has one of the two, or there is something
// where the copy goes, or a newer version wrote the store; DataLoss if the store is damaged; those
// of the stores.
absl::StatusOr<std::string> CopyBetween(const Flags& flags, const Settings& settings);

}  // namespace phalanx::coordinator
