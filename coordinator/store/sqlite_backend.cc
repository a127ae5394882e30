#include "coordinator/store/sqlite_backend.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/archive.h"
#include "coordinator/store/sqlite.h"
#include "coordinator/store/sqlite_schema.h"
#include "coordinator/store/wal_check.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

// What one call of Prune deletes or gives back at most: other commits wait for it.
constexpr int64_t kPruneRows = 200, kPruneRequestRows = 2000, kPrunePages = 1000;
// Free pages that are kept for what comes next.
constexpr int64_t kFreePagesKept = 1000;

constexpr char kSetMark[] =
    "INSERT INTO marks VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value=max(value, "
    "excluded.value)";

// SQLite would remove a log whose database is gone or empty, with the newest commits in it.
absl::Status CheckLogIsNotAlone(const std::string& path) {
  const std::string log = absl::StrCat(path, "-wal");
  struct stat database {
  }, left{};
  if (stat(log.c_str(), &left) != 0 || left.st_size == 0) return absl::OkStatus();
  if (stat(path.c_str(), &database) == 0 && database.st_size > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, " is gone or empty, and ", log,
      " is left, which belongs to it: put the database back in its place, or move the log away to "
      "start with an empty store (the jobs of the old one are then unknown)"));
}

// SQLite would make it for others to read, and gives its log the mode of the database. What goes
// wrong is told when it is opened.
void MakeForItsOwnerAlone(const std::string& path) {
  const UniqueFd made(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
}

}  // namespace

absl::Status CheckHasOneName(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0 || S_ISDIR(found.st_mode)) return absl::OkStatus();
  if (S_ISLNK(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     " is a link, and another coordinator may have what it leads to: give "
                     "the folder with the file itself (--store)"));
  }
  if (found.st_nlink > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has ", found.st_nlink,
                     " names (hard links), and another coordinator may have it by another: "
                     "remove the others, or copy it (--store)"));
  }
  return absl::OkStatus();
}

struct SqliteBackend::Handles {
  sqlite::Connection connection;
  sqlite::Statement insert, erase, records, forget, insert_ended, insert_request, phase_of,
      erase_ended, set_mark;
};

SqliteBackend::SqliteBackend(std::string path)
    : path_(std::move(path)), ended_jobs_(std::make_shared<SqliteEndedJobs>(path_)) {}
SqliteBackend::~SqliteBackend() { ended_jobs_->Disconnect(); }

