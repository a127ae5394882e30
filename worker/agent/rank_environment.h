// worker/agent/rank_environment.h: the variables that a job's ranks run with, beside the daemon's.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace phalanx::agent {

struct RankVariables {
  std::vector<std::string> all;  // "NAME=VALUE"
  bool has_secrets = false;
};

// Those of `env` and `secrets` in the job file `document`, but for those that may not be set (any
// more), which the log then says: what names another folder is no secret of this node, whoever
// accepted the job. A secret is what its file in the folder `secrets` holds, without line ends
// behind it; an empty `secrets`: the node has none. Nobody keeps the values but the processes that
// get them.
// Errors: those of wire::ReadJobFile; InvalidArgument with a violation for every secret that is not
// there, longer than 64 KiB, or no text. None of them says what a file holds. Thread-safe.
absl::StatusOr<RankVariables> RankEnvironment(const std::string& document,
                                              const std::string& secrets);

}  // namespace phalanx::agent
