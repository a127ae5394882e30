// tests/gpu/train/cuda_rank.h: what a process of the test's world does: trains over NCCL, ends
// epochs where it is told to and goes on in the same process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job_spec.h"
#include "core/plan/plan.h"
#include "tests/gpu/ranks.h"
#include "worker/train/run_ahead.h"

namespace phalanx::oracle {

struct CudaRun {
  std::string name;  // no other run of the world has it
  job::JobSpec spec;
  // In the layout without these ranks, which have no process: those that are left are the
  // processes of the world, in ascending order.
  plan::RankList lost = {};
  // Each ends an epoch: once rank 0 knows that the step is decided, every rank stops at whatever it
  // is doing then. Ascending.
  std::vector<int64_t> stops;
  // Once rank 1 knows that this step is decided, its device fails, and the run ends there. 0:
  // never.
  int64_t fails_at = 0;
  double run_ahead = train::RunAhead::kSecondsMax;  // seconds
};

// Trains to the last step and writes `output` by WriteHeld: what was told of each step, and what
// the rank holds after the last and, of a run without stops, after each of the first twenty;
// nothing if the run is to fail. Throws std::runtime_error.
void TrainOnCuda(const CudaRun& run, const gpu::ForkedRank& me, const std::string& output);

}  // namespace phalanx::oracle
