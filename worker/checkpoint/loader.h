// worker/checkpoint/loader.h: fills the training state of a rank from a checkpoint.
//
// The layout that wrote it does not matter: a rank looks for the rectangles that its own layout
// gives it. Entries are verified whole before anything of them is used.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/manifest.h"
#include "core/plan/plan.h"
#include "worker/train/training_state.h"

namespace phalanx::checkpoint {

// Where an epoch begins that goes on from the checkpoint.
train::Start StartOf(const Manifest& manifest);
// Of the last decided step, without parts. `store` and `number`: of the job.
Manifest ManifestOf(const plan::Plan& plan, const std::string& store, int64_t number,
                    const train::Decision& decision, const train::Counts& counts);

// Fills all homes, mirrors too, and what does not train; then adopts the checkpoint's start. What
// is needed is found before any of it is read, and that the files hold exactly the job's model.
// `state` is empty (TrainingState::CreateEmpty) and of
// no use after an error. Errors: FailedPrecondition if the job cannot go on from it; DataLoss, with
// the names of file and entry; Cancelled once `stop` is requested, before the next entry is read.
// `below`: as in core/checkpoint_io/folders.h, of each file that is opened.
absl::Status Load(const std::string& checkpoint, const Manifest& manifest, const plan::Plan& plan,
                  train::TrainingState& state, int32_t threads, const std::stop_token& stop,
                  const std::vector<std::string>& below = {});

}  // namespace phalanx::checkpoint
