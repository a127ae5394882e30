// worker/train/rank_values.h: small values that all ranks at work tell one another.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "worker/train/executor.h"

namespace phalanx::train {

// What every rank of the executor's control communicator has, in its order: the same number of
// values on each. Waits for the device. Errors: as Executor::Await.
absl::StatusOr<std::vector<std::vector<double>>> GatherOverRanks(Executor& executor,
                                                                 const std::vector<double>& values);
// Sums in rank order, the same bits everywhere.
absl::StatusOr<std::vector<double>> SumOverRanks(Executor& executor,
                                                 const std::vector<double>& values);

}  // namespace phalanx::train