absl::StatusOr<std::unique_ptr<SqliteBackend>> SqliteBackend::Open(const std::string& path) {
  RETURN_IF_ERROR(CheckHasOneName(path));
  std::unique_ptr<SqliteBackend> backend(new SqliteBackend(path));
  const std::string lock = absl::StrCat(path, ".lock");
  backend->lock_.reset(open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!backend->lock_.is_open()) {
    return absl::UnavailableError(
        absl::StrCat(lock, ": cannot be written: ", std::strerror(errno),
                     "; see that the user of phalanx-coordinator may write it, or give another "
                     "--store"));
  }
  const std::string folder = std::filesystem::path(lock).parent_path().string();
  backend->folder_.reset(
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A file system that cannot lock folders has the file alone.
  const bool folder_held =
      flock(backend->folder_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (folder_held || flock(backend->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     ": another process has it open: stop that coordinator, or give this one a "
                     "store of its own (--store)"));
  }
  RETURN_IF_ERROR(CheckLogIsNotAlone(path));
  RETURN_IF_ERROR(CheckLog(absl::StrCat(path, "-wal")));
  MakeForItsOwnerAlone(path);
  RETURN_IF_ERROR(backend->Connect(SQLITE_OPEN_CREATE));
  RETURN_IF_ERROR(backend->CheckPages());
  if (stat(path.c_str(), &backend->place_) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return backend;
}

absl::Status SqliteBackend::Connect(int flags) {
  ASSIGN_OR_RETURN(sqlite::Connection connection,
                   sqlite::Connection::Open(path_, SQLITE_OPEN_READWRITE | flags));
  return Annotate(Prepare(std::move(connection)), path_);
}

absl::Status SqliteBackend::Prepare(sqlite::Connection connection) {
  RETURN_IF_ERROR(connection.Execute(kSqlitePragmas));
  RETURN_IF_ERROR(PrepareSchema(connection, path_));
  ASSIGN_OR_RETURN(identity_, StoreIdentity(connection));
  // Everything that the log holds is written to the database and synced anew: what is read from
  // here on does not rest on an fsync of before.
  RETURN_IF_ERROR(connection.Execute("PRAGMA wal_checkpoint(TRUNCATE)"));
  ASSIGN_OR_RETURN(const int64_t last,
                   connection.Number("SELECT max(coalesce((SELECT max(number) FROM journal), 0), "
                                     "coalesce((SELECT value FROM marks WHERE "
                                     "name='last_record'), 0))"));
  ASSIGN_OR_RETURN(sqlite::Statement insert,
                   connection.Prepare("INSERT INTO journal VALUES(?, ?, ?)"));
  ASSIGN_OR_RETURN(sqlite::Statement erase,
                   connection.Prepare("DELETE FROM journal WHERE job = ? AND number = ?"));
  ASSIGN_OR_RETURN(
      sqlite::Statement records,
      connection.Prepare("SELECT number, record FROM journal WHERE job = ? ORDER BY number"));
  ASSIGN_OR_RETURN(sqlite::Statement forget,
                   connection.Prepare("DELETE FROM journal WHERE job = ?"));
  ASSIGN_OR_RETURN(sqlite::Statement insert_ended,
                   connection.Prepare("INSERT OR IGNORE INTO ended VALUES(?, ?, ?, ?, ?, ?)"));
  ASSIGN_OR_RETURN(sqlite::Statement insert_request,
                   connection.Prepare("INSERT OR REPLACE INTO requests VALUES(?, ?, ?, ?)"));
  ASSIGN_OR_RETURN(sqlite::Statement phase_of,
                   connection.Prepare("SELECT phase FROM ended WHERE job = ?"));
  ASSIGN_OR_RETURN(sqlite::Statement erase_ended,
                   connection.Prepare("DELETE FROM ended WHERE job = ?"));
  ASSIGN_OR_RETURN(sqlite::Statement set_mark, connection.Prepare(kSetMark));
  last_ = static_cast<uint64_t>(last);
  handles_.reset(new Handles{std::move(connection), std::move(insert), std::move(erase),
                             std::move(records), std::move(forget), std::move(insert_ended),
                             std::move(insert_request), std::move(phase_of), std::move(erase_ended),
                             std::move(set_mark)});
  return CountEnded();
}

absl::Status SqliteBackend::CheckPages() {
  for (const char* table : {"journal", "marks"}) {
    ASSIGN_OR_RETURN(sqlite::Statement check,
                     handles_->connection.Prepare(absl::StrCat("PRAGMA quick_check(", table, ")")));
    ASSIGN_OR_RETURN(const bool row, check.Step());
    if (row && check.Bytes(0) != "ok") {
      return absl::DataLossError(absl::StrCat(path_, ": ", check.Bytes(0)));
    }
  }
  // To count rows visits all pages, with little of what is in them: of a million rows in less than
  // a tenth of a second. (Without a condition SQLite takes whichever index it likes.) CountEnded
  // has read ended_by_time; the table `ended` holds most of the store, and is read once the
  // coordinator serves.
  for (const char* rows : {"requests NOT INDEXED WHERE id >= ''",
                           "requests INDEXED BY requests_by_expiry WHERE expires > -1",
                           "ended INDEXED BY ended_by_name WHERE name >= ''"}) {
    RETURN_IF_ERROR(Annotate(
        handles_->connection.Number(absl::StrCat("SELECT count(*) FROM ", rows)).status(), path_));
  }
  return absl::OkStatus();
}

absl::Status SqliteBackend::CountEnded() {
  ended_jobs_->ForgetCounts();
  ASSIGN_OR_RETURN(
      sqlite::Statement count,
      handles_->connection.Prepare("SELECT phase, count(*) FROM ended INDEXED BY ended_by_time "
                                   "GROUP BY phase"));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, count.Step());
    if (!row) return absl::OkStatus();
    ended_jobs_->Counted(job::ParseJobPhase(count.Bytes(0)).value_or(job::JobPhase::kFailed),
                         count.Number(1));
  }
}

