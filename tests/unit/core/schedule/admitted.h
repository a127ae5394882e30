// tests/unit/core/schedule/admitted.h: what admission makes of a job on devices of equal memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/plan/memory_estimate.h"
#include "core/schedule/admission.h"
#include "tests/support/specs.h"

namespace phalanx::schedule {

inline support::AJob TwoReplicas() {
  support::AJob job = support::AJob()
                          .Module("language", support::Llama({.layers = 4}), {.tp = 2, .dp = 2})
                          .Batch(16, 8)
                          .Steps(1000);
  job.spec().checkpoint = job::Checkpoint{.directory = "checkpoints", .every = 50};
  return job;
}

// On one node whose devices have `memory` bytes each.
inline absl::StatusOr<plan::Plan> Admitted(const job::JobSpec& spec, int64_t memory) {
  const int32_t world = spec.World();
  return AdmitJob(spec, plan::MakeCluster(1, world),
                  {.devices = std::vector<int64_t>(static_cast<size_t>(world), memory)}, Epoch{1});
}

// Bytes, of the fullest device.
inline int64_t MostOf(const plan::Plan& plan) {
  int64_t most = 0;
  for (const plan::MemoryEstimate& estimate : plan::EstimateMemory(plan))
    most = std::max(most, estimate.total());
  return most;
}

}  // namespace phalanx::schedule
