// tests/unit/coordinator/store/entries.h: what tests put into stores, and find there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/store/backend.h"

namespace phalanx::coordinator {

inline const Instant kNow = absl::FromUnixSeconds(1'700'000'000);

StoredRecord Of(uint64_t number, std::string bytes, int64_t job = 1);
// Its summary is "summary JOB", its details are "details JOB".
EndedJob Ended(int64_t job, const std::string& name = "name", Instant ended = kNow);

// As a coordinator writes them: job 1, "a", is submitted with this document, under number `first`;
// then job 2, "b", is, and is cancelled.
std::vector<StoredRecord> SomeRecords(const std::string& document, uint64_t first = 1);

// All records of a store.
std::vector<StoredRecord> All(Backend& backend);

}  // namespace phalanx::coordinator
