#include "coordinator/store/sqlite_backend.h"

#include <sqlite3.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

constexpr int kSchemaVersion = 1;
// "PHLX", so that `file` and we can tell the database from another program's.
constexpr int kApplicationId = 0x50484C58;

absl::Status ToStatus(sqlite3* db, int code, absl::string_view what) {
  const std::string message = absl::StrCat(what, ": ", sqlite3_errmsg(db));
  switch (code & 0xFF) {
    case SQLITE_OK:
    case SQLITE_DONE:
    case SQLITE_ROW:
      return absl::OkStatus();
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(absl::StrCat(message, " (another process has it open)"));
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_CONSTRAINT:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace

struct SqliteBackend::Handles {
  ~Handles() {
    sqlite3_finalize(insert);
    sqlite3_close(db);
  }
  absl::Status Execute(const char* sql) {
    return ToStatus(db, sqlite3_exec(db, sql, nullptr, nullptr, nullptr), sql);
  }
  absl::StatusOr<int64_t> Number(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, nullptr);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    const int64_t value = code == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
    const absl::Status status = ToStatus(db, code, sql);
    sqlite3_finalize(statement);
    if (!status.ok()) return status;
    return value;
  }

  sqlite3* db = nullptr;
  sqlite3_stmt* insert = nullptr;
  uint64_t next = 1;
};

SqliteBackend::SqliteBackend(std::unique_ptr<Handles> handles) : handles_(std::move(handles)) {}
SqliteBackend::~SqliteBackend() = default;

absl::StatusOr<std::unique_ptr<SqliteBackend>> SqliteBackend::Open(const std::string& path) {
  auto handles = std::make_unique<Handles>();
  const int code = sqlite3_open_v2(
      path.c_str(), &handles->db,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
      nullptr);
  if (code != SQLITE_OK) {
    return absl::UnavailableError(absl::StrCat(path, ": ", sqlite3_errstr(code)));
  }
  const auto annotate = [&path](const absl::Status& status) { return Annotate(status, path); };
  // Exclusive before the log mode: then SQLite needs no shared memory file and holds its lock.
  RETURN_IF_ERROR(annotate(handles->Execute(
      "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
      "PRAGMA wal_autocheckpoint=4000; PRAGMA cache_size=-4096; PRAGMA temp_store=MEMORY;")));
  ASSIGN_OR_RETURN(const int64_t version, handles->Number("PRAGMA user_version"));
  ASSIGN_OR_RETURN(const int64_t tables, handles->Number("SELECT count(*) FROM sqlite_master"));
  ASSIGN_OR_RETURN(const int64_t application, handles->Number("PRAGMA application_id"));
  if (tables != 0 && application != kApplicationId) {
    return absl::DataLossError(absl::StrCat(path, " is a database of another program"));
  }
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has schema version ", version,
                                                      "; this coordinator knows ", kSchemaVersion));
  }
  RETURN_IF_ERROR(annotate(handles->Execute("BEGIN IMMEDIATE")));
  RETURN_IF_ERROR(annotate(handles->Execute(
      absl::StrCat(
          "CREATE TABLE IF NOT EXISTS journal(number INTEGER PRIMARY KEY, record BLOB NOT NULL);"
          "PRAGMA application_id=",
          kApplicationId, "; PRAGMA user_version=", kSchemaVersion)
          .c_str())));
  RETURN_IF_ERROR(annotate(handles->Execute("COMMIT")));
  ASSIGN_OR_RETURN(const int64_t last,
                   handles->Number("SELECT coalesce(max(number), 0) FROM journal"));
  handles->next = static_cast<uint64_t>(last) + 1;
  RETURN_IF_ERROR(annotate(
      ToStatus(handles->db,
               sqlite3_prepare_v3(handles->db, "INSERT INTO journal(number, record) VALUES(?, ?)",
                                  -1, SQLITE_PREPARE_PERSISTENT, &handles->insert, nullptr),
               "prepare")));
  return std::unique_ptr<SqliteBackend>(new SqliteBackend(std::move(handles)));
}

absl::StatusOr<std::vector<StoredRecord>> SqliteBackend::Load() {
  std::vector<StoredRecord> records;
  sqlite3_stmt* statement = nullptr;
  int code = sqlite3_prepare_v2(handles_->db, "SELECT number, record FROM journal ORDER BY number",
                                -1, &statement, nullptr);
  while (code == SQLITE_OK || code == SQLITE_ROW) {
    code = sqlite3_step(statement);
    if (code != SQLITE_ROW) break;
    const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement, 1));
    const int size = sqlite3_column_bytes(statement, 1);
    records.push_back(
        {.number = static_cast<uint64_t>(sqlite3_column_int64(statement, 0)),
         .bytes = std::string(bytes == nullptr ? "" : bytes, static_cast<size_t>(size))});
    if (records.back().number != records.size()) {
      sqlite3_finalize(statement);
      return absl::DataLossError(absl::StrCat("journal record ", records.size(), " is missing"));
    }
  }
  const absl::Status status = ToStatus(handles_->db, code, "load");
  sqlite3_finalize(statement);
  if (!status.ok()) return status;
  return records;
}

absl::Status SqliteBackend::Commit(absl::Span<const StoredRecord> records) {
  if (records.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(handles_->Execute("BEGIN IMMEDIATE"));
  uint64_t next = handles_->next;
  absl::Status status;
  for (const StoredRecord& record : records) {
    if (record.number != next++) {
      status = absl::InvalidArgumentError(
          absl::StrCat("record ", record.number, " does not follow ", next - 2));
      break;
    }
    sqlite3_bind_int64(handles_->insert, 1, static_cast<sqlite3_int64>(record.number));
    sqlite3_bind_blob64(handles_->insert, 2, record.bytes.data(), record.bytes.size(),
                        SQLITE_STATIC);
    const int code = sqlite3_step(handles_->insert);
    status = ToStatus(handles_->db, code, "insert");
    sqlite3_reset(handles_->insert);
    if (!status.ok()) break;
  }
  if (status.ok()) status = handles_->Execute("COMMIT");
  if (!status.ok()) {
    static_cast<void>(handles_->Execute("ROLLBACK"));
    return status;
  }
  handles_->next = next;
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator
