// worker/rank/rank_figures.h: what one rank measured of itself over a run, for benchmarks and people:
// OUTPUT/ranks/rank-N.json.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/train/trainer.h"

namespace phalanx::rank {

// The first steps are slow for reasons of their own and count in nothing.
inline constexpr int64_t kWarmupSteps = 10;

class RankFigures {
 public:
  void Add(const train::StepSummary& step);
  // Errors: what the file system says, naming the path.
  absl::Status Write(const std::string& output, int32_t rank, int64_t memory_bytes) const;

 private:
  int64_t steps_ = 0;
  double step_seconds_ = 0, busy_seconds_ = 0, exposed_comm_seconds_ = 0;
  double previous_seconds_ = 0;  // of the step whose figures come with the next one
};

// Peak resident bytes of this process.
int64_t ResidentBytesMax();

}  // namespace phalanx::rank
