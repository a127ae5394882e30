// coordinator/store/sqlite_schema.h: the tables of a SQLite store, and the way from older forms.
//
//   journal   the records of jobs that have not ended, clustered by job
//   ended     one row for each job that has
//   requests  request ids of the last day
//   marks     the highest numbers ever given
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/store/sqlite.h"

namespace phalanx::coordinator {

// Set before the first table is made: pages that compaction frees are given back.
inline constexpr char kSqlitePragmas[] =
    "PRAGMA busy_timeout=5000; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL;"
    "PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=4000; PRAGMA journal_size_limit=16777216;"
    "PRAGMA cache_size=-4096; PRAGMA temp_store=MEMORY;";

// Makes the tables of a new database, or rewrites those of an older version. Errors: DataLoss for a
// database of another program, or a record that cannot be read; FailedPrecondition for a newer
// version.
absl::Status PrepareSchema(sqlite::Connection& connection);

// The version of a store's tables; 0: a new database. Errors: as above.
absl::StatusOr<int64_t> SchemaVersion(sqlite::Connection& connection);

}  // namespace phalanx::coordinator
