// worker/agent/spawn.h: starts one rank process.
//
// The child leads a process group of its own, dies with the thread that called (so call from one
// that lives as long as the daemon), has its end of the rank channel as descriptor kRankChannelFd,
// the page of its life (channel/life_page.h) as kLifePageFd, stdout and stderr on one pipe, no
// other descriptor, no blocked and no ignored signal, and the caller's environment.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/posix/unique_fd.h"
#include "worker/channel/life_page.h"

namespace phalanx::agent {

struct Spawned {
  pid_t pid = 0;  // also of its process group
  UniqueFd pidfd;
  UniqueFd channel;                       // non-blocking
  UniqueFd output;                        // non-blocking; ends when all who hold the pipe are gone
  std::optional<channel::LifePage> life;  // never empty once it is spawned
};

// Returns once the program runs. Errors: NotFound, PermissionDenied, Unavailable: it does not, and
// no process is left.
// `environment`: "NAME=VALUE", each in place of the caller's variable of that name. `arguments`: of
// one that is to be no rank (worker/rank/node_check.h). Of a process that `leaves_no_core` nothing
// of its memory is written anywhere when it dies, also where the kernel hands that to a program.
// Where the caller may leave none itself and cannot raise that, such a program is still started.
absl::StatusOr<Spawned> SpawnRank(const std::string& program,
                                  const std::vector<std::string>& environment = {},
                                  std::vector<std::string> arguments = {},
                                  bool leaves_no_core = false);

}  // namespace phalanx::agent
