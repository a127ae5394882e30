// worker/data/job_data.h: what a job's modules make of its data.
#pragma once

#include <cstdint>
#include <string>

#include "core/job/job_spec.h"
#include "worker/data/data_set.h"

namespace phalanx::data {

// Shapes of items, zeros for a kind that no module of the job reads. A job has at most one module
// of family clip_vision and at most one of family whisper; its regressors share one target.
struct ItemShapes {
  int64_t image_rows = 0;  // positions that an image takes: patches
  int64_t image_size = 0;  // pixels of a side
  int64_t audio_rows = 0;  // positions that a sound takes: frames / 2
  int64_t mel_bins = 0, frames = 0;
  bool targets = false;  // some regressor has a loss: it is a sink of the module graph
  int64_t target_hidden = 0;
};
ItemShapes ItemShapesOf(const job::JobSpec& spec);

// Options of a loader for the job that decodes nothing yet: the caller says what its rank needs.
LoaderOptions LoaderOptionsOf(const job::JobSpec& spec);

// The job's training or validation set; spec.data is given. Relative paths start from `directory`.
DataSetSpec DataSetSpecOf(const job::JobSpec& spec, const std::string& directory, bool validation);

// What nodes that train together compare: of the training index, and of the validation index where
// there is one (empty: none).
std::string DigestOfSets(const std::string& training, const std::string& validation);

}  // namespace phalanx::data
