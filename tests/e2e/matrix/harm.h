// tests/e2e/matrix/harm.h: what is done to processes while they train.
//
// Each takes its time, and returns once the job has had what the row is about; what becomes of it
// is for others to see.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/e2e/matrix/scene.h"

namespace phalanx::e2e {

using Harm = std::function<void(Scene&)>;

Harm Kills(std::vector<int32_t> ranks);
// As if they had brought the signal upon themselves.
Harm Crashes(std::vector<int32_t> ranks, int number);
// What they write may grow no more.
Harm FillsDisk(std::vector<int32_t> ranks);
Harm KillsDaemons(std::vector<std::string> nodes);
// The daemon and its ranks, at once.
Harm KillsNode(std::string node);
Harm KillsCoordinator();
// Its processes stand still for good: what a node without power looks like to others.
Harm Silences(std::string node);

// As KillsDaemons; another one is started where training has gone on, and its ranks come back.
Harm RestartsDaemon(std::string node);
// A fault that was asked for has cost ranks; they come back.
Harm AwaitsReturn();

// Stops the daemon for so long.
Harm PausesDaemon(std::string node, absl::Duration duration);
Harm PausesCoordinator(absl::Duration duration);
// The rank is killed meanwhile.
Harm PausesCoordinatorAndKills(absl::Duration duration, int32_t rank);
// The daemon stands still until training has gone on without its ranks.
Harm PausesDaemonUntilLeftOut(std::string node, std::vector<int32_t> ranks);
// So do its ranks, which go on before it.
Harm PausesNodeUntilLeftOut(std::string node, std::vector<int32_t> ranks);
// One rank stands still, another is killed, and the first goes on once they are left out.
Harm PausesRankAndKills(int32_t paused, int32_t killed);

// A partition of the rank's node for so long. Its ranks are those given: once it is over they are
// told that others went on without them, and end.
Harm CutsOff(int32_t rank, absl::Duration duration, std::vector<int32_t> ranks);

// Kills the rank and, where the fault of another has come about, does the other thing.
Harm KillsAndThen(int32_t rank, Harm then);

// `phalanx suspend`, and `phalanx resume` once its devices are free.
Harm SuspendsAndResumes();

// Of a rank that waits where it is about to give its record: it decides the step alone, and dies.
Harm KillsWhoAloneDecided(int32_t rank, int32_t ranks);

}  // namespace phalanx::e2e
