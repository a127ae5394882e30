#include "worker/train/warm_up.h"

#include <memory>
#include <vector>

#include "core/base/status.h"
#include "worker/train/executor.h"
#include "worker/train/muted.h"

namespace phalanx::train {

absl::Status WarmUpAlone(const plan::Plan& plan, Rank rank, SampleSource& source,
                         TrainingState& state, int64_t length_multiple, WarmPasses& warm) {
  comm::Communicators nobody = SilentCommunicators(plan, rank);
  ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor,
                   Executor::Create(plan, rank, nobody, state));
  Batches batches(plan, executor->places(), source, state.options().device, state.options().compute,
                  length_multiple);
  const std::vector<Microbatch> microbatches = batches.OfStep(1);
  batches.Announce(microbatches, {});
  return executor->RunPassesAlone(batches, microbatches, Executor::Passes::kUnknown, warm);
}

}  // namespace phalanx::train
