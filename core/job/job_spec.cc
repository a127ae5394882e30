#include "core/job/job_spec.h"

#include <algorithm>

namespace phalanx::job {

std::vector<Rung> AllRungs() {
  std::vector<Rung> rungs;
  for (const Rung rung :
       {Rung::kSpare, Rung::kShrink, Rung::kDropReplica, Rung::kRestart, Rung::kWait}) {
    rungs.push_back(rung);
  }
  return rungs;
}

int32_t JobSpec::World() const {
  int32_t world = 0;
  for (const Module& module : modules) {
    world = std::max(world, module.offset + module.parallel.ranks);
  }
  return world;
}

}  // namespace phalanx::job