absl::StatusOr<StoreMarks> SqliteBackend::Load(
    absl::FunctionRef<absl::Status(StoredRecord)> visit) {
  ASSIGN_OR_RETURN(
      sqlite::Statement read,
      handles_->connection.Prepare("SELECT job, number, record FROM journal ORDER BY job, number"));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, read.Step());
    if (!row) break;
    RETURN_IF_ERROR(visit({.number = static_cast<uint64_t>(read.Number(1)),
                           .job = JobId{read.Number(0)},
                           .bytes = read.Bytes(2)}));
  }
  ASSIGN_OR_RETURN(
      const int64_t job,
      handles_->connection.Number(
          "SELECT max(coalesce((SELECT max(job) FROM journal), 0), coalesce((SELECT max(job) FROM "
          "ended), 0), coalesce((SELECT value FROM marks WHERE name='last_job'), 0))"));
  return StoreMarks{.last_record = last_, .last_job = JobId{job}};
}

absl::StatusOr<std::vector<StoredRecord>> SqliteBackend::RecordsOf(JobId job) {
  sqlite::Statement& read = handles_->records.Reset().Bind(job.value);
  std::vector<StoredRecord> records;
  absl::StatusOr<bool> row = read.Step();
  for (; row.ok() && *row; row = read.Step()) {
    records.push_back(
        {.number = static_cast<uint64_t>(read.Number(0)), .job = job, .bytes = read.Bytes(1)});
  }
  read.Reset();
  if (!row.ok()) return row.status();
  return records;
}

template <typename Body>
absl::Status SqliteBackend::Transact(Body body) {
  RETURN_IF_ERROR(handles_->connection.Execute("BEGIN IMMEDIATE"));
  absl::Status status = body();
  if (status.ok()) status = handles_->connection.Execute("COMMIT");
  if (!status.ok()) static_cast<void>(handles_->connection.Execute("ROLLBACK"));
  return status;
}

absl::Status SqliteBackend::Commit(const Batch& batch) {
  if (batch.empty()) return absl::OkStatus();
  Counts changes;
  RETURN_IF_ERROR(Transact([&] { return Write(batch, changes); }));
  if (!batch.records.empty()) last_ = batch.records.back().number;
  Counted(changes);
  return absl::OkStatus();
}

void SqliteBackend::Counted(const Counts& changes) {
  for (const auto& [phase, change] : changes) ended_jobs_->Counted(phase, change);
}

absl::Status SqliteBackend::Write(const Batch& batch, Counts& changes) {
  uint64_t last = last_;
  for (const StoredRecord& record : batch.records) {
    if (record.number <= last) {
      return absl::InvalidArgumentError(
          absl::StrCat("record ", record.number, " does not follow ", last));
    }
    last = record.number;
    RETURN_IF_ERROR(WriteRecord(record));
    if (record.supersedes == 0) continue;
    handles_->erase.Bind(record.job.value).Bind(static_cast<int64_t>(record.supersedes));
    RETURN_IF_ERROR(handles_->erase.Run());
  }
  for (const EndedJob& ended : batch.ended) RETURN_IF_ERROR(WriteEnded(ended, changes));
  for (JobId job : batch.deleted) RETURN_IF_ERROR(DeleteEnded(job, changes));
  // Their records may have been the last.
  if (batch.ended.empty()) return absl::OkStatus();
  return handles_->set_mark.BindText("last_record").Bind(static_cast<int64_t>(last)).Run();
}

