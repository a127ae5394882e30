// tests/oracle/processes/held_file.h: what one rank decided and held after each step, in a file, so
// that it gets from the rank's process to the test's. Both are the same program: values are stored
// as they lie in memory. What goes wrong throws std::runtime_error.
#pragma once

#include <string>
#include <vector>

#include "tests/oracle/training/harness.h"

namespace phalanx::oracle {

struct HeldStep {
  train::Decision decision;
  std::vector<HeldPart> parts;  // none: the rank did not look
};

void WriteHeld(const std::string& path, const std::vector<HeldStep>& steps);
std::vector<HeldStep> ReadHeld(const std::string& path);

// The steps of a run, from the file of each rank. Fails the test if ranks decided differently, and
// as PutTogether() for each step that ranks looked at.
std::vector<TrainedStep> PutTogetherHeld(const plan::Plan& plan, int64_t steps,
                                         const std::vector<std::string>& paths);

}  // namespace phalanx::oracle
