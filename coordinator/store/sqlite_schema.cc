#include "coordinator/store/sqlite_schema.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/store/backend.h"
#include "coordinator/wire/record_codec.h"
#include "coordinator/wire/seal.h"
#include "core/base/random_word.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

constexpr int64_t kVersion = kStoreSchema;
// "PHLX", so that `file` and we can tell the database from another program's.
constexpr int64_t kApplicationId = 0x50484C58;

constexpr char kTables[] =
    "CREATE TABLE journal(job INTEGER NOT NULL, number INTEGER NOT NULL, record BLOB NOT NULL,"
    " PRIMARY KEY(job, number)) WITHOUT ROWID;"
    "CREATE TABLE ended(job INTEGER PRIMARY KEY, name TEXT NOT NULL, phase TEXT NOT NULL,"
    " ended INTEGER NOT NULL, summary BLOB NOT NULL, details BLOB NOT NULL);"
    "CREATE INDEX ended_by_name ON ended(name, job);"
    "CREATE INDEX ended_by_time ON ended(ended, phase);"
    "CREATE TABLE requests(id TEXT PRIMARY KEY, job INTEGER NOT NULL, document TEXT NOT NULL,"
    " expires INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX requests_by_expiry ON requests(expires);"
    "CREATE TABLE marks(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;";

// Version 1: one table of unsealed records, those of ended jobs included.
absl::Status CopyFromVersion1(sqlite::Connection& connection) {
  RETURN_IF_ERROR(connection.Execute("ALTER TABLE journal RENAME TO journal_1"));
  RETURN_IF_ERROR(connection.Execute(kTables));
  ASSIGN_OR_RETURN(sqlite::Statement read,
                   connection.Prepare("SELECT number, record FROM journal_1 ORDER BY number"));
  ASSIGN_OR_RETURN(sqlite::Statement write,
                   connection.Prepare("INSERT INTO journal VALUES(?,?,?)"));
  int64_t number = 0;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, read.Step());
    if (!row) break;
    number = read.Number(0);
    const std::string bytes = read.Bytes(1);
    const absl::StatusOr<JournalRecord> record = DecodeUnsealedRecord(bytes);
    if (!record.ok()) return Annotate(record.status(), absl::StrCat("record ", number));
    const std::string sealed = Seal(bytes, static_cast<uint64_t>(number));
    write.Bind(record->job.value).Bind(number).BindBlob(sealed);
    RETURN_IF_ERROR(write.Run());
  }
  read = {};
  return connection.Execute(
      absl::StrCat("INSERT INTO marks VALUES('last_record', ", number, "); DROP TABLE journal_1"));
}

// Versions 1 and 2 kept it in a file, 16 hexadecimal digits and a line end.
absl::StatusOr<uint64_t> IdentityOfBefore(const std::string& path) {
  const std::string file = (std::filesystem::path(path).parent_path() / "identity").string();
  std::error_code error;
  if (!std::filesystem::exists(file, error) && !error) return RandomWord();
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return absl::UnavailableError(absl::StrCat("cannot read ", file));
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  uint64_t identity = 0;
  if (text.size() != 17 || !absl::SimpleHexAtoi(absl::StripSuffix(text, "\n"), &identity) ||
      identity == 0) {
    return absl::DataLossError(
        absl::StrCat(file, " holds no identity; bring it back from where the store came from"));
  }
  return identity;
}

absl::Status MakeTables(sqlite::Connection& connection, int64_t version, const std::string& path) {
  if (version == 0) RETURN_IF_ERROR(connection.Execute(kTables));
  if (version == 1) RETURN_IF_ERROR(CopyFromVersion1(connection));
  // What lies beside a new database was another's.
  ASSIGN_OR_RETURN(const uint64_t identity, version == 0 ? RandomWord() : IdentityOfBefore(path));
  return connection.Execute(
      absl::StrCat("INSERT INTO marks VALUES('identity', ", static_cast<int64_t>(identity), ")"));
}

absl::Status SetVersion(sqlite::Connection& connection) {
  return connection.Execute(
      absl::StrCat("PRAGMA application_id=", kApplicationId, "; PRAGMA user_version=", kVersion));
}

}  // namespace

absl::StatusOr<int64_t> SchemaVersion(sqlite::Connection& connection) {
  ASSIGN_OR_RETURN(const int64_t version, connection.Number("PRAGMA user_version"));
  ASSIGN_OR_RETURN(const int64_t tables, connection.Number("SELECT count(*) FROM sqlite_master"));
  ASSIGN_OR_RETURN(const int64_t application, connection.Number("PRAGMA application_id"));
  if (tables != 0 && application != kApplicationId) {
    return absl::DataLossError("is a database of another program");
  }
  if (version > kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("has schema version ", version, "; this coordinator knows ", kVersion,
                     ": a newer coordinator wrote it, start that one"));
  }
  return version;
}

absl::StatusOr<uint64_t> StoreIdentity(sqlite::Connection& connection) {
  ASSIGN_OR_RETURN(const int64_t identity,
                   connection.Number("SELECT value FROM marks WHERE name='identity'"));
  if (identity == 0) return absl::DataLossError("has no identity: it is damaged");
  return static_cast<uint64_t>(identity);
}

absl::Status PrepareSchema(sqlite::Connection& connection, const std::string& path) {
  ASSIGN_OR_RETURN(const int64_t version, SchemaVersion(connection));
  if (version == kVersion) return absl::OkStatus();
  RETURN_IF_ERROR(connection.Execute("BEGIN IMMEDIATE"));
  absl::Status status = MakeTables(connection, version, path);
  status.Update(SetVersion(connection));
  if (!status.ok()) {
    static_cast<void>(connection.Execute("ROLLBACK"));
    return status;
  }
  RETURN_IF_ERROR(connection.Execute("COMMIT"));
  // Only then are freed pages given back; without the space for it they are merely used again.
  if (version == 1) static_cast<void>(connection.Execute("PRAGMA auto_vacuum=INCREMENTAL; VACUUM"));
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator
