// coordinator/wire/quotas_yaml.h: the file of quotas as text.
//
//   default: {devices_max: 16, jobs_max: 4, queued_max: 100, priority_max: 10}
//   owners:
//     alice: {devices_max: 64, weight: 2}
//     build: {jobs_max: 1}
//
// What is left out has no bound but queued_max (kQueuedMax), and a weight of 1; `default` is of
// each owner that is not named, and nothing of it holds for those that are. An empty text says no
// more than none.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/machine/quotas.h"

namespace phalanx::coordinator {

inline constexpr size_t kQuotasBytesMax = 1 << 20;
inline constexpr double kWeightMax = 1e6;

// Errors: InvalidArgument with every violation.
absl::StatusOr<Quotas> ReadQuotas(absl::string_view text);

}  // namespace phalanx::coordinator
