// Executor before the first step of an epoch: kernels and parameters are made ready.
#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/parameters.h"
#include "core/plan/shares.h"
#include "worker/model/weight_work.h"
#include "worker/train/attention_shapes.h"
#include "worker/train/await_work.h"
#include "worker/train/device_wait.h"
#include "worker/train/executor.h"
#include "worker/train/mirror_check.h"

namespace phalanx::train {

using schedule::Op;

// Each matrix once, whatever the number of layers that have one like it.
std::string Executor::MatricesOf(const PartState& state) {
  std::set<std::string> matrices;
  for (const plan::LocalMatrix& matrix : state.parameters().matrices) {
    matrices.insert(absl::StrCat(" ", plan::RoleName(matrix.role), matrix.edge, ":", matrix.rows,
                                 "x", matrix.cols, matrix.transposed ? "t" : "",
                                 matrix.trains ? "" : "f"));
  }
  std::string text;
  for (const std::string& matrix : matrices) absl::StrAppend(&text, matrix);
  return text;
}

std::string Executor::ShapeOf(const Part& part, int64_t samples) const {
  return absl::StrCat(part.place.module, part.first ? " first" : "", part.last ? " last" : "",
                      part.trains.weights ? " weights" : "", part.trains.inputs ? " inputs" : "",
                      part.one_backward ? " one" : "", " of ", part.place.width, ", ", samples,
                      " samples", part.matrices);
}

absl::Status Executor::RunAlone(const std::set<int32_t>& microbatches, const StepContext& context) {
  if (microbatches.empty()) return absl::OkStatus();
  BeginPasses(context.step);
  ahead_.Begin();
  const absl::Span<const BoundInstruction> program = bound_program_.instructions;
  for (size_t i = 0; i < program.size();) {
    if (state_.stop_requested()) return absl::CancelledError("asked to stop");
    const bool runs = schedule::IsMessage(program[i].op) || schedule::IsPass(program[i].op);
    if (!runs || !microbatches.contains(program[i].microbatch)) {
      ++i;
      continue;
    }
    RETURN_IF_ERROR(AwaitRoom(static_cast<int32_t>(i), context));
    ASSIGN_OR_RETURN(const size_t done, Execute(program, i, context));
    i += done;
  }
  flights_.clear();
  return FinishMessages();
}

absl::Status Executor::RunPassesAlone(Batches& batches, const std::vector<Microbatch>& microbatches,
                                      Passes which, WarmPasses& known) {
  // A process that has trained does not try what is new: it is in a recovery.
  if (!known.program()) {
    RETURN_IF_ERROR(PrepareAttention(plan_, batches, places(), options_,
                                     [this] { return state_.stop_requested(); }));
  }
  // All parts of the rank run a microbatch: they hand it on.
  std::map<int32_t, std::set<std::string>> shapes;  // by microbatch
  for (const BoundInstruction& pass : bound_program_.instructions) {
    if (pass.op == Op::kForward && pass.lane.count > 0)
      shapes[pass.microbatch].insert(ShapeOf(PartOf(pass), pass.lane.count));
  }
  const bool fills_up = batches.FillsUpLabelled() &&
                        std::any_of(parts_.begin(), parts_.end(), [this](const Part& part) {
                          return part.loss && part.place.module == plan_.spec.language;
                        });
  std::set<std::string> unknown;
  std::set<int32_t> to_run, with_all_rows;  // microbatches
  for (const auto& [microbatch, of] : shapes) {
    for (const std::string& shape : of) {
      const bool is_new = !known.Has(shape) && unknown.insert(shape).second;
      if (is_new || which == Passes::kEvery) to_run.insert(microbatch);
      if (is_new && fills_up) with_all_rows.insert(microbatch);
    }
  }
  if (to_run.empty()) return absl::OkStatus();
  const StepContext context{
      .batches = &batches, .microbatches = &microbatches, .decides = false, .alone = true};
  muted_ = true;
  const absl::Cleanup heard = [this] { muted_ = false; };
  const model::ProductsInBothWays both;  // a step writes the first of each, and adds the others
  batches.ListAllRows(true);
  const absl::Status largest = RunAlone(with_all_rows, context);
  batches.ListAllRows(false);
  RETURN_IF_ERROR(largest);
  RETURN_IF_ERROR(RunAlone(to_run, context));
  RETURN_IF_ERROR(AwaitWork(*this, "the kernels that are tried have not all run"));
  for (const std::string& shape : unknown) known.Add(shape);
  known.CountMicrobatches(static_cast<int64_t>(to_run.size() + with_all_rows.size()));
  return absl::OkStatus();
}

absl::Status Executor::RunUndecided(Batches& batches, const std::vector<Microbatch>& microbatches) {
  return RunProgram({.batches = &batches, .microbatches = &microbatches, .decides = false},
                    [] { return absl::OkStatus(); });
}

absl::Status Executor::RestoreParameters() {
  weights_changed_ = true;
  for (Part& part : parts_) {
    if (part.state->trains()) RETURN_IF_ERROR(part.reduction->Gather());
  }
  RETURN_IF_ERROR(AwaitParts());
  for (auto& [module, ends] : ties_) RETURN_IF_ERROR(ends.Spread());
  for (Part& part : parts_) RETURN_IF_ERROR(part.reduction->VerifyCopies());
  return CheckMirrors(plan_, state_, control_);
}

absl::Status Executor::UpdateEverywhere() {
  if (state_.Lacks()) return absl::InternalError("a mirror of this rank lacks some of its state");
  for (Part& part : parts_) part.everywhere = plan::EveryReplicaIsHome(plan_, part.place.module);
  return absl::OkStatus();
}

absl::Status Executor::Await(absl::FunctionRef<bool()> done, absl::Duration patience,
                             absl::string_view missing) {
  const auto check = [this] {
    RETURN_IF_ERROR(state_.kernels().Check());
    for (comm::Communicator* communicator : communicators_) RETURN_IF_ERROR(communicator->Check());
    return absl::OkStatus();
  };
  const auto begin = std::chrono::steady_clock::now();
  absl::Status waited = AwaitDevice({.done = done,
                                     .stopped = [this] { return state_.stop_requested(); },
                                     .check = check,
                                     .excused = [this] { return state_.IsRead(); },
                                     .patience = patience,
                                     .missing = missing});
  seconds_waited_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return waited;
}

absl::Status Executor::AwaitParts() {
  for (Part& part : parts_) RETURN_IF_ERROR(part.reduction->Await());
  return absl::OkStatus();
}

}  // namespace phalanx::train