absl::Status SqliteBackend::WriteRecord(const StoredRecord& record) {
  return handles_->insert.Bind(record.job.value)
      .Bind(static_cast<int64_t>(record.number))
      .BindBlob(record.bytes)
      .Run();
}

absl::Status SqliteBackend::WriteRequest(const StoredRequest& request) {
  return handles_->insert_request.BindText(request.id)
      .Bind(request.job.value)
      .BindText(request.document_digest)
      .Bind(absl::ToUnixMicros(request.expires))
      .Run();
}

absl::Status SqliteBackend::BeginCopy(uint64_t identity) {
  RETURN_IF_ERROR(handles_->connection.Execute(absl::StrCat(
      "BEGIN IMMEDIATE; DELETE FROM journal; DELETE FROM ended; DELETE FROM requests; DELETE FROM "
      "marks; INSERT INTO marks VALUES('identity', ",
      static_cast<int64_t>(identity), "); COMMIT")));
  return Reopen().status();
}

absl::Status SqliteBackend::Import(const StoreContents& contents) {
  Counts changes;
  RETURN_IF_ERROR(Transact([&]() -> absl::Status {
    for (const StoredRecord& record : contents.records) RETURN_IF_ERROR(WriteRecord(record));
    for (const EndedJob& ended : contents.ended) RETURN_IF_ERROR(WriteEnded(ended, changes));
    for (const StoredRequest& request : contents.requests) RETURN_IF_ERROR(WriteRequest(request));
    return absl::OkStatus();
  }));
  Counted(changes);
  return absl::OkStatus();
}

absl::Status SqliteBackend::EndCopy(const StoreMarks& marks) {
  RETURN_IF_ERROR(Transact([&]() -> absl::Status {
    RETURN_IF_ERROR(handles_->set_mark.BindText("last_record")
                        .Bind(static_cast<int64_t>(marks.last_record))
                        .Run());
    return handles_->set_mark.BindText("last_job").Bind(marks.last_job.value).Run();
  }));
  // Writes the log into the database.
  return Reopen().status();
}

absl::Status SqliteBackend::ForEachRequest(absl::FunctionRef<absl::Status(StoredRequest)> visit) {
  ASSIGN_OR_RETURN(
      sqlite::Statement read,
      handles_->connection.Prepare("SELECT id, job, document, expires FROM requests ORDER BY id"));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, read.Step());
    if (!row) return absl::OkStatus();
    RETURN_IF_ERROR(visit({.id = read.Bytes(0),
                           .job = JobId{read.Number(1)},
                           .document_digest = read.Bytes(2),
                           .expires = absl::FromUnixMicros(read.Number(3))}));
  }
}

absl::Status SqliteBackend::WriteEnded(const EndedJob& ended, Counts& changes) {
  handles_->insert_ended.Bind(ended.job.value)
      .BindText(ended.name)
      .BindText(job::ToString(ended.phase))
      .Bind(absl::ToUnixMicros(ended.ended))
      .BindBlob(ended.summary)
      .BindBlob(ended.details);
  RETURN_IF_ERROR(handles_->insert_ended.Run());
  changes[ended.phase] += handles_->connection.changes();
  if (ended.request.has_value()) RETURN_IF_ERROR(WriteRequest(*ended.request));
  return handles_->forget.Bind(ended.job.value).Run();
}

absl::Status SqliteBackend::DeleteEnded(JobId job, Counts& changes) {
  const absl::StatusOr<bool> row = handles_->phase_of.Bind(job.value).Step();
  const bool found = row.ok() && *row;
  if (found) {
    --changes[job::ParseJobPhase(handles_->phase_of.Bytes(0)).value_or(job::JobPhase::kFailed)];
  }
  handles_->phase_of.Reset();
  RETURN_IF_ERROR(row.status());
  if (!found) return absl::OkStatus();
  RETURN_IF_ERROR(handles_->erase_ended.Bind(job.value).Run());
  return handles_->set_mark.BindText("last_job").Bind(job.value).Run();
}

