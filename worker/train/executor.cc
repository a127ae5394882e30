#include "worker/train/executor.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/activations.h"
#include "core/plan/derivation.h"
#include "core/posix/activity.h"
#include "worker/model/unwritten.h"
#include "worker/train/begin_gradients.h"
#include "worker/train/muted.h"

namespace phalanx::train {

using schedule::Op;

namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// A device that finishes nothing for so long waits for a peer that does not come.
constexpr absl::Duration kRoomWaitMax = absl::Minutes(10);
// A device that finishes no layer for as long waits for a peer.
constexpr std::chrono::duration<double> kStandstill{RunAhead::kSecondsMax};
constexpr int32_t kEvaluation = -1;  // for RunAhead: all of an evaluation's program
// In a record: no decision can come of it.
constexpr int64_t kNoEpoch = 0;

bool IsCompute(Op op) {
  return op == Op::kForward || op == Op::kBackwardInput || op == Op::kBackwardWeight ||
         op == Op::kOptimize;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const plan::Plan& plan, Rank rank,
                                                           comm::Communicators& communicators,
                                                           TrainingState& state) {
  std::unique_ptr<Executor> executor(new Executor(plan, rank, state));
  RETURN_IF_ERROR(executor->Build(communicators));
  return executor;
}

Executor::Groups Executor::SortCommunicators(comm::Communicators& communicators) {
  using Use = plan::CommunicatorSpec::Use;
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan_);
  Groups groups;
  for (size_t i = 0; i < specs.size(); ++i) {
    comm::Communicator* communicator = communicators[i].get();
    if (communicator == nullptr) continue;
    communicators_.push_back(communicator);
    communicator_entries_.push_back(static_cast<int32_t>(i));
    const auto number = [&](std::map<Rank, int32_t>& peers) {
      for (size_t p = 0; p < specs[i].ranks.size(); ++p)
        peers[specs[i].ranks[p]] = static_cast<int32_t>(p);
    };
    switch (specs[i].use) {
      case Use::kControl:
        control_ = communicator;
        number(control_peer_);
        break;
      case Use::kForward:
        groups.forward = communicator;
        number(tables_.forward_peers);
        break;
      case Use::kBackward:
        groups.backward = communicator;
        number(tables_.backward_peers);
        break;
      case Use::kTensor:
        groups.tensor[specs[i].ranks] = communicator;
        break;
      case Use::kData:
        groups.data[specs[i].ranks] = communicator;
        break;
    }
  }
  return groups;
}

absl::Status Executor::Build(comm::Communicators& communicators) {
  const Groups groups = SortCommunicators(communicators);
  forward_ =
      std::make_unique<MessageStream>(groups.forward, options_.device, state_.forward_stream());
  backward_ =
      std::make_unique<MessageStream>(groups.backward, options_.device, state_.backward_stream());
  auto find = [](const std::map<plan::RankList, comm::Communicator*>& groups,
                 const plan::RankList& ranks) {
    auto it = groups.find(ranks);
    return it == groups.end() ? nullptr : it->second;
  };
#ifdef PHALANX_WITH_CUDA
  timer_ =
      std::make_unique<StepTimer>(options_.device.is_cuda() ? MakeCudaMarks() : MakeCpuMarks());
#else
  timer_ = std::make_unique<StepTimer>(MakeCpuMarks());
#endif
  for (const int32_t entry : communicator_entries_)
    operation_timers_.push_back(std::make_unique<OperationTimer>(*timer_, entry));
  for (const auto& state : state_.parts()) {
    const plan::Place& place = state->place();
    PartGroups of_part;
    of_part.tensor =
        find(groups.tensor, plan_.TensorGroup(place.module, place.dp, place.pp, place.cp));
    of_part.data = find(groups.data, plan_.DataGroupOf(place));
    RETURN_IF_ERROR(AddPart(*state, of_part));
  }
  RETURN_IF_ERROR(BindProgram());
  BindReductions();
  run_ahead_ = RunAhead(state_.kernels().progress(), options_.run_ahead);
  const at::TensorOptions on_device = at::TensorOptions().device(options_.device);
  sums_ = at::zeros({4}, on_device.dtype(at::kDouble));
  const int64_t members = control_ == nullptr ? 1 : control_->size();
  records_ =
      at::zeros({members * static_cast<int64_t>(sizeof(Record))}, on_device.dtype(at::kByte));
  if (!absl::SimpleHexAtoi(plan_.digest.substr(0, 16), &plan_digest_)) plan_digest_ = 0;
  flags_travel_ = !plan_.spec.edges.empty();
  return absl::OkStatus();
}

