// client/rank_list.h: ranks as flags name them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace phalanx::client {

// "3" and "1,2" name ranks 3, 1 and 2. Whether a job has them is for its plan to say. Errors:
// InvalidArgument for a list that is empty or has an item that is no whole number.
absl::StatusOr<std::vector<int32_t>> ParseRanks(absl::Span<const std::string> lists);

}  // namespace phalanx::client
