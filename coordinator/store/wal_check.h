// coordinator/store/wal_check.h: whether SQLite's write-ahead log has lost commits that were
// acknowledged.
//
// SQLite reads it up to the first frame whose checksum does not hold, and drops what stands behind
// as what a machine's end has cut. Each commit of the store is synced before the next one begins,
// so only the last one can be cut: where frames of this log stand behind the commit that is broken,
// a disk or somebody has changed it.
//
// Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
#pragma once

#include <string>

#include "absl/status/status.h"

namespace phalanx::coordinator {

// `log`: "journal.db-wal"; Ok if it is not there. Reads it once, a page at a time. Errors:
// DataLoss, which names the frame; Unavailable if it cannot be read.
absl::Status CheckWriteAheadLog(const std::string& log);

}  // namespace phalanx::coordinator
