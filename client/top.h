// client/top.h: `phalanx top`: live nodes and jobs, redrawn on a terminal or told once.
#pragma once

#include "absl/time/time.h"
#include "client/connection.h"
#include "client/format.h"
#include "client/watch.h"

namespace phalanx::client {

struct TopOptions {
  Format format = Format::kTable;
  bool terminal = false;                       // io.out is one, and may be redrawn
  absl::Duration interval = absl::Seconds(2);  // between two drawings
};

// Draws the 100 newest live jobs and all nodes until it is stopped. JSON, YAML and names are one
// sample, and need no terminal. Returns the exit code: kUsage for a table that has none.
int Top(Connection& connection, const TopOptions& options, Stopper& stopper, Io& io);

}  // namespace phalanx::client
