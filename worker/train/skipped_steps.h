// worker/train/skipped_steps.h: when steps without an update are too many in a row.
//
// Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/train/commit.h"

namespace phalanx::train {

class SkippedSteps {
 public:
  // `not_finite`: steps in a row, up to the one before the first that is added.
  explicit SkippedSteps(int64_t in_a_row_max, int64_t not_finite = 0)
      : in_a_row_max_(in_a_row_max), not_finite_(not_finite) {}

  // Takes in the decision of the next step. Errors: DataLoss when the last in_a_row_max steps that
  // had tokens had gradients that are not finite; InvalidArgument when the last in_a_row_max steps
  // had no token that counts.
  absl::Status Add(const Decision& decision);

 private:
  int64_t in_a_row_max_;
  int64_t not_finite_ = 0, empty_ = 0;  // in a row
};

}  // namespace phalanx::train