absl::Status SqliteBackend::CheckPlace() {
  struct stat now {};
  if (stat(path_.c_str(), &now) != 0) {
    return absl::UnavailableError(absl::StrCat(
        path_, " is gone: ", std::strerror(errno),
        "; put it back: a coordinator that is started without it makes an empty store"));
  }
  if (now.st_dev == place_.st_dev && now.st_ino == place_.st_ino) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      path_, " was replaced by another file; put it back, or start the coordinator again"));
}

int64_t SqliteBackend::bytes() const {
  int64_t bytes = 0;
  for (const char* part : {"", "-wal"}) {
    struct stat file {};
    if (stat(absl::StrCat(path_, part).c_str(), &file) == 0) bytes += file.st_size;
  }
  return bytes;
}

absl::StatusOr<uint64_t> SqliteBackend::Reopen() {
  RETURN_IF_ERROR(CheckPlace());
  handles_.reset();
  // The log is read anew only when nobody has it open.
  ended_jobs_->Disconnect();
  RETURN_IF_ERROR(Connect(0));
  return last_;
}

absl::StatusOr<std::vector<JobId>> SqliteBackend::Expired(const Retention& retention, Instant now) {
  int64_t count = 0;
  for (const auto& [phase, jobs] : ended_jobs_->Count()) count += jobs;
  const int64_t excess = std::clamp<int64_t>(count - retention.count_max, 0, kPruneRows);
  ASSIGN_OR_RETURN(
      sqlite::Statement read,
      handles_->connection.Prepare("SELECT job, ended FROM ended ORDER BY ended LIMIT ?"));
  read.Bind(kPruneRows);
  std::vector<JobId> expired;
  const int64_t oldest = absl::ToUnixMicros(now - retention.age_max);
  while (true) {
    ASSIGN_OR_RETURN(const bool row, read.Step());
    if (!row) return expired;
    if (static_cast<int64_t>(expired.size()) >= excess && read.Number(1) >= oldest) return expired;
    expired.push_back(JobId{read.Number(0)});
  }
}

absl::StatusOr<bool> SqliteBackend::Prune(const Retention& retention, Instant now) {
  ASSIGN_OR_RETURN(const std::vector<JobId> expired, Expired(retention, now));
  ASSIGN_OR_RETURN(const int64_t requests,
                   handles_->connection.Number(
                       absl::StrCat("SELECT count(*) FROM (SELECT 1 FROM requests WHERE "
                                    "expires <= ",
                                    absl::ToUnixMicros(now), " LIMIT ", kPruneRequestRows, ")")));
  if (!expired.empty() || requests != 0) {
    Counts changes;
    RETURN_IF_ERROR(Transact([&]() -> absl::Status {
      for (JobId job : expired) RETURN_IF_ERROR(DeleteEnded(job, changes));
      return handles_->connection.Execute(absl::StrCat(
          "DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE expires <= ",
          absl::ToUnixMicros(now), " LIMIT ", kPruneRequestRows, ")"));
    }));
    Counted(changes);
  }
  ASSIGN_OR_RETURN(const bool pages, GiveBackPages());
  return static_cast<int64_t>(expired.size()) == kPruneRows || requests == kPruneRequestRows ||
         pages;
}

absl::StatusOr<bool> SqliteBackend::GiveBackPages() {
  constexpr char kCount[] = "PRAGMA freelist_count";
  ASSIGN_OR_RETURN(const int64_t before, handles_->connection.Number(kCount));
  if (before <= kFreePagesKept) return false;
  RETURN_IF_ERROR(handles_->connection.Execute(absl::StrCat(
      "PRAGMA incremental_vacuum(", std::min(kPrunePages, before - kFreePagesKept), ")")));
  ASSIGN_OR_RETURN(const int64_t after, handles_->connection.Number(kCount));
  // A database without auto_vacuum gives nothing back: its free pages are merely used again.
  return after < before && after > kFreePagesKept;
}

}  // namespace phalanx::coordinator
