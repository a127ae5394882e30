// coordinator/store/sqlite_ended_jobs.h: the ended jobs of a SQLite store, over connections of
// their own, beside the one that writes: one for request ids, which every submit asks for, and one
// for everything else, whose answers may be long.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "coordinator/store/backend.h"
#include "coordinator/store/sqlite.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// Thread-safe.
class SqliteEndedJobs final : public EndedJobs {
 public:
  explicit SqliteEndedJobs(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<EndedJob> Find(JobId job) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<EndedJob> FindNamed(const std::string& name) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::string> Details(JobId job) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<EndedJob>> List(JobId before, size_t count) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<StoredRequest> Request(const std::string& id, Instant now) override
      ABSL_LOCKS_EXCLUDED(requests_mu_);
  std::map<job::JobPhase, int64_t> Count() const override ABSL_LOCKS_EXCLUDED(counts_mu_);

  // Closes the connections; the next call opens its one again.
  void Disconnect() ABSL_LOCKS_EXCLUDED(mu_, requests_mu_);
  // For the writer: what the store holds, and what it has committed since.
  void ForgetCounts() ABSL_LOCKS_EXCLUDED(counts_mu_);
  void Counted(job::JobPhase phase, int64_t change) ABSL_LOCKS_EXCLUDED(counts_mu_);

 private:
  struct Reader {
    sqlite::Connection connection;
    sqlite::Statement find, find_named, details, list;
  };
  struct RequestReader {
    sqlite::Connection connection;
    sqlite::Statement find;
  };
  absl::StatusOr<sqlite::Connection> Connect() const;
  // As List, where pages of the table are damaged: by its indexes, which hold all but summaries.
  absl::StatusOr<std::vector<EndedJob>> ListByIndexes(Reader& reader, JobId before, size_t count)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Reader*> ReadyLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  mutable Mutex counts_mu_;
  std::map<job::JobPhase, int64_t> counts_ ABSL_GUARDED_BY(counts_mu_);
  Mutex mu_;
  std::optional<Reader> reader_ ABSL_GUARDED_BY(mu_);
  Mutex requests_mu_;
  std::optional<RequestReader> requests_ ABSL_GUARDED_BY(requests_mu_);
};

}  // namespace phalanx::coordinator