absl::Status Executor::BindProgram() {
  ASSIGN_OR_RETURN(program_, schedule::BuildStepOf(plan_, rank_));
  evaluation_program_ = schedule::BuildEvaluationOf(plan_, rank_, 1);
  std::vector<plan::MicrobatchSamples> microbatches;
  for (int64_t m = 0; m < plan_.microbatches; ++m)
    microbatches.push_back(plan::SamplesOfMicrobatch(plan_, m));
  bound_program_ = Bind(plan_, rank_, program_, tables_, microbatches);
  ahead_ = MessagesAhead(bound_program_.instructions);
  return absl::OkStatus();
}

absl::Status Executor::AddPart(PartState& state, const PartGroups& groups) {
  const plan::Place& place = state.place();
  const int32_t chunk = state.chunk();
  const plan::ModulePlan& module = plan_.modules[static_cast<size_t>(place.module)];
  Part part;
  part.place = place;
  part.chunk = chunk;
  part.trains = module.TrainsOf(place.pp, chunk);
  part.first = module.IsFirst(place.pp, chunk);
  part.last = module.IsLast(place.pp, chunk);
  part.loss = part.last && plan_.HasLoss(place.module);
  part.one_backward = plan::BackwardIsOne(plan_, {place.module, place.pp, chunk});
  part.links_in = plan_.LinksInto({place.module, place.pp, chunk});
  part.links_out = plan_.LinksOutOf({place.module, place.pp, chunk});
  part.state = &state;
  part.matrices = MatricesOf(state);
  part.groups = groups;
  if (groups.tensor != nullptr) {
    muted_groups_.push_back(MakeMuted(*groups.tensor, muted_));
    timed_.push_back(MakeTimed(*muted_groups_.back(), *timer_));
    part.tensor = timed_.back().get();
  }
  const model::StageOptions options{.device = options_.device,
                                    .compute = options_.compute,
                                    .gradient = GradientType(options_.compute),
                                    .pace = [this] { Pace(); },
                                    .layer_begins = [this, at = parts_.size()] { LayerBegins(at); },
                                    .layer_done = [this, at = parts_.size()] { LayerDone(at); }};
  ASSIGN_OR_RETURN(part.stage, model::MakeStage(plan_, place, chunk, part.state->parameters(),
                                                part.state->weights(), part.state->gradients(),
                                                part.tensor, options));
  tables_.part_of[{place.module, chunk}] = static_cast<int32_t>(parts_.size());
  tables_.places.push_back(place);
  parts_.push_back(std::move(part));
  return absl::OkStatus();
}

void Executor::BindReductions() {
  for (size_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    part.reduction = std::make_unique<PartReduction>(
        bound_program_.reductions.empty() ? plan::Reduction() : bound_program_.reductions[p],
        *part.state, part.groups, state_.reductions(),
        plan_.layout.derivation >= plan::kDerivationOfForwardGathers
            ? PartReduction::Order::kForward
            : PartReduction::Order::kStored,
        plan_.layout.derivation >= plan::kDerivationOfWordSums ? PartReduction::Sums::kOfWords
                                                               : PartReduction::Sums::kOfElements);
  }
  // The two ends of a tied embedding may be parts of one rank, or of two.
  for (const auto& [module, copies] : bound_program_.ties) {
    CopyExchange exchange(control_);
    for (const plan::Copy& copy : copies) {
      const Rank lead = plan_.RankOf(copy.lead), follower = plan_.RankOf(copy.follower);
      exchange.Add(copy, lead == rank_ ? PartOf(module, copy.lead_chunk).state : nullptr,
                   follower == rank_ ? PartOf(module, copy.chunk).state : nullptr,
                   lead == follower ? -1 : control_peer_.at(lead == rank_ ? follower : lead));
    }
    ties_.emplace(module, std::move(exchange));
  }
}

