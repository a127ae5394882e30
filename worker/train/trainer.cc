#include "worker/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/accused.h"
#include "core/base/status.h"
#include "core/plan/derivation.h"
#include "core/posix/activity.h"
#include "core/schedule/program.h"
#include "worker/train/await_work.h"
#include "worker/train/learning_rate.h"
#include "worker/train/rank_values.h"
#include "worker/train/step_flops.h"
#include "worker/train/trace.h"

namespace phalanx::train {

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const plan::Plan& plan, Rank rank,
                                                         comm::Communicators& communicators,
                                                         SampleSource& source, TrainingState& state,
                                                         const TrainerOptions& options,
                                                         TrainerCallbacks callbacks) {
  std::unique_ptr<Trainer> trainer(new Trainer(plan, state, options, std::move(callbacks)));
  state.TakeBackRequests();
  ASSIGN_OR_RETURN(trainer->executor_, Executor::Create(plan, rank, communicators, state));
  trainer->executor_->set_traced_step(options.trace_step);
  if (options.mirrors_are_whole) RETURN_IF_ERROR(trainer->executor_->UpdateEverywhere());
  trainer->batches_ =
      std::make_unique<Batches>(plan, trainer->executor_->places(), source, state.options().device,
                                state.options().compute, options.length_multiple);
  auto seen = std::make_shared<std::set<int64_t>>();
  trainer->executor_->set_on_corrupt_sample(
      [seen,
       callback = trainer->callbacks_.on_corrupt_sample](const Batches::CorruptSample& sample) {
        if (callback != nullptr && seen->insert(sample.sample).second) callback(sample);
      });
  return trainer;
}

absl::Status Trainer::Prepare() {
  const Start start = options_.start.value_or(Start{});
  state_.set_begun(start.decision.step);
  // Samples are decoded while the state is made ready.
  if (FirstStep() <= plan_.spec.steps) {
    microbatches_ = batches_->OfStep(FirstStep());
    batches_->Announce(microbatches_, {});
  }
  RETURN_IF_ERROR(state_.GoOn(plan_, start));
  // It may have gone on from there before, in the layout that it was decided in.
  if (start.decision.step > state_.told()) Tell(start.decision);
  if (options_.start.has_value()) RETURN_IF_ERROR(executor_->RestoreParameters());
  if (options_.warm == nullptr || FirstStep() > plan_.spec.steps) return absl::OkStatus();
  return WarmUp();
}

