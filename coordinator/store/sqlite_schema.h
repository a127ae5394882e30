// coordinator/store/sqlite_schema.h: the tables of a SQLite store, and the way from older forms.
//
//   journal   the records of jobs that have not ended, clustered by job
//   ended     one row for each job that has
//   requests  request ids of the last day
//   marks     the highest numbers ever given, and the identity of the store
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "coordinator/store/sqlite.h"

namespace phalanx::coordinator {

// Set before the first table is made: pages that compaction frees are given back.
inline constexpr char kSqlitePragmas[] =
    "PRAGMA busy_timeout=5000; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL;"
    "PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=4000; PRAGMA journal_size_limit=16777216;"
    "PRAGMA cache_size=-4096; PRAGMA temp_store=MEMORY;";

// Makes the tables of the new database at `path`, or rewrites those of an older version. A new
// store draws its identity; one of an older version takes it from the file `identity` beside it, if
// there is one. Errors: DataLoss for a database of another program, a record that cannot be read,
// or a file that holds no identity; FailedPrecondition for a newer version.
absl::Status PrepareSchema(sqlite::Connection& connection, const std::string& path);

// The version of a store's tables; 0: a new database. Errors: as above.
absl::StatusOr<int64_t> SchemaVersion(sqlite::Connection& connection);

// Of a store of this version; never 0. Errors: DataLoss if it has none.
absl::StatusOr<uint64_t> StoreIdentity(sqlite::Connection& connection);

}  // namespace phalanx::coordinator
