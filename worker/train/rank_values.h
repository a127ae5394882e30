// worker/train/rank_values.h: small values that all ranks at work tell one another.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace phalanx::train {

// What every rank of the control communicator has, in its order: the same number of values on each.
// nullptr: this rank is alone. Waits for the device.
absl::StatusOr<std::vector<std::vector<double>>> GatherOverRanks(comm::Communicator* control,
                                                                 at::Device device,
                                                                 const std::vector<double>& values);
// Sums in rank order, the same bits everywhere.
absl::StatusOr<std::vector<double>> SumOverRanks(comm::Communicator* control, at::Device device,
                                                 const std::vector<double>& values);

}  // namespace phalanx::train
