// client/logs.h: what the ranks of a job wrote, read once or followed.
//
// A follower reads on until the job has ended, over restarts of the coordinator and new epochs:
// each line comes with the place behind it, and a stream that is opened again goes on there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/connection.h"
#include "client/format.h"
#include "client/watch.h"

namespace phalanx::client {

struct LogsOptions {
  std::string job;
  std::vector<int32_t> ranks;        // with those of `modules`; both empty: all
  std::vector<std::string> modules;  // of the job file
  std::vector<std::string> nodes;    // only what ranks wrote there; empty: anywhere
  int64_t epoch = 0;                 // what was written in it alone; 0: in any
  bool previous = false;             // in the epoch before the job's last one
  bool follow = false;
  int32_t tail = 0;
  bool raw = false;  // what ranks wrote, as they wrote it; else as TerminalText
  // What ranks wrote before is left out, by their nodes' clocks. A line without a time of its own
  // has that of the one before it; where there is none either it is shown.
  std::optional<absl::Time> since;
  bool timestamps = false;  // each line with its time; else those that have one without it
};

// `previous` does not go with `follow`. Returns the exit code. A follower asks again
// while less than the connection's timeout has passed without an answer.
int Logs(Connection& connection, const LogsOptions& options, Stopper& stopper, Io& io);

}  // namespace phalanx::client
