// client/run.h: `phalanx run`: a whole cluster for one job, gone when the job is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/format.h"

namespace phalanx::client {

struct RunOptions {
  std::string file;
  std::string output;         // empty: what the job file says
  std::vector<int32_t> lost;  // ranks that the job begins without
  std::string programs;       // folder of phalanx-coordinator and phalanx-worker
  bool allow_inject = false;  // faults may be brought about; tells the server's address
};

// Starts, submits, watches, stores what came out (job.json, evaluation.json, logs/rank-N.log beside
// what the ranks write) and ends everything. SIGINT, SIGTERM and SIGHUP cancel the job, SIGTERM
// with a checkpoint if it writes any; a second one does not wait for its end. Must be called before
// the process has other threads. Returns the outcome of the job as an exit code.
int Run(const RunOptions& options, Io& io);

}  // namespace phalanx::client