absl::Status Executor::RunStep(int64_t step, Batches& batches,
                               const std::vector<Microbatch>& microbatches,
                               const std::function<absl::Status()>& previous_decided) {
  return RunProgram({step, &batches, &microbatches}, previous_decided);
}

absl::Status Executor::RunProgram(const StepContext& context,
                                  const std::function<absl::Status()>& previous_decided) {
  sums_.zero_();
  const absl::Cleanup forget = [] { model::ForgetUnwritten(); };
  BeginPasses(context.step);
  const bool traced = context.decides && traced_step_ > 0 && context.step == traced_step_;
  ObserveCommunicators(traced);
  const absl::Cleanup unobserved = [this] { ObserveCommunicators(false); };
  weights_changed_ = true;  // behind its passes
  ahead_.Begin();
  Working working;
  int32_t before = timer_->Mark();
  bool asked = false;
  for (size_t i = 0; i < program_.size();) {
    const BoundInstruction& instruction = bound_program_.instructions[i];
    if (state_.stop_requested()) return absl::CancelledError("asked to stop");
    if (!asked && (instruction.op == Op::kBackwardInput || instruction.op == Op::kRecord)) {
      asked = true;
      {
        const Waiting for_decision;
        RETURN_IF_ERROR(previous_decided());
      }
      // Until here they may be what a decision still needs.
      state_.set_reduced_step(0);
      state_.AwaitUpdates();
      for (const auto& state : state_.parts()) BeginGradients(*state);
      before = timer_->Mark();
    }
    RETURN_IF_ERROR(AwaitRoom(static_cast<int32_t>(i), context));
    if (context.decides) context.batches->FetchAhead();
    working.Next();
    timer_->BeginInstruction(static_cast<int32_t>(i));
    ASSIGN_OR_RETURN(const size_t done, Execute(bound_program_.instructions, i, context));
    const int32_t after = timer_->Mark();
    // Of one exchange it is the receive that takes the time.
    size_t timed = i;
    while (timed + 1 < i + done && schedule::IsSend(program_[timed].op)) ++timed;
    const auto kind =
        IsCompute(instruction.op) ? StepTimer::Kind::kCompute : StepTimer::Kind::kComm;
    for (const size_t end = i + done; i < end; ++i) {
      timer_->BeginInstruction(static_cast<int32_t>(i));
      timer_->Add(kind, i <= timed ? before : after, i < timed ? before : after);
    }
    before = after;
  }
  flights_.clear();
  return FinishMessages();
}

void Executor::ObserveCommunicators(bool observed) {
  for (size_t i = 0; i < communicators_.size(); ++i)
    communicators_[i]->Observe(observed ? operation_timers_[i].get() : nullptr);
}

absl::Status Executor::AwaitRoom(int32_t instruction, const StepContext& context) {
  if (!options_.device.is_cuda()) return absl::OkStatus();  // nothing is ever queued
  if (!IsCompute(program_[static_cast<size_t>(instruction)].op)) return absl::OkStatus();
  absl::Status enqueued;
  int64_t progress = -1;
  SteadyTime moved;
  const auto has_room = [&] {
    const int64_t finished = state_.kernels().progress();
    run_ahead_.Finished(finished);
    if (run_ahead_.Admits(instruction)) return true;
    const SteadyTime now = std::chrono::steady_clock::now();
    if (std::exchange(progress, finished) != finished) moved = now;
    if (now - moved < kStandstill || context.alone) return false;
    enqueued = EnqueueAhead(instruction, context);
    return !enqueued.ok();
  };
  RETURN_IF_ERROR(Await(has_room, kRoomWaitMax, "the device finishes nothing"));
  return enqueued;
}

