// tests/oracle/processes/rank_main.h: what a process of the test's world does: connects over Gloo,
// trains, and writes down what it holds after each step.
#pragma once

#include <cstdint>
#include <string>

#include "core/job/job_spec.h"

namespace phalanx::oracle {

// Of the one epoch of these worlds.
inline constexpr int64_t kJob = 1, kEpoch = 1;

// `channel`: a descriptor of a socket to the test, over which ranks find each other as they do over
// their daemon's. Writes `output` by WriteHeld. Throws std::runtime_error.
void RunRank(const job::JobSpec& spec, int32_t rank, int channel, const std::string& output);

}  // namespace phalanx::oracle
