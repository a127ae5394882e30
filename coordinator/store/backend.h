// coordinator/store/backend.h: where the journal and the jobs that have ended lie.
//
// A store holds the records of jobs that have not ended, one entry for each job that has (what its
// records said, compact), and the request ids of the last day. A batch of changes is committed at
// once: after Commit returns OK it survives the process and the machine. Record numbers grow and
// are never given twice; they have gaps where records were compacted away.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

struct StoredRecord {
  uint64_t number = 0;
  JobId job;
  std::string bytes;
  // The record of the same job that this one makes superfluous; 0: none.
  uint64_t supersedes = 0;
};

// A request id and what it was used for. It answers a repetition until `expires`, also when the job
// has been deleted.
struct StoredRequest {
  std::string id;
  JobId job;
  std::string document_digest;
  Instant expires;
};

// A job that has ended. `summary` is what lists show, `details` everything else; both are sealed
// (coordinator/wire/seal.h) with the number of the job.
struct EndedJob {
  JobId job;
  std::string name;
  job::JobPhase phase = job::JobPhase::kFailed;
  Instant ended;
  std::string summary;
  std::string details;
  std::optional<StoredRequest> request;
};

struct Batch {
  std::vector<StoredRecord> records;
  std::vector<EndedJob> ended;  // their records vanish with the same commit
  std::vector<JobId> deleted;   // entries of ended jobs; unknown ones are passed over
  bool empty() const { return records.empty() && ended.empty() && deleted.empty(); }
};

// What a copy of a store puts into another one.
struct StoreContents {
  std::vector<StoredRecord> records;
  std::vector<EndedJob> ended;
  std::vector<StoredRequest> requests;
};

// How long ended jobs are kept.
struct Retention {
  absl::Duration age_max = absl::Hours(24 * 90);
  int64_t count_max = 1'000'000;
};

// The ended jobs and the request ids. Thread-safe. Errors: DataLoss for damage, Unavailable if the
// store cannot be read now.
class EndedJobs {
 public:
  virtual ~EndedJobs() = default;
  // Without details. Errors: also NotFound.
  virtual absl::StatusOr<EndedJob> Find(JobId job) = 0;
  // The newest with that name. Errors: also NotFound.
  virtual absl::StatusOr<EndedJob> FindNamed(const std::string& name) = 0;
  // Errors: also NotFound.
  virtual absl::StatusOr<std::string> Details(JobId job) = 0;
  // At most `count` with numbers below `before`, newest first, without details. One that cannot be
  // read, though others tell of it, has an empty summary.
  virtual absl::StatusOr<std::vector<EndedJob>> List(JobId before, size_t count) = 0;
  // Errors: also NotFound, for one that has expired too.
  virtual absl::StatusOr<StoredRequest> Request(const std::string& id, Instant now) = 0;
  // How many there are.
  virtual std::map<job::JobPhase, int64_t> Count() const = 0;
};

// Not thread-safe: used by one thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;

  // Passes every record to `visit`, each job's in order of their numbers, until it returns an
  // error. Errors: that one; DataLoss for damage, as the backend finds it.
  virtual absl::StatusOr<StoreMarks> Load(absl::FunctionRef<absl::Status(StoredRecord)> visit) = 0;
  virtual absl::StatusOr<std::vector<StoredRecord>> RecordsOf(JobId job) = 0;

  // Errors: InvalidArgument if a record's number is not above all before it; else as the backend
  // fails (Unavailable for input and output, ResourceExhausted for a full disk). After those
  // nothing of the batch is promised, and Reopen comes before the next call.
  virtual absl::Status Commit(const Batch& batch) = 0;

  // Unavailable: what is open is not what lies at the store's path any more, so that commits would
  // go where no start finds them. Cheap.
  virtual absl::Status CheckPlace() { return absl::OkStatus(); }

  // After a failure: opens the store anew, so that what it holds from here on is known to be on
  // disk (an fsync that failed once may lie the next time). Returns the number of the last record:
  // the failed batch is there wholly or not at all. Errors: also those of CheckPlace.
  virtual absl::StatusOr<uint64_t> Reopen() = 0;

  // Deletes some ended jobs and request ids that are past their time, and gives free space back.
  // Returns whether there is more to do.
  virtual absl::StatusOr<bool> Prune(const Retention& retention, Instant now) = 0;

  virtual std::shared_ptr<EndedJobs> ended_jobs() = 0;

  // For copies (coordinator/store/store_copy.h), of stores that last. Passes every request id to
  // `visit`, in their order, expired ones too.
  virtual absl::Status ForEachRequest(absl::FunctionRef<absl::Status(StoredRequest)> visit);
  // Between BeginCopy and EndCopy. Not at once: a copy that is cut begins anew.
  virtual absl::Status Import(const StoreContents& contents);

  // On disk, what is yet to be written into its place included; 0: it is not known. Cheap.
  virtual int64_t bytes() const { return 0; }

  // Tells one store from another, since jobs are numbered from 1 in each. Drawn when the store was
  // made, and told to every daemon that registers. 0: it has none.
  virtual uint64_t identity() const = 0;
};

}  // namespace phalanx::coordinator
