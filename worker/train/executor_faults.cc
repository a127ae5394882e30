// Faults on demand, as the executor brings them about (fault_points.h).
#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "core/base/status.h"
#include "core/posix/activity.h"
#include "worker/model/unwritten.h"
#include "worker/train/executor.h"

namespace phalanx::train {
namespace {

using schedule::Op;

// What faults on demand call it; kAny: they do not.
job::FaultPhase PhaseOf(Op op) {
  switch (op) {
    case Op::kForward:
      return job::FaultPhase::kForward;
    case Op::kBackwardInput:
    case Op::kBackwardWeight:
      return job::FaultPhase::kBackward;
    case Op::kReduce:
      return job::FaultPhase::kReduce;
    case Op::kRecord:
      return job::FaultPhase::kRecord;
    case Op::kOptimize:
      return job::FaultPhase::kOptimizer;
    case Op::kGather:
      return job::FaultPhase::kGather;
    default:
      return job::FaultPhase::kAny;
  }
}

bool HasRows(const at::Tensor& tensor) { return tensor.defined() && tensor.numel() > 0; }

// It is shared, so it is not written to.
void Spoil(at::Tensor& tensor) {
  if (tensor.defined()) tensor = at::full_like(tensor, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

absl::Status Executor::ExecuteFaultily(const BoundInstruction& instruction,
                                       const StepContext& context) {
  FaultPoints& faults = state_.faults();
  const job::FaultPhase phase = PhaseOf(instruction.op);
  if (phase != job::FaultPhase::kAny) RETURN_IF_ERROR(faults.Reach(phase, context.step));
  faulty_step_ = context.step;
  const absl::Cleanup carried = [this] { faulty_step_ = 0; };
  if (phase == job::FaultPhase::kBackward || phase == job::FaultPhase::kReduce)
    SpoilGradients(PartOf(instruction), phase);
  if (!schedule::IsPass(instruction.op)) return Carry(instruction, context);
  const double factor = faults.SlowFactor(context.step);
  const auto begin = std::chrono::steady_clock::now();
  const double waited = SecondsWaited();
  RETURN_IF_ERROR(Carry(instruction, context));
  if (factor <= 1) return absl::OkStatus();
  // What it waited for, such as data, is not slower for it. A device does it later: then it takes
  // what it took before the rank was slowed, and waits for a host that has fallen so far behind.
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() -
                   (SecondsWaited() - waited);
  if (const int32_t at = pacing_.instruction; at >= 0)
    seconds = std::max(seconds, unslowed_.try_emplace(at, run_ahead_.Known(at)).first->second);
  std::this_thread::sleep_for(std::chrono::duration<double>((factor - 1) * seconds));
  return absl::OkStatus();
}

void Executor::SpoilGradients(Part& part, job::FaultPhase phase) {
  const at::Tensor& gradients = part.state->gradients();
  if (!gradients.defined() || part.reduction->begun() > 0 || !Spoils(phase)) return;
  model::ClearUnwritten(gradients);  // else it would be written over
  gradients.fill_(std::numeric_limits<double>::quiet_NaN());
}

absl::StatusOr<model::StageOutput> Executor::ForwardOf(const Part& part,
                                                       const BoundInstruction& instruction,
                                                       const model::StageInput& input) {
  const bool gives =
      instruction.sends > 0 || HasRows(input.label_weights) || HasRows(input.target_weights);
  if (!gives || !Spoils(job::FaultPhase::kForward))
    return part.stage->Forward(instruction.microbatch, input);
  model::StageInput weighed = input;  // the record counts tokens by what was there
  Spoil(weighed.label_weights);
  Spoil(weighed.target_weights);
  ASSIGN_OR_RETURN(model::StageOutput output, part.stage->Forward(instruction.microbatch, weighed));
  for (at::Tensor& hidden : output.hidden) Spoil(hidden);
  return output;
}

}  // namespace phalanx::train