absl::Status Trainer::WarmUp() {
  WarmPasses& warm = *options_.warm;
  // Some processes may be new while others are not, and all of them run the program or none. What
  // it would run beside the passes no library loads at its first use, and the first step runs it.
  ASSIGN_OR_RETURN(const std::vector<std::vector<double>> programs,
                   GatherOverRanks(*executor_, {warm.program() ? 1.0 : 0.0}));
  const bool first = std::all_of(programs.begin(), programs.end(),
                                 [](const std::vector<double>& rank) { return rank[0] == 0; });
  if (first) batches_->Announce(microbatches_, microbatches_);  // both runs take samples
  const auto passes = first ? Executor::Passes::kEvery : Executor::Passes::kUnknown;
  RETURN_IF_ERROR(executor_->RunPassesAlone(*batches_, microbatches_, passes, warm));
  if (!first) {
    // Its first step does. Else, once the others are lost, all that are left would run it twice.
    warm.KnowProgram();
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(executor_->RunUndecided(*batches_, microbatches_));
  RETURN_IF_ERROR(AwaitWork(*executor_, "the kernels that are tried have not all run"));
  warm.AddProgram();
  return absl::OkStatus();
}

absl::Status Trainer::Settle() {
  if (pending_step_ == 0) return absl::OkStatus();
  Decision decision;
  const auto decided = [&] { return state_.kernels().ReadDecision(pending_step_, &decision); };
  RETURN_IF_ERROR(executor_->Await(decided, options_.decision_timeout,
                                   absl::StrCat("step ", pending_step_, " is not decided")));
  if (!IsDecided(decision.verdict)) {
    if (decision.invalid_rank < 0) return absl::CancelledError("asked to stop");
    const Rank rank = RankOfRecord(decision.invalid_rank);
    return Accusing(rank, absl::AbortedError(absl::StrCat(
                              "step ", pending_step_, " did not commit: the record of rank ",
                              rank.value, " is missing or of another step")));
  }
  pending_step_ = 0;
  if (decision.wish != kNoWish) last_step_ = std::min(last_step_, decision.step + 1);
  leaves_ = decision.wish == kWishLeave;
  state_.Account(decision);
  Tell(decision);
  if (callbacks_.on_settled != nullptr) RETURN_IF_ERROR(callbacks_.on_settled());
  return skipped_.Add(decision, state_.counts().skipped_in_a_row);
}

Rank Trainer::RankOfRecord(int32_t place) const {
  for (int32_t rank = 0; rank < plan_.world; ++rank) {
    if (!plan_.PlacesOf(Rank{rank}).empty() && place-- == 0) return Rank{rank};
  }
  return Rank{plan_.world - 1};
}

void Trainer::AccountForLast() {
  Decision decision;
  if (!state_.kernels().ReadDecision(state_.decided().step + 1, &decision)) return;
  if (!IsDecided(decision.verdict)) return;
  state_.Account(decision);
  Tell(decision);
}

StepSummary Trainer::SummaryOf(const Decision& decision) const {
  return {.step = decision.step,
          .loss = decision.loss,
          .gradient_norm = decision.gradient_norm,
          .learning_rate = LearningRate(plan_.spec.optimizer, decision.step, plan_.spec.steps),
          .tokens = decision.volume.tokens,
          .counted_tokens = static_cast<int64_t>(decision.counted_tokens),
          .images = decision.volume.images,
          .sounds = decision.volume.sounds,
          .skipped = decision.verdict == Verdict::kSkipped,
          .corrupt_samples = static_cast<int64_t>(decision.corrupt_samples)};
}

void Trainer::Tell(const Decision& decision) {
  const SteadyTime now = std::chrono::steady_clock::now();
  const double seconds =
      last_decided_.has_value() ? std::chrono::duration<double>(now - *last_decided_).count() : 0;
  StepSummary summary = SummaryOf(decision);
  summary.seconds = seconds;
  const double waited = executor_->seconds_waited();
  if (seconds > 0) summary.host_seconds = seconds - (waited - waited_);
  waited_ = waited;
  if (decision.step > FirstStep()) {
    summary.previous = executor_->ReadFigures(decision.step - 1);
    summary.previous.flops = flops_[static_cast<size_t>((decision.step - 1) % 3)];
  }
  if (options_.trace_step > 0 && decision.step == options_.trace_step + 1)
    trace_ = summary.previous;
  last_decided_ = now;
  state_.set_told(decision.step);
  if (callbacks_.on_step != nullptr) callbacks_.on_step(summary);
}

absl::Status Trainer::SettleLast() {
  const Working watched;
  const Waiting for_decision;
  return Settle();
}

absl::Status Trainer::AtBoundary() {
  const Working watched;  // whoever waits here for its device or others is seen to
  const Waiting at_boundary;
  RETURN_IF_ERROR(Settle());
  RETURN_IF_ERROR(AwaitWork(*executor_, "the last step's work is not done"));
  return callbacks_.on_boundary();
}

absl::Status Trainer::Enqueue(int64_t step) {
  const bool wanted = callbacks_.wants_boundary != nullptr && step > FirstStep();
  if (wanted && callbacks_.wants_boundary()) RETURN_IF_ERROR(AtBoundary());
  state_.set_begun(step);
  microbatches_ = next_step_ == step ? std::move(next_) : batches_->OfStep(step);
  next_step_ = step + 1;
  next_ = step < plan_.spec.steps ? batches_->OfStep(next_step_) : std::vector<Microbatch>();
  batches_->Announce(microbatches_, next_);
  flops_[static_cast<size_t>(step % 3)] =
      FlopsOfStep(plan_, executor_->places(), *batches_, microbatches_);
  RETURN_IF_ERROR(executor_->RunStep(step, *batches_, microbatches_, [this] { return Settle(); }));
  pending_step_ = step;
  return absl::OkStatus();
}

absl::Status Trainer::Run() {
  last_decided_ = std::chrono::steady_clock::now();
  waited_ = executor_->seconds_waited();
  for (int64_t step = FirstStep(); step <= last_step_; ++step) RETURN_IF_ERROR(Enqueue(step));
  RETURN_IF_ERROR(SettleLast());
  RETURN_IF_ERROR(executor_->AwaitParts());
  const bool traced = options_.trace_step >= FirstStep() && options_.trace_step <= last_step_;
  return traced ? ShareTrace() : absl::OkStatus();
}

absl::Status Trainer::ShareTrace() {
  if (options_.trace_step == last_step_) {
    // No step comes after it whose decision would say that all its work is done.
    RETURN_IF_ERROR(AwaitWork(*executor_, "the last step's work is not done"));
    trace_ = executor_->ReadFigures(options_.trace_step);
  }
  if (state_.options().device.is_cuda())
    MoveWaitsToReceives(plan_, executor_->program(), trace_.instructions);
  constexpr size_t kOfInstruction = 3, kOfOperation = 4;  // values
  // Ranks of an older release tell their instructions alone.
  const bool all_say = plan_.layout.derivation >= plan::kDerivationOfTracedOperations;
  if (!all_say) trace_.operations.clear();
  std::vector<double> counts = {static_cast<double>(trace_.instructions.size())};
  if (all_say) counts.push_back(static_cast<double>(trace_.operations.size()));
  const auto operations_of = [&](const std::vector<double>& size) {
    return all_say ? static_cast<size_t>(size[1]) : size_t{0};
  };
  ASSIGN_OR_RETURN(const std::vector<std::vector<double>> sizes,
                   GatherOverRanks(*executor_, counts));
  size_t longest = 0;
  for (const std::vector<double>& size : sizes) {
    longest = std::max(longest, kOfInstruction * static_cast<size_t>(size[0]) +
                                    kOfOperation * operations_of(size));
  }
  std::vector<double> values;
  for (const InstructionTime& time : trace_.instructions)
    values.insert(values.end(), {static_cast<double>(time.instruction), time.begin, time.end});
  for (const OperationTime& time : trace_.operations) {
    values.insert(values.end(), {static_cast<double>(time.communicator),
                                 static_cast<double>(time.operation), time.begin, time.end});
  }
  values.resize(longest);
  ASSIGN_OR_RETURN(const std::vector<std::vector<double>> all, GatherOverRanks(*executor_, values));
  if (callbacks_.on_trace == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<schedule::Program> programs, schedule::BuildStep(plan_));
  std::vector<schedule::TimedInstruction> timeline;
  std::vector<schedule::TimedOperation> operations;
  size_t member = 0;  // of the control communicator: ranks that have work, ascending
  for (int32_t rank = 0; rank < plan_.world; ++rank) {
    if (plan_.PlacesOf(Rank{rank}).empty()) continue;
    const double* entry = all[member].data();
    for (size_t i = 0; i < static_cast<size_t>(sizes[member][0]); ++i, entry += kOfInstruction) {
      timeline.push_back({Rank{rank},
                          programs[static_cast<size_t>(rank)].at(static_cast<size_t>(entry[0])),
                          entry[1], entry[2]});
    }
    for (size_t i = 0; i < operations_of(sizes[member]); ++i, entry += kOfOperation) {
      operations.push_back({Rank{rank}, static_cast<int32_t>(entry[0]),
                            static_cast<plan::CommunicatorOperation>(static_cast<int>(entry[1])),
                            entry[2], entry[3]});
    }
    ++member;
  }
  AlignAtRecord(timeline, operations);
  callbacks_.on_trace(timeline, operations);
  return absl::OkStatus();
}

absl::StatusOr<Decision> Trainer::RunOne(int64_t step) {
  RETURN_IF_ERROR(Enqueue(step));
  RETURN_IF_ERROR(Settle());
  RETURN_IF_ERROR(executor_->AwaitParts());
  return state_.decided();
}

}  // namespace phalanx::train