absl::Status Executor::EnqueueAhead(int32_t at, const StepContext& context) {
  const absl::Span<const BoundInstruction> program = bound_program_.instructions;
  for (const bool forward : {true, false}) {
    for (;;) {
      const std::optional<size_t> next =
          ahead_.Next(forward, static_cast<size_t>(at), arrived_ahead_[forward].Passed());
      if (!next.has_value()) break;
      const auto exchange = program.subspan(*next, static_cast<size_t>(program[*next].exchange));
      ASSIGN_OR_RETURN(Moment done, Exchange(exchange, context));
      ahead_.Advance(forward);
      const bool receives = std::any_of(
          exchange.begin(), exchange.end(),
          [](const BoundInstruction& message) { return schedule::IsReceive(message.op); });
      if (receives) arrived_ahead_[forward] = std::move(done);
    }
  }
  return absl::OkStatus();
}

void Executor::Pace() {
  if (pacing_.instruction < 0 || !pacing_.status.ok()) return;
  ++pacing_.layers;
  state_.kernels().MarkProgress(run_ahead_.Enqueued(pacing_.instruction));
  pacing_.status = AwaitRoom(pacing_.instruction, *pacing_.context);
  if (pacing_.context->decides && pacing_.status.ok()) pacing_.context->batches->FetchAhead();
}

absl::Status Executor::RunPaced(const BoundInstruction& instruction, int32_t at,
                                const StepContext& context) {
  pacing_ = {.instruction = at, .context = &context};
  const absl::Status status = ExecuteOne(instruction, context);
  pacing_.instruction = -1;
  RETURN_IF_ERROR(pacing_.status);
  RETURN_IF_ERROR(status);
  run_ahead_.Split(at, pacing_.layers);
  state_.kernels().MarkProgress(run_ahead_.Enqueued(at));
  return absl::OkStatus();
}

StepFigures Executor::ReadFigures(int64_t step) {
  StepFigures figures = timer_->Read(step);
  for (const InstructionTime& time : figures.instructions)
    run_ahead_.Learn(time.instruction, time.work());
  return figures;
}

absl::Status Executor::FinishMessages() {
  RETURN_IF_ERROR(forward_->Finish());
  return backward_->Finish();
}

absl::StatusOr<size_t> Executor::Execute(absl::Span<const BoundInstruction> program, size_t at,
                                         const StepContext& context) {
  const BoundInstruction& instruction = program[at];
  const auto count = static_cast<size_t>(instruction.exchange);
  if (schedule::IsMessage(instruction.op)) {
    const bool forward = schedule::IsForwardMessage(instruction.op);
    if (!context.training || !ahead_.IsEnqueued(forward, at)) {
      RETURN_IF_ERROR(Exchange(absl::MakeConstSpan(&instruction, count), context).status());
      if (context.training) ahead_.Advance(forward);
    }
  } else if (context.training && options_.device.is_cuda() && IsCompute(instruction.op)) {
    RETURN_IF_ERROR(RunPaced(instruction, static_cast<int32_t>(at), context));
  } else {
    RETURN_IF_ERROR(ExecuteOne(instruction, context));
  }
  for (size_t i = at; i < at + count; ++i) {
    if (program[i].last_use) flights_.erase({program[i].part, program[i].microbatch});
  }
  return count;
}

absl::Status Executor::ExecuteOne(const BoundInstruction& instruction, const StepContext& context) {
  if (state_.faults().armed() && context.training && context.decides)
    return ExecuteFaultily(instruction, context);
  return Carry(instruction, context);
}

absl::Status Executor::Carry(const BoundInstruction& instruction, const StepContext& context) {
  if (instruction.op == Op::kRecord) return RecordStep(context);
  if (instruction.op == Op::kDecide) {
    state_.kernels().MakeDecision(records_, control_ == nullptr ? 1 : control_->size(),
                                  {.epoch = plan_.epoch().value,
                                   .step = context.step,
                                   .plan_digest = plan_digest_,
                                   .clip_norm = plan_.spec.optimizer.clip_norm});
    return absl::OkStatus();
  }
  if (schedule::IsTie(instruction.op)) {
    model::ClearUnwritten();
    CopyExchange& ends = ties_.at(instruction.module);
    if (instruction.op == Op::kFold) return ends.Fold();
    for (Part& part : parts_) {
      const bool has_end = part.place.module == instruction.module && (part.first || part.last);
      if (has_end) RETURN_IF_ERROR(part.reduction->Await());
    }
    return ends.Spread();
  }
  Part& part = PartOf(instruction);
  switch (instruction.op) {
    case Op::kForward:
      return Forward(instruction, context);
    case Op::kBackwardInput:
      return BackwardInput(instruction, context);
    case Op::kBackwardWeight:
      return BackwardWeight(instruction);
    case Op::kReduce:
      // Matrices that no microbatch gave anything.
      if (part.state->gradients().defined()) model::ClearUnwritten(part.state->gradients());
      return part.reduction->Reduce();
    case Op::kOptimize:
      return state_.Optimize(plan_, *part.state, context.step,
                             {.decides = context.decides, .everywhere = part.everywhere});
    case Op::kGather:
      if (!part.everywhere) return part.reduction->Gather();
      part.reduction->TakeUpdates();
      return absl::OkStatus();
    default:
      return absl::InternalError(
          absl::StrCat("no instruction has the number ", static_cast<int>(instruction.op)));
  }
}

