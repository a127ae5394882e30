// worker/train/skipped_steps.h: when steps without an update are too many in a row.
//
// Steps that are not finite are counted by the state, over epochs (training_state.h); steps in
// which no token counts are counted here, in the present epoch.
//
// Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/train/commit.h"

namespace phalanx::train {

class SkippedSteps {
 public:
  explicit SkippedSteps(int64_t in_a_row_max) : in_a_row_max_(in_a_row_max) {}

  // Takes in the decision of the next step; `skipped_in_a_row` as in Counts, up to that step.
  // Errors: DataLoss, of the kind kNonFinite, when the last in_a_row_max steps that were not empty
  // were skipped; InvalidArgument, of the kind kDataInvalid, when the last in_a_row_max steps were
  // empty.
  absl::Status Add(const Decision& decision, int64_t skipped_in_a_row);

 private:
  int64_t in_a_row_max_;
  int64_t empty_ = 0;  // in a row
};

}  // namespace phalanx::train
