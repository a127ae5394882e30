#include "worker/train/skipped_steps.h"

#include "absl/strings/str_cat.h"
#include "core/job/failure.h"

namespace phalanx::train {

absl::Status SkippedSteps::Add(const Decision& decision, int64_t skipped_in_a_row) {
  empty_ = decision.verdict == Verdict::kEmpty ? empty_ + 1 : 0;
  if (skipped_in_a_row >= in_a_row_max_) {
    return job::WithKind(
        job::FailureKind::kNonFinite,
        absl::DataLossError(absl::StrCat("the last ", skipped_in_a_row, " steps up to step ",
                                         decision.step, " had gradients that are not finite")));
  }
  if (empty_ >= in_a_row_max_) {
    return job::WithKind(job::FailureKind::kDataInvalid,
                         absl::InvalidArgumentError(absl::StrCat(
                             "the last ", empty_, " steps up to step ", decision.step,
                             " had no token that counts in the loss: their samples are corrupt, or "
                             "have no text after their last item")));
  }
  return absl::OkStatus();
}

}  // namespace phalanx::train
