// coordinator/store/wal_check.h: whether the write-ahead log of a SQLite store still has every
// commit that was synced.
//
// SQLite reads the log up to the first frame whose checksum does not hold and silently drops what
// lies behind. The store syncs each commit before it begins the next one, so that a machine which
// stops can leave the last commit in parts, but none before it: where the log goes on behind a
// broken commit, that commit was whole once, and it is damaged.
//
// The form of a log: sqlite.org/fileformat2.html, section 4.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace phalanx::coordinator {

// Reads the log at `path` (journal.db-wal) frame by frame, and again where another process may have
// written it meanwhile. Before SQLite opens the store: it may write to the log. OK for a log that
// is not there. Errors: DataLoss for a damaged commit that others lie behind, with the file, the
// frame and what to do; Unavailable if it cannot be read.
absl::Status CheckLog(const std::string& path);

}  // namespace phalanx::coordinator
