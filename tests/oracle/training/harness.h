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
#include "tests/oracle/training/memory_source.h"
#include "worker/train/batches.h"
#include "worker/train/commit.h"
#include "worker/train/part_state.h"

namespace phalanx::oracle {

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
  // Of the rank's own shares, of the sum of losses; zero for what does not train, NaN elsewhere.
  at::Tensor gradients;
  at::Tensor first_moment, second_moment;  // likewise
  at::Tensor weights;
};
HeldPart HeldBy(train::PartState& state);
// Puts together what all ranks hold after one step. Fails the test if two holders of the same
// element differ in a bit of its parameter or its optimizer state, or to more than rounding in its
// gradient, or if nobody holds one.
TrainedStep PutTogether(const plan::Plan& plan, const train::Decision& decision,
                        const std::vector<HeldPart>& parts);

// Runs the plan, or `steps` steps of the spec on spec.World() threads. Fails the test as
// PutTogether.
std::vector<TrainedStep> TrainInProcess(const plan::Plan& plan, const DataShape& data);
std::vector<TrainedStep> TrainInProcess(const job::JobSpec& spec, const DataShape& data,
                                        int64_t steps);

// The same steps by the plain model in one process.
std::vector<TrainedStep> TrainPlain(const job::JobSpec& spec, const DataShape& data, int64_t steps);
// The same on any samples, such as those that a job reads.
std::vector<TrainedStep> TrainPlain(const job::JobSpec& spec, train::SampleSource& source,
                                    int64_t steps);

// The largest error over all tensors, max|a - b| / max(max|b|, s), s the largest |b| over the
// module's tensors of that kind (matrices, vectors). Fails the test if the names differ.
struct WorstTensor {
  std::string name;
  double error = 0;
};
WorstTensor Compare(const NamedTensors& a, const NamedTensors& b);

}  // namespace phalanx::oracle