absl::Status Executor::RecordStep(const StepContext& context) {
  model::ClearUnwritten();
  RETURN_IF_ERROR(AwaitParts());
  normed_.Await();
  for (Part& part : parts_) AddNorm(part, std::numeric_limits<size_t>::max());
  if (Spoils(job::FaultPhase::kRecord)) sums_[0].fill_(std::numeric_limits<double>::quiet_NaN());
  const int32_t self = control_ == nullptr ? 0 : control_->rank();
  records_.fill_(0xFF);  // "invalid": no field of a true record looks like it
  if (context.decides) state_.set_reduced_step(context.step);
  const Record header{.epoch = context.decides ? plan_.epoch().value : kNoEpoch,
                      .step = context.step,
                      .plan_digest = plan_digest_,
                      .applied = context.step - 1,
                      .volume = context.batches->VolumeOf(*context.microbatches),
                      .copied = state_.copied(),
                      .wish = state_.wish(),
                      .writing = state_.writing()};
  state_.kernels().WriteRecord(records_, self, header, sums_);
  if (control_ == nullptr) return absl::OkStatus();
  char* base = static_cast<char*>(records_.mutable_data_ptr());
  RETURN_IF_ERROR(control_->AllGather(base + static_cast<size_t>(self) * sizeof(Record), base,
                                      sizeof(Record), comm::DType::kByte));
  return control_->Join();
}

absl::Status Executor::AwaitEvaluation() {
  const auto evaluated = [this] {
    run_ahead_.Finished(state_.kernels().progress());
    return state_.kernels().progress() >= evaluated_;
  };
  return Await(evaluated, kRoomWaitMax, "the device finishes no evaluation");
}

absl::StatusOr<Executor::Evaluation> Executor::Evaluate(Batches& batches,
                                                        absl::Span<const int64_t> samples,
                                                        bool predict) {
  RETURN_IF_ERROR(AwaitEvaluation());
  const BoundProgram program =
      Bind(plan_, rank_, evaluation_program_, tables_,
           {plan::DealMicrobatch(plan_, static_cast<int64_t>(samples.size()))});
  const std::vector<Microbatch> microbatches = {batches.OfSamples(samples)};
  batches.Announce(microbatches, {});
  sums_.zero_();
  BeginPasses(0);
  predicted_.reset();
  const StepContext context{0, &batches, &microbatches, /*training=*/false};
  for (size_t i = 0; i < program.instructions.size();) {
    if (state_.stop_requested()) return absl::CancelledError("asked to stop");
    ASSIGN_OR_RETURN(const size_t done, Execute(program.instructions, i, context));
    i += done;
  }
  flights_.clear();
  RETURN_IF_ERROR(FinishMessages());
  evaluated_ = run_ahead_.Enqueued(kEvaluation);
  state_.kernels().MarkProgress(evaluated_);
  Evaluation result;
  const bool has_loss =
      std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.loss; });
  if (!has_loss) return result;
  RETURN_IF_ERROR(AwaitEvaluation());  // reading what is not there yet has no deadline
  const at::Tensor sums = sums_.cpu();
  result.loss_sum = sums.const_data_ptr<double>()[1];
  result.counted_tokens = sums.const_data_ptr<double>()[2];
  if (predict && predicted_.defined()) result.predicted = predicted_.cpu();
  return result;
}

}  // namespace phalanx::train
