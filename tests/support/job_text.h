// tests/support/job_text.h: the job file of a small language model on CPU devices, for tests and
// benchmarks in which nobody trains it: what it names as its data is not there.
#pragma once

#include <cstdint>
#include <string>

namespace phalanx::support {

struct SmallJob {
  std::string name = "a";
  int64_t steps = 10;
  int32_t ranks = 1, tp = 1;
  int32_t global = 4, micro = 2;  // samples of a batch, and of a microbatch
  bool recovers = true;           // false: it ends with the loss of any device
};
std::string JobText(const SmallJob& job);

}  // namespace phalanx::support
