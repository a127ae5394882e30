// The passes of Executor: what goes into a stage, and what comes out of it.
#include <utility>
#include <vector>

#include "c10/core/StreamGuard.h"
#include "core/base/status.h"
#include "worker/train/executor.h"

namespace phalanx::train {
namespace {

// All that are held to targets read the same ones, so one of them tells of those that cannot be
// used. -1: none is.
int32_t FirstHeldToTargets(const plan::Plan& plan) {
  for (const plan::ModulePlan& module : plan.modules) {
    if (module.index != plan.spec.language && plan.HasLoss(module.index)) return module.index;
  }
  return -1;
}

}  // namespace

// What decoded samples fill. A regressor's target rows count where their sample is valid.
absl::Status Executor::FillFromSamples(const Part& part, const Microbatch& microbatch,
                                       const plan::UnitRange& lane, Flight& flight,
                                       const StepContext& context, model::StageInput& input) {
  Batches& batches = *context.batches;
  const int32_t module = part.place.module;
  std::vector<Batches::CorruptSample> corrupt;
  const auto tell = [&] {
    if (on_corrupt_sample_ == nullptr || part.place.tp != 0) return;
    for (const Batches::CorruptSample& sample : corrupt) on_corrupt_sample_(sample);
  };
  if (job::TraitsOf(plan_.module_spec(module).architecture).encoder()) {
    if (!part.first) return absl::OkStatus();
    RETURN_IF_ERROR(batches.FillEncoder(module, microbatch, lane, input, flight.valid, corrupt));
    tell();
    return absl::OkStatus();
  }
  Batches::DecoderPart what{.module = module, .first = part.first, .loss = part.loss};
  for (int32_t link : part.links_in) {
    if (part.first) what.sources.push_back(plan_.links[static_cast<size_t>(link)].from.module);
  }
  what.leaves = part.last && !plan_.IsSink(module);
  RETURN_IF_ERROR(batches.FillDecoder(what, microbatch, lane, flight.valid, input, corrupt));
  flight.targets_left_out = 0;
  if (module != FirstHeldToTargets(plan_)) return absl::OkStatus();
  flight.targets_left_out = static_cast<int64_t>(corrupt.size());
  tell();
  return absl::OkStatus();
}

absl::Status Executor::FillInput(const Part& part, const Microbatch& microbatch,
                                 const plan::UnitRange& lane, Flight& flight,
                                 const StepContext& context, model::StageInput& input) {
  if (job::TraitsOf(plan_.module_spec(part.place.module).architecture).encoder()) {
    input.batch = context.batches->ItemsOf(part.place.module, microbatch, lane);
  } else {
    const SequenceShape shape = context.batches->ShapeOf(microbatch, lane);
    input.batch = shape.batch;
    input.length = shape.length;
  }
  const int32_t before = timer_->Mark();
  RETURN_IF_ERROR(FillFromSamples(part, microbatch, lane, flight, context, input));
  timer_->Add(StepTimer::Kind::kSamples, before, timer_->Mark());
  std::vector<at::Tensor> rows;
  for (int32_t link : part.links_in) {
    at::Tensor& received = flight.received[link];
    if (!received.defined()) continue;
    rows.push_back(received);
  }
  if (rows.empty()) return absl::OkStatus();
  (part.first ? input.rows : input.hidden) = rows.size() == 1 ? rows[0] : at::cat(rows);
  return absl::OkStatus();
}

void Executor::BeginPasses(int64_t step) {
  if (std::exchange(weights_changed_, false)) {
    for (Part& part : parts_) part.stage->NewWeights();
  }
  for (Part& part : parts_) part.normed = 0;
  timer_->BeginStep(step);
}

absl::Status Executor::AwaitParameters(Part& part, int32_t layer) {
  if (!part.reduction->AwaitsFor(layer)) return absl::OkStatus();
  const int32_t before = timer_->Mark();
  RETURN_IF_ERROR(part.reduction->AwaitFor(layer));
  timer_->Add(StepTimer::Kind::kParameters, before, timer_->Mark());
  return absl::OkStatus();
}

absl::Status Executor::Forward(const BoundInstruction& instruction, const StepContext& context) {
  Part& part = PartOf(instruction);
  RETURN_IF_ERROR(AwaitParameters(part, 0));
  part.layers_begun = 0;
  if (instruction.lane.count == 0) return absl::OkStatus();
  const Microbatch& microbatch = MicrobatchOf(instruction, context);
  Flight& flight = FlightOf(instruction);
  RETURN_IF_ERROR(TakeForward(part, flight));
  model::StageInput input;
  RETURN_IF_ERROR(FillInput(part, microbatch, instruction.lane, flight, context, input));
  // A lane without items has nothing to encode; its samples are valid all the same.
  if (context.batches->RowsOf(instruction.module, microbatch, instruction.lane) > 0) {
    flight.ran = true;
    if (context.training) {
      ASSIGN_OR_RETURN(flight.output, ForwardOf(part, instruction, input));
    } else {
      ASSIGN_OR_RETURN(flight.output, part.stage->Evaluate(input));
    }
    RETURN_IF_ERROR(std::exchange(part.awaited, absl::OkStatus()));
    if (part.loss) AccountLoss(part, flight, input);
    if (part.loss && instruction.module == plan_.spec.language)
      predicted_ = flight.output.predicted;
  }
  flight.received.clear();
  if (instruction.sends == 0) {
    flight.output.hidden.clear();
    return absl::OkStatus();
  }
  if (flags_travel_ && !flight.valid.defined())
    flight.valid = at::ones({instruction.lane.count}, sums_.options().dtype(at::kFloat));
  for (at::Tensor& hidden : flight.output.hidden) {
    if (hidden.defined()) hidden = hidden.contiguous();
  }
  flight.sends_left = instruction.sends;
  flight.ready = Moment::Now(options_.device);
  return absl::OkStatus();
}

// One rank of each replica gives the record its loss; tokens are those of the language module, and
// so are corrupt samples, beside those that lack their targets alone.
void Executor::AccountLoss(const Part& part, const Flight& flight, const model::StageInput& input) {
  if (part.place.tp != 0 || part.place.cp != 0) return;
  if (flight.output.loss_sum.defined()) sums_[1] += flight.output.loss_sum.to(at::kDouble);
  sums_[3] += flight.targets_left_out;
  if (part.place.module != plan_.spec.language) return;
  sums_[2] += input.label_weights.sum(at::kDouble);
  if (flight.valid.defined()) sums_[3] += (1 - flight.valid).sum(at::kDouble);
}

void Executor::LayerBegins(size_t part_index) {
  Part& part = parts_[part_index];
  if (part.awaited.ok()) part.awaited = AwaitParameters(part, ++part.layers_begun);
}

void Executor::LayerDone(size_t part_index) {
  Part& part = parts_[part_index];
  if (part.layers_done < 0 || !part.reduced.ok()) return;
  SpoilGradients(part, job::FaultPhase::kReduce);
  // On CPU it is done when the call returns, and the pass has waited for the slowest rank.
  const bool waits = options_.device.is_cpu();
  const int32_t before = waits ? timer_->Mark() : 0;
  part.reduced = part.reduction->ReduceBehind(++part.layers_done);
  if (waits) timer_->Add(StepTimer::Kind::kCollective, before, timer_->Mark());
  if (part.reduced.ok()) part.reduced = AddNormBeside(part);
}

absl::Status Executor::AddNormBeside(Part& part) {
  if (part.reduction->begun() <= part.normed) return absl::OkStatus();
  ASSIGN_OR_RETURN(const comm::Communicator::Point there, part.groups.data->Mark());
  const c10::OptionalStreamGuard guard(state_.reductions().stream.get());
  RETURN_IF_ERROR(there());
  AddNorm(part, part.reduction->begun());
  normed_ = Moment::Now(options_.device);
  return absl::OkStatus();
}

void Executor::AddNorm(Part& part, size_t end) {
  at::Tensor norm = sums_.narrow(0, 0, 1);
  for (const StateBlock& block : part.state->blocks()) {
    const auto bucket = static_cast<size_t>(block.bucket);
    if (!block.mirrors && bucket >= part.normed && bucket < end)
      state_.kernels().AddSquaredNorm(part.state->gradients(), block, norm);
  }
  part.normed = end;
}

absl::Status Executor::BackwardInput(const BoundInstruction& instruction,
                                     const StepContext& context) {
  Part& part = PartOf(instruction);
  Flight& flight = FlightOf(instruction);
  if (!flight.ran) return absl::OkStatus();
  RETURN_IF_ERROR(TakeBackward(part, flight));
  std::vector<at::Tensor> gradients;
  for (int32_t link : part.links_out) gradients.push_back(flight.received_gradients[link]);
  part.layers_done = instruction.completes && !context.alone ? 0 : -1;
  ASSIGN_OR_RETURN(model::StageOutput output,
                   part.one_backward
                       ? part.stage->Backward(instruction.microbatch, gradients)
                       : part.stage->BackwardInput(instruction.microbatch, gradients));
  RETURN_IF_ERROR(std::exchange(part.reduced, absl::OkStatus()));
  flight.received_gradients.clear();
  if (instruction.sends == 0) return absl::OkStatus();
  for (at::Tensor& hidden : output.hidden) {
    if (hidden.defined()) hidden = hidden.contiguous();
  }
  if (output.rows.defined()) output.rows = output.rows.contiguous();
  flight.input_gradients = std::move(output);
  flight.sends_left = instruction.sends;
  flight.ready = Moment::Now(options_.device);
  return absl::OkStatus();
}

absl::Status Executor::BackwardWeight(const BoundInstruction& instruction) {
  Part& part = PartOf(instruction);
  if (part.one_backward || !FlightOf(instruction).ran) return absl::OkStatus();
  return part.stage->BackwardWeight(instruction.microbatch);
}

}  // namespace phalanx::train
