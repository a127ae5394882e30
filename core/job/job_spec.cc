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

bool JobSpec::WritesCheckpointsOnTheWay() const {
  return checkpoint.has_value() && checkpoint->every > 0 && checkpoint->every < steps;
}

bool JobSpec::HasOpenLayout() const {
  return std::any_of(modules.begin(), modules.end(),
                     [](const Module& module) { return module.parallel.automatic; });
}

int64_t JobSpec::PositionsOfItem(int32_t module) const {
  const FamilyTraits& family = TraitsOf(modules[static_cast<size_t>(module)].architecture);
  if (!family.encoder()) return 0;
  int64_t positions = 0;
  for (const Module& other : modules) {
    if (TraitsOf(other.architecture).modality != family.modality) continue;
    const int64_t rows = RowsOfItem(other.architecture);
    if (rows == 0) return 0;
    positions += rows;
  }
  return positions;
}

}  // namespace phalanx::job
