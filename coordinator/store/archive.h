// coordinator/store/archive.h: the records of a job that has ended, made into its entry.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/store/backend.h"

namespace phalanx::coordinator {

// Nothing: the records do not end the job. Errors: as DecodeRecord, naming the record.
absl::StatusOr<std::optional<EndedJob>> MakeEndedJob(JobId job,
                                                     absl::Span<const StoredRecord> records);

}  // namespace phalanx::coordinator
