// tests/oracle/training/harness.h: trains a plan with ranks as threads of this process and collects
// what every rank holds, by the names of the unsharded model.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/job/job_spec.h"
#include "core/plan/plan.h"
#include "tests/oracle/plain_model.h"
#include "worker/train/batches.h"
#include "worker/train/commit.h"
#include "worker/train/module_state.h"

namespace phalanx::oracle {

// A data set in memory: random tokens and pixels, 0 to `items_max` images a sample, captions of unequal
// length. A pure function of its arguments.
struct DataShape {
  int64_t samples = 64;
  int64_t vocabulary = 96;
  int64_t rows_per_item = 0;  // 0: no items
  int64_t image_size = 0;
  int32_t items_min = 0, items_max = 2;
  int32_t text_min = 3, text_max = 9;
  // This sample's image does not decode; -1: none.
  int64_t corrupt_sample = -1;
};
std::unique_ptr<train::SampleSource> MakeData(const DataShape& shape);
// What fits the spec's modules.
DataShape DataShapeOf(const job::JobSpec& spec);

// Tensors in fp64, [rows, cols] each, vectors too.
struct TrainedStep {
  train::Decision decision;
  NamedTensors gradients;   // of the mean loss, before clipping
  NamedTensors parameters;  // after the step
};

// One pipeline part as one rank holds it after a step: flat buffers in fp64, [elements] each.
struct HeldPart {
  plan::Place place;
  int32_t chunk = 0;
  at::Tensor gradients;  // of the rank's own shard, of the sum of losses; NaN elsewhere
  at::Tensor weights;
};
HeldPart HeldBy(train::ModuleState& state);
// Puts together what all ranks hold after one step. Fails the test if two holders of the same element
// disagree, or if nobody holds one.
TrainedStep PutTogether(const plan::Plan& plan, const train::Decision& decision, const std::vector<HeldPart>& parts);

// Runs `steps` steps of the spec on spec.World() threads. Fails the test if two holders of the same
// element disagree.
std::vector<TrainedStep> TrainInProcess(const job::JobSpec& spec, const DataShape& data, int64_t steps);

// The same steps by the plain model in one process.
std::vector<TrainedStep> TrainPlain(const job::JobSpec& spec, const DataShape& data, int64_t steps);
// The same on any samples, such as those that a job reads.
std::vector<TrainedStep> TrainPlain(const job::JobSpec& spec, train::SampleSource& source, int64_t steps);

// The largest error over all tensors, max|a - b| / max(max|b|, s), s the largest |b| over the module's
// tensors of that kind (matrices, vectors). Fails the test if the names differ.
struct WorstTensor {
  std::string name;
  double error = 0;
};
WorstTensor Compare(const NamedTensors& a, const NamedTensors& b);

}  // namespace phalanx::oracle
