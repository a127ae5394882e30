// tests/oracle/processes/world.h: trains a job with one process a rank, over Gloo.
#pragma once

#include <string>
#include <vector>

#include "core/job/job_spec.h"
#include "tests/oracle/training/harness.h"

namespace phalanx::oracle {

// Runs `program` once a rank of the spec, with the arguments "--rank NAME R CHANNEL OUTPUT": it is
// to call RunRank with them and the same spec. Returns what the ranks held after each of spec.steps
// steps. Every process dies with the test and is reaped, every wait has a deadline. Fails the test
// with what a rank said that did not end well; throws std::runtime_error where there is nothing to
// return.
std::vector<TrainedStep> TrainInProcesses(const job::JobSpec& spec, const std::string& program,
                                          const std::string& name);

}  // namespace phalanx::oracle
