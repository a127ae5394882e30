// State of several ranks in one process.
#include "absl/strings/str_cat.h"
#include "worker/train/training_state.h"

namespace phalanx::train {

absl::Status TrainingState::TakeOver(const plan::Plan& plan, TrainingState& other) {
  if (!layout_.empty() || other.layout_ != plan.digest) {
    return absl::FailedPreconditionError(
        absl::StrCat("state that lies in ", other.layout_.empty() ? "no layout" : other.layout_,
                     " is to be taken over as of ", plan.digest, ", by state that lies in ",
                     layout_.empty() ? "none" : layout_));
  }
  for (const auto& part : other.parts_) {
    const plan::PartId id{part->place().module, part->place().pp, part->chunk()};
    loose_.Add(plan, *part);
    loose_.Detach(id);  // the flat buffers of a part are one rank's alone
  }
  other.parts_.clear();
  other.layout_.clear();
  other.NumberHomes();
  return absl::OkStatus();
}

}  // namespace phalanx::train
