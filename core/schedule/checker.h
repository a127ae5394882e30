// core/schedule/checker.h: runs all programs of a step together and proves what must hold.
//
// First the text of each program: every microbatch forward, and backward for the input and for the
// weights where these train, exactly once at every pipeline part of the rank, each behind what it
// needs; every message of every link, gradients only to parts that train; reductions, record,
// decision, optimizer and gathers once and in this order; folds of tied embeddings behind the
// weight passes and before the reductions of both ends, spreads behind the gathers;
// tickets that rise on each communicator, that all ranks agree on, and that are higher than those
// of everything an operation needs.
//
// Then all programs together, in the three models of core/schedule/execution.h: with streams, where
// the messages of each communicator pass a FIFO queue with rendezvous and no buffering, the host
// enqueuing everything at once or waiting for each pass; and with a host that blocks in receives.
// Peers are the exact ones of plan::LinkMessages, microbatch by microbatch. Collectives are a
// rendezvous of the whole group, and so are the passes of a tensor group. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/schedule/program.h"

namespace phalanx::schedule {

struct CheckReport {
  // Of each rank: activations at most, one for each microbatch and pipeline part whose last pass
  // there has not run; a part without a backward pass keeps none.
  std::vector<int32_t> live_activations_max;
};

// `programs` of all ranks of the plan.
// Errors: FailedPrecondition naming ranks and instructions: a deadlock (with what each rank waits
// for), a microbatch that does not pass forward then backward exactly once at every pipeline part
// of every rank, an activation used before it arrived, messages out of ticket order, a missing
// record, decision or reduction.
absl::StatusOr<CheckReport> CheckStep(const plan::Plan& plan, const std::vector<Program>& programs);

// The same for programs of forward passes (BuildEvaluationOf): that they do not deadlock.
absl::Status CheckEvaluation(const plan::Plan& plan, const std::vector<Program>& programs,
                             int64_t microbatches);

}  // namespace phalanx::schedule
