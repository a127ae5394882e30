#include "worker/train/skipped_steps.h"

#include "absl/strings/str_cat.h"

namespace phalanx::train {

absl::Status SkippedSteps::Add(const Decision& decision) {
  const bool empty = decision.counted_tokens <= 0;
  empty_ = empty ? empty_ + 1 : 0;
  // A step without tokens says nothing about the model.
  if (!empty) not_finite_ = decision.verdict == Verdict::kSkipped ? not_finite_ + 1 : 0;
  if (not_finite_ >= in_a_row_max_) {
    return absl::DataLossError(absl::StrCat("the last ", not_finite_, " steps up to step ",
                                            decision.step, " had gradients that are not finite"));
  }
  if (empty_ >= in_a_row_max_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last ", empty_, " steps up to step ", decision.step,
                     " had no token that counts in the loss: their samples are corrupt, or have "
                     "no text after their last item"));
  }
  return absl::OkStatus();
}

}  // namespace phalanx::train
