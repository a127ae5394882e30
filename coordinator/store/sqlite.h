// coordinator/store/sqlite.h: a connection to SQLite whose errors are statuses.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::coordinator::sqlite {

struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

// A prepared statement. Arguments are bound in order; Step after the last of them. Not thread-safe.
class Statement {
 public:
  Statement() = default;
  Statement(sqlite3* db, sqlite3_stmt* statement) : db_(db), statement_(statement) {}

  // From the first argument on again.
  Statement& Reset();
  Statement& Bind(int64_t value);
  // `bytes` must stay where it is until Reset.
  Statement& BindBlob(absl::string_view bytes);
  Statement& BindText(absl::string_view text);

  // True: a row is there. False: there are no more.
  absl::StatusOr<bool> Step();
  // Step, for a statement without rows.
  absl::Status Run();

  int64_t Number(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  std::string Bytes(int column) const;

 private:
  sqlite3* db_ = nullptr;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int bound_ = 0;
};

// Not thread-safe.
class Connection {
 public:
  // `flags`: of sqlite3_open_v2. Errors: Unavailable, with the path.
  static absl::StatusOr<Connection> Open(const std::string& path, int flags);

  // One or more statements without rows.
  absl::Status Execute(const std::string& sql);
  // The first column of the first row; 0 without a row.
  absl::StatusOr<int64_t> Number(const std::string& sql);
  absl::StatusOr<Statement> Prepare(absl::string_view sql);
  // Else the last connection to a database writes the log into it when it is closed.
  absl::Status KeepLogOnClose();
  int64_t changes() const { return sqlite3_changes(db_.get()); }

 private:
  struct Close {
    void operator()(sqlite3* db) const { sqlite3_close(db); }
  };
  explicit Connection(sqlite3* db) : db_(db) {}
  std::unique_ptr<sqlite3, Close> db_;
};

}  // namespace phalanx::coordinator::sqlite
