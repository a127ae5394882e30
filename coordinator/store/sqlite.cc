#include "coordinator/store/sqlite.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::coordinator::sqlite {
namespace {

// Below this a write that failed is told of as one for want of room: a commit may need so much.
constexpr uint64_t kLittleRoom = 1 << 20;

// Bytes that are free where the database lies, for its user; nullopt: not known.
std::optional<uint64_t> FreeBytes(sqlite3* db) {
  const char* path = sqlite3_db_filename(db, "main");
  struct statvfs disk {};
  if (path == nullptr || *path == '\0' || statvfs(path, &disk) != 0) return std::nullopt;
  return uint64_t{disk.f_bavail} * disk.f_frsize;
}

// SQLite calls a full disk SQLITE_FULL where it is the database file that does not fit, and an
// input/output error where it is another of its files.
absl::Status WriteFault(sqlite3* db, int code, const std::string& message) {
  const std::optional<uint64_t> free = FreeBytes(db);
  const bool full = (code & 0xFF) == SQLITE_FULL;
  const std::string room =
      free.has_value() ? absl::StrCat(": ", *free, " bytes are free there") : "";
  if (full || free.value_or(kLittleRoom) < kLittleRoom) {
    const std::string what =
        absl::StrCat(message, full ? "" : " on a full disk", room, "; make room on it");
    return full ? absl::ResourceExhaustedError(what) : absl::UnavailableError(what);
  }
  return absl::UnavailableError(
      absl::StrCat(message, room, "; see that the disk has room and takes writes"));
}

// What the world does to a database is told in SQLite's words alone; `what`, the statement, says
// more only of a mistake of ours.
absl::Status ToStatus(sqlite3* db, int code, absl::string_view what) {
  const std::string message = sqlite3_errmsg(db);
  switch (code & 0xFF) {
    case SQLITE_OK:
    case SQLITE_DONE:
    case SQLITE_ROW:
      return absl::OkStatus();
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(absl::StrCat(message, " (another process has it open)"));
    case SQLITE_FULL:
    case SQLITE_IOERR:
      return WriteFault(db, code, message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(absl::StrCat(message, ": it is damaged"));
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return absl::UnavailableError(absl::StrCat(
          message, ": see that the user of phalanx-coordinator may write it and in its folder"));
    case SQLITE_CONSTRAINT:
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", message));
    default:
      return absl::UnavailableError(absl::StrCat(what, ": ", message));
  }
}

// SQLite tells a missing file and a folder alike.
absl::Status CheckPath(const std::string& path, int flags) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    const bool makes = (flags & SQLITE_OPEN_CREATE) != 0;
    if (errno == ENOENT && makes) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (S_ISREG(found.st_mode)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(path, S_ISDIR(found.st_mode) ? " is a folder" : " is no regular file",
                   ", no database; remove it or give another --store"));
}

}  // namespace

Statement& Statement::Reset() {
  sqlite3_reset(statement_.get());
  bound_ = 0;
  return *this;
}

Statement& Statement::Bind(int64_t value) {
  sqlite3_bind_int64(statement_.get(), ++bound_, value);
  return *this;
}

Statement& Statement::BindBlob(absl::string_view bytes) {
  // Without a pointer it would be NULL.
  sqlite3_bind_blob64(statement_.get(), ++bound_, bytes.empty() ? "" : bytes.data(), bytes.size(),
                      SQLITE_STATIC);
  return *this;
}

Statement& Statement::BindText(absl::string_view text) {
  sqlite3_bind_text64(statement_.get(), ++bound_, text.empty() ? "" : text.data(), text.size(),
                      SQLITE_STATIC, SQLITE_UTF8);
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return ToStatus(db_, code, sqlite3_sql(statement_.get()));
}

absl::Status Statement::Run() {
  const absl::Status status = Step().status();
  Reset();
  return status;
}

std::string Statement::Bytes(int column) const {
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement_.get(), column));
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return bytes == nullptr ? std::string() : std::string(bytes, static_cast<size_t>(size));
}

absl::StatusOr<Connection> Connection::Open(const std::string& path, int flags) {
  RETURN_IF_ERROR(CheckPath(path, flags));
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &db,
                                   flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, nullptr);
  Connection connection(db);
  if (code != SQLITE_OK) {
    return absl::UnavailableError(absl::StrCat(path, ": ", sqlite3_errstr(code)));
  }
  return connection;
}

absl::Status Connection::Execute(const std::string& sql) {
  return ToStatus(db_.get(), sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, nullptr), sql);
}

absl::StatusOr<int64_t> Connection::Number(const std::string& sql) {
  ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Number(0) : 0;
}

absl::Status Connection::KeepLogOnClose() {
  return ToStatus(db_.get(),
                  sqlite3_db_config(db_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr),
                  "keep the log");
}

absl::StatusOr<Statement> Connection::Prepare(absl::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(db_.get(), sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return ToStatus(db_.get(), code, sql);
  return Statement(db_.get(), statement);
}

}  // namespace phalanx::coordinator::sqlite
