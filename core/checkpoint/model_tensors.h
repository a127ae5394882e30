// core/checkpoint/model_tensors.h: which logical tensors a checkpoint of a model has to hold.
//
// They follow from the model alone: a manifest that says something else of its model than what
// stands in its files is found out before any of it is used.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/manifest.h"
#include "core/job/job_spec.h"

namespace phalanx::checkpoint {

struct ModelTensor {
  std::string module, tensor;  // as in an Entry
  int64_t rows = 0, cols = 1;
  bool trains = true;    // its master and moments are held; else its weights
  bool required = true;  // false: it may be there or not
};

// Of every module and projector of the job, in its order.
std::vector<ModelTensor> TensorsOf(const job::JobSpec& spec);

// The same of a model that a manifest describes. It says nothing of edges without a projector, so
// what a regressor predicts with, which only one that feeds no other module has, is not required.
// `entries`: of all part files; each tensor has one at least. Errors: InvalidArgument if there is
// no such model, or one of more layers than entries.
absl::StatusOr<std::vector<ModelTensor>> TensorsOf(const Model& model, int64_t entries);

}  // namespace phalanx::checkpoint
