#include "coordinator/store/sqlite_ended_jobs.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

constexpr char kColumns[] = "SELECT job, name, phase, ended, summary FROM ended ";

EndedJob RowOf(const sqlite::Statement& row) {
  return {.job = JobId{row.Number(0)},
          .name = row.Bytes(1),
          .phase = job::ParseJobPhase(row.Bytes(2)).value_or(job::JobPhase::kFailed),
          .ended = absl::FromUnixMicros(row.Number(3)),
          .summary = row.Bytes(4)};
}

// Runs a statement that gives at most one row, which `read` turns into the answer.
template <typename Read>
auto One(sqlite::Statement& statement, Read read)
    -> absl::StatusOr<decltype(read(std::as_const(statement)))> {
  const absl::StatusOr<bool> row = statement.Step();
  absl::StatusOr<decltype(read(std::as_const(statement)))> answer = absl::NotFoundError("no row");
  if (!row.ok()) {
    answer = row.status();
  } else if (*row) {
    answer = read(std::as_const(statement));
  }
  statement.Reset();
  return answer;
}

}  // namespace

absl::StatusOr<sqlite::Connection> SqliteEndedJobs::Connect() const {
  ASSIGN_OR_RETURN(sqlite::Connection connection,
                   sqlite::Connection::Open(path_, SQLITE_OPEN_READWRITE));
  RETURN_IF_ERROR(connection.Execute(
      "PRAGMA query_only=ON; PRAGMA cache_size=-2048; PRAGMA busy_timeout=5000;"));
  return connection;
}

absl::StatusOr<SqliteEndedJobs::Reader*> SqliteEndedJobs::ReadyLocked() {
  if (reader_.has_value()) return &*reader_;
  ASSIGN_OR_RETURN(sqlite::Connection connection, Connect());
  ASSIGN_OR_RETURN(sqlite::Statement find,
                   connection.Prepare(absl::StrCat(kColumns, "WHERE job = ?")));
  ASSIGN_OR_RETURN(
      sqlite::Statement named,
      connection.Prepare(absl::StrCat(kColumns, "WHERE name = ? ORDER BY job DESC LIMIT 1")));
  ASSIGN_OR_RETURN(sqlite::Statement details,
                   connection.Prepare("SELECT details FROM ended WHERE job = ?"));
  ASSIGN_OR_RETURN(
      sqlite::Statement list,
      connection.Prepare(absl::StrCat(kColumns, "WHERE job < ? ORDER BY job DESC LIMIT ?")));
  reader_.emplace(Reader{std::move(connection), std::move(find), std::move(named),
                         std::move(details), std::move(list)});
  return &*reader_;
}

void SqliteEndedJobs::Disconnect() {
  {
    MutexLock lock(&mu_);
    reader_.reset();
  }
  MutexLock lock(&requests_mu_);
  requests_.reset();
}

absl::StatusOr<EndedJob> SqliteEndedJobs::Find(JobId job) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Reader * reader, ReadyLocked());
  return One(reader->find.Bind(job.value), RowOf);
}

absl::StatusOr<EndedJob> SqliteEndedJobs::FindNamed(const std::string& name) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Reader * reader, ReadyLocked());
  return One(reader->find_named.BindText(name), RowOf);
}

absl::StatusOr<std::string> SqliteEndedJobs::Details(JobId job) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Reader * reader, ReadyLocked());
  return One(reader->details.Bind(job.value),
             [](const sqlite::Statement& row) { return row.Bytes(0); });
}

absl::StatusOr<std::vector<EndedJob>> SqliteEndedJobs::List(JobId before, size_t count) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(Reader * reader, ReadyLocked());
  std::vector<EndedJob> jobs;
  reader->list.Bind(before.value).Bind(static_cast<int64_t>(count));
  absl::StatusOr<bool> row = reader->list.Step();
  for (; row.ok() && *row; row = reader->list.Step()) jobs.push_back(RowOf(reader->list));
  reader->list.Reset();
  if (absl::IsDataLoss(row.status())) return ListByIndexes(*reader, before, count);
  if (!row.ok()) return row.status();
  return jobs;
}

// The conditions on names and times make SQLite take the index.
absl::StatusOr<std::vector<EndedJob>> SqliteEndedJobs::ListByIndexes(Reader& reader, JobId before,
                                                                     size_t count) {
  ASSIGN_OR_RETURN(
      sqlite::Statement by_time,
      reader.connection.Prepare("SELECT job, phase, ended FROM ended INDEXED BY ended_by_time "
                                "WHERE ended > ? AND +job < ? ORDER BY +job DESC LIMIT ?"));
  by_time.Bind(std::numeric_limits<int64_t>::min())
      .Bind(before.value)
      .Bind(static_cast<int64_t>(count));
  std::vector<EndedJob> jobs;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, by_time.Step());
    if (!row) break;
    jobs.push_back({.job = JobId{by_time.Number(0)},
                    .phase = job::ParseJobPhase(by_time.Bytes(1)).value_or(job::JobPhase::kFailed),
                    .ended = absl::FromUnixMicros(by_time.Number(2))});
  }
  if (jobs.empty()) return jobs;
  ASSIGN_OR_RETURN(sqlite::Statement by_name,
                   reader.connection.Prepare("SELECT job, name FROM ended INDEXED BY ended_by_name "
                                             "WHERE name >= '' AND +job BETWEEN ? AND ?"));
  by_name.Bind(jobs.back().job.value).Bind(jobs.front().job.value);
  std::map<int64_t, std::string> names;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, by_name.Step());
    if (!row) break;
    names[by_name.Number(0)] = by_name.Bytes(1);
  }
  for (EndedJob& job : jobs) {
    absl::StatusOr<EndedJob> whole = One(reader.find.Bind(job.job.value), RowOf);
    if (whole.ok()) {
      job = *std::move(whole);
    } else {
      job.name = names[job.job.value];
    }
  }
  return jobs;
}

absl::StatusOr<StoredRequest> SqliteEndedJobs::Request(const std::string& id, Instant now) {
  MutexLock lock(&requests_mu_);
  if (!requests_.has_value()) {
    ASSIGN_OR_RETURN(sqlite::Connection connection, Connect());
    ASSIGN_OR_RETURN(
        sqlite::Statement find,
        connection.Prepare(
            "SELECT job, document, expires FROM requests WHERE id = ? AND expires > ?"));
    requests_.emplace(RequestReader{std::move(connection), std::move(find)});
  }
  return One(requests_->find.BindText(id).Bind(absl::ToUnixMicros(now)),
             [&id](const sqlite::Statement& row) {
               return StoredRequest{.id = id,
                                    .job = JobId{row.Number(0)},
                                    .document_digest = row.Bytes(1),
                                    .expires = absl::FromUnixMicros(row.Number(2))};
             });
}

std::map<job::JobPhase, int64_t> SqliteEndedJobs::Count() const {
  MutexLock lock(&counts_mu_);
  return counts_;
}

void SqliteEndedJobs::ForgetCounts() {
  MutexLock lock(&counts_mu_);
  counts_.clear();
}

void SqliteEndedJobs::Counted(job::JobPhase phase, int64_t change) {
  MutexLock lock(&counts_mu_);
  counts_[phase] += change;
}

}  // namespace phalanx::coordinator
