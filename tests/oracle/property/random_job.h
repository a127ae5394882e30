// tests/oracle/property/random_job.h: valid jobs of every kind, each a pure function of a seed.
#pragma once

#include <cstdint>
#include <string>

#include "core/job/job_spec.h"
#include "tests/oracle/training/memory_source.h"

namespace phalanx::oracle {

struct RandomJob {
  job::JobSpec spec;  // fp64, at most kRandomWorldMax ranks
  DataShape data;
  std::string text;  // what it is, for messages
};
inline constexpr int32_t kRandomWorldMax = 8;

// Draws modules, graph, layouts, placement, schedule, microbatches, numbers of items, what is
// frozen and what is recomputed, until core/plan accepts them.
RandomJob DrawJob(uint64_t seed);

}  // namespace phalanx::oracle
