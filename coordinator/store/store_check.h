// coordinator/store/store_check.h: whether a store can be read, record by record: what
// `phalanx-coordinator --check-store` says, and what a start on a damaged store says.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/store/backend.h"

namespace phalanx::coordinator {

struct StoreReport {
  int64_t schema = 0;
  int64_t records = 0;
  int64_t ended_jobs = 0;
  // What is wrong, one line each: what it is in, what it is, what to do next.
  std::vector<std::string> problems;
  int64_t problems_left_out = 0;
  // False with problems: this coordinator cannot read it, say since a newer one wrote it.
  bool damaged = false;
  // Why a coordinator would not start where it lies, whole as it may be; empty: it would.
  std::string start_refused;
};

// Adds what is wrong, unless `status` is OK; of more than 100 problems the rest is counted.
// FailedPrecondition: it is not damage.
void AddProblem(StoreReport& report, absl::string_view where, const absl::Status& status);

// Reads all of the store and leaves database and log as they are. Errors: NotFound if there is
// none; Unavailable if it cannot be read now. Damage is no error but a problem of the report, and
// so is a newer version.
absl::StatusOr<StoreReport> CheckStore(const std::string& path);

// DataLoss for an entry that was listed without its summary since its place in the store cannot be
// read; nor can it be deleted then.
absl::Status EntryStatus(EndedJobs& ended, const EndedJob& listed);

// Reads every entry of `ended`, newest first. Calls `found` for each that is damaged, and then
// tells what is wrong, a line each, 100 at most. Returns early once `stop` is set. 1,000,000
// entries take seconds: it runs beside a coordinator that serves.
void CheckEnded(EndedJobs& ended, const std::atomic<bool>& stop, absl::FunctionRef<void()> found,
                absl::FunctionRef<void(const std::string& line)> complain);

// Errors: DataLoss for a store that is damaged; FailedPrecondition, with the first problem, for one
// that this coordinator cannot read.
absl::Status VerdictOn(const StoreReport& report);

// The report in lines, the last one the verdict.
std::vector<std::string> Lines(const StoreReport& report);

}  // namespace phalanx::coordinator
