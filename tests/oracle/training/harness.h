// tests/oracle/training/harness.h: trains a plan with ranks as threads of this process and collects
// what every rank holds, by the names of the unsharded model.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

// Flat buffers in fp64, [elements] each, of the shares of one home: zero for what does not train,
// NaN elsewhere.
struct HeldState {
  at::Tensor gradients;  // of the sum of losses
  at::Tensor master, first_moment, second_moment;
};
// One pipeline part as one rank holds it after a step.
struct HeldPart {
  plan::Place place;
  int32_t chunk = 0;
  std::vector<HeldState> states;  // by block
  at::Tensor weights;             // flat, in fp64
};
HeldPart HeldBy(train::PartState& state);
// Puts together what all ranks hold after one step. Fails the test if two holders of the same
// element differ in a bit of its parameter, its gradient or its optimizer state, if nobody holds
// one, or if it has other than as many homes as the layout says.
TrainedStep PutTogether(const plan::Plan& plan, const train::Decision& decision,
                        const std::vector<HeldPart>& parts);

// The layout that is left of the spec's without these ranks (plan/loss.h), on one node.
absl::StatusOr<plan::Plan> PlanWithout(const job::JobSpec& spec, const plan::RankList& lost,
                                       Epoch epoch = Epoch{1});

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
