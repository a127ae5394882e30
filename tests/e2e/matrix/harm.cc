#include "tests/e2e/matrix/harm.h"

#include <sys/resource.h>

#include <csignal>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/matrix/thread_hold.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {

Harm Kills(std::vector<int32_t> ranks) {
  return [ranks = std::move(ranks)](Scene& scene) { scene.Signal(ranks, SIGKILL); };
}

Harm Crashes(std::vector<int32_t> ranks, int number) {
  return [ranks = std::move(ranks), number](Scene& scene) { scene.Signal(ranks, number); };
}

Harm FillsDisk(std::vector<int32_t> ranks) {
  return [ranks = std::move(ranks)](Scene& scene) {
    const rlimit full{1, RLIM_INFINITY};
    scene.NoteHit();
    for (const int32_t rank : ranks) {
      support::Require(prlimit(scene.PidOf(rank), RLIMIT_FSIZE, &full, nullptr) == 0,
                       "the limit of a file's size is not set");
    }
  };
}

Harm KillsDaemons(std::vector<std::string> nodes) {
  return [nodes = std::move(nodes)](Scene& scene) {
    for (const std::string& node : nodes) scene.SignalDaemon(node, SIGKILL);
  };
}

Harm KillsNode(std::string node) {
  return [node = std::move(node)](Scene& scene) { scene.SignalNode(node, SIGKILL); };
}

Harm KillsCoordinator() {
  return [](Scene& scene) { scene.RestartCoordinator(); };
}

Harm Silences(std::string node) {
  return [node = std::move(node)](Scene& scene) { scene.SignalNode(node, SIGSTOP); };
}

Harm RestartsDaemon(std::string node) {
  return [node = std::move(node)](Scene& scene) {
    scene.SignalDaemon(node, SIGKILL);
    scene.AwaitStepOf(2);
    scene.RestartDaemon(node);
    scene.AwaitEvent("Returned");
  };
}

Harm AwaitsReturn() {
  return [](Scene& scene) { scene.AwaitEvent("Returned"); };
}

Harm PausesDaemon(std::string node, absl::Duration duration) {
  return [=, node = std::move(node)](Scene& scene) {
    scene.SignalDaemon(node, SIGSTOP);
    scene.Pass(duration);
    scene.SignalDaemon(node, SIGCONT);
  };
}

Harm PausesCoordinator(absl::Duration duration) {
  return [=](Scene& scene) {
    scene.cluster().coordinator().Signal(SIGSTOP);
    scene.Pass(duration);
    scene.cluster().coordinator().Signal(SIGCONT);
  };
}

Harm PausesCoordinatorAndKills(absl::Duration duration, int32_t rank) {
  return [=](Scene& scene) {
    scene.cluster().coordinator().Signal(SIGSTOP);
    scene.Signal({rank}, SIGKILL);
    scene.Pass(duration);
    scene.cluster().coordinator().Signal(SIGCONT);
  };
}

Harm PausesDaemonUntilLeftOut(std::string node, std::vector<int32_t> ranks) {
  return [node = std::move(node), ranks = std::move(ranks)](Scene& scene) {
    scene.SignalDaemon(node, SIGSTOP);
    scene.AwaitStepOf(2);
    scene.SignalDaemon(node, SIGCONT);
    scene.AwaitEndOf(ranks);
  };
}

Harm PausesNodeUntilLeftOut(std::string node, std::vector<int32_t> ranks) {
  return [node = std::move(node), ranks = std::move(ranks)](Scene& scene) {
    scene.SignalNode(node, SIGSTOP);
    scene.AwaitStepOf(2);
    scene.Signal(ranks, SIGCONT);
    scene.Pass(absl::Milliseconds(200));
    scene.SignalDaemon(node, SIGCONT);
    scene.AwaitEndOf(ranks);
  };
}

Harm PausesRankAndKills(int32_t paused, int32_t killed) {
  return [=](Scene& scene) {
    scene.Signal({paused}, SIGSTOP);
    scene.Signal({killed}, SIGKILL);
    scene.AwaitStepOf(2);
    scene.Signal({paused}, SIGCONT);
    scene.AwaitEndOf({paused});
  };
}

Harm CutsOff(int32_t rank, absl::Duration duration, std::vector<int32_t> ranks) {
  return [=, ranks = std::move(ranks)](Scene& scene) {
    scene.Inject({.rank = rank,
                  .fault = "partition",
                  .at_step = kAtStep,
                  .duration = absl::FormatDuration(duration)});
    scene.AwaitEndOf(ranks);
  };
}

Harm KillsAndThen(int32_t rank, Harm then) {
  return [=, then = std::move(then)](Scene& scene) {
    scene.Signal({rank}, SIGKILL);
    scene.AwaitReached(1);
    then(scene);
  };
}

Harm SuspendsAndResumes() {
  return [](Scene& scene) {
    scene.Phalanx({"suspend", absl::StrCat("job-", scene.job())});
    scene.cluster().Await(scene.job(), [](const v1::JobStatus& status) {
      return status.phase() == v1::JOB_PHASE_QUEUED;
    });
    scene.Phalanx({"resume", absl::StrCat("job-", scene.job())});
  };
}

// The others have given their records, and their threads that train are held before they see the
// one of this rank; those that carry messages go on.
Harm KillsWhoAloneDecided(int32_t rank, int32_t ranks) {
  return [=](Scene& scene) {
    scene.AwaitReached(1);
    scene.Inject({.rank = rank, .fault = "kill", .phase = "optimizer"});
    scene.Pass(absl::Milliseconds(300));
    std::vector<ThreadHold> holds;
    for (int32_t other = 0; other < ranks; ++other)
      if (other != rank) holds.emplace_back(scene.PidOf(other));
    scene.AwaitEndOf({rank});
    // They are told to leave the epoch before they look at what came in.
    scene.AwaitEpoch(2);
    scene.Pass(absl::Milliseconds(300));
    holds.clear();
    scene.AwaitEvent("Recovered");
    const std::string reached = MessagesOf(scene.cluster(), scene.job(), "FaultReached");
    const int64_t decided = scene.cluster().Incidents(scene.job()).at(0).decided_step();
    support::Require(
        absl::StrContains(reached, absl::StrCat("kill at step ", decided + 1, ", optimizer")),
        absl::StrCat("training went on behind step ", decided,
                     ", which others had decided: ", reached));
  };
}

}  // namespace phalanx::e2e
