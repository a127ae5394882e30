// worker/data/job_data.h: what a job's modules make of its data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job_spec.h"
#include "worker/data/data_set.h"

namespace phalanx::data {

// What modules read of a sample. Those that predict share one target.
struct ItemShapes {
  std::vector<Encoder> encoders;  // in the order of modules
  bool targets = false;  // some module that predicts has a loss: it is a sink of the module graph
  int64_t target_hidden = 0;

  // Index into `encoders`, -1 where the module is none.
  int32_t EncoderOf(int32_t module) const;
};
ItemShapes ItemShapesOf(const job::JobSpec& spec);

// The job's training or validation set; spec.data is given. Relative paths start from `directory`.
DataSetSpec DataSetSpecOf(const job::JobSpec& spec, const std::string& directory, bool validation);

// What nodes that train together compare: of the training index, and of the validation index where
// there is one (empty: none).
std::string DigestOfSets(const std::string& training, const std::string& validation);

}  // namespace phalanx::data
