// client/checkpoints.h: `phalanx checkpoints`: what there is to go on from, looked at as files.
//
// No server is asked. Each command returns the process's exit code (client/exit_code.h).
#pragma once

#include <string>

#include "absl/time/time.h"
#include "client/format.h"

namespace phalanx::client {

// `where`: a folder of checkpoints, or a job file, whose checkpoint.directory that is.
int CheckpointsList(const std::string& where, Format format, absl::Time now, Io& io);
// Reads every byte of the checkpoint at `path`.
int CheckpointsVerify(const std::string& path, Format format, Io& io);
// What its manifest says; kWide: of each part file too.
int CheckpointsShow(const std::string& path, Format format, Io& io);

}  // namespace phalanx::client
