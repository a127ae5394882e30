// tests/sim/scale/static_losses.h: so many devices of one job are gone, at random: what is left of
// its throughput, on average over many draws.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/sim/scale/workload.h"

namespace phalanx::scale {

// Means over the draws.
struct StaticRow {
  Policy policy = Policy::kOwn;
  double failed = 0;  // share of the devices
  int32_t lost = 0;   // devices
  double replicas = 0, narrowed = 0;
  int32_t narrowest = 0;          // of all draws
  double work_lost = 0;           // share of the healthy job's
  std::vector<double> step_lost;  // the same of the simulated step, by samples a replica
};

// By share, then by policy. `samples`: of a step for each replica.
std::vector<StaticRow> LoseAtRandom(const Workload& workload, const std::vector<Policy>& policies,
                                    const std::vector<double>& shares,
                                    const std::vector<int64_t>& samples, int32_t draws,
                                    uint64_t seed);

}  // namespace phalanx::scale
