#include "worker/train/training_state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "c10/core/StreamGuard.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/posix/activity.h"
#include "worker/train/learning_rate.h"
#include "worker/train/relayout.h"

namespace phalanx::train {
namespace {

std::unique_ptr<StepKernels> MakeKernels(at::Device device) {
#ifdef PHALANX_WITH_CUDA
  if (device.is_cuda()) return MakeCudaStepKernels(0);
#else
  static_cast<void>(device);
#endif
  return MakeCpuStepKernels(0);
}

Counts After(Counts counts, Verdict verdict) {
  if (verdict == Verdict::kCommitted) ++counts.updates;
  if (verdict != Verdict::kEmpty)
    counts.skipped_in_a_row = verdict == Verdict::kSkipped ? counts.skipped_in_a_row + 1 : 0;
  return counts;
}

bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// A step that was done again in another layout differs in the last bits of its sums, at least.
bool SameOutcome(const Decision& a, const Decision& b) {
  return a.verdict == b.verdict && Same(a.gradient_scale, b.gradient_scale) &&
         Same(a.loss, b.loss) && Same(a.gradient_norm, b.gradient_norm);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingState>> TrainingState::Create(const plan::Plan& plan,
                                                                     Rank rank,
                                                                     const BufferOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<TrainingState> state, CreateEmpty(plan, rank, options));
  for (const auto& part : state->parts_) part->Initialise(plan, options.init_threads);
  return state;
}

absl::StatusOr<std::unique_ptr<TrainingState>> TrainingState::CreateEmpty(
    const plan::Plan& plan, Rank rank, const BufferOptions& options) {
  std::unique_ptr<TrainingState> state = CreateNowhere(rank, options);
  for (const plan::Place& place : plan.PlacesOf(rank)) {
    const int32_t chunks = plan.modules[static_cast<size_t>(place.module)].chunks();
    for (int32_t chunk = 0; chunk < chunks; ++chunk)
      state->parts_.push_back(std::make_unique<PartState>(plan, place, chunk, options));
  }
  state->NumberHomes();
  state->layout_ = plan.digest;
  return state;
}

std::unique_ptr<TrainingState> TrainingState::CreateNowhere(Rank rank,
                                                            const BufferOptions& options) {
  return std::unique_ptr<TrainingState>(new TrainingState(rank, options));
}

TrainingState::TrainingState(Rank rank, const BufferOptions& options)
    : rank_(rank),
      options_(options),
      kernels_(MakeKernels(options.device)),
      forward_stream_(TakeStream(options.device)),
      backward_stream_(TakeStream(options.device)),
      update_stream_(TakeStream(options.device)),
      mirror_stream_(TakeStream(options.device, device::StreamPriority::kLast)),
      reductions_(options.device) {}

void TrainingState::NumberHomes() {
  homes_ = 0;
  for (const auto& part : parts_) {
    std::map<Rank, int32_t> of_primary;
    for (StateBlock& block : part->blocks()) {
      const auto [entry, first] = of_primary.try_emplace(block.primary, homes_);
      if (first) ++homes_;
      block.home = entry->second;
    }
  }
  kernels_->SetHomes(homes_, decided_.step);
}

absl::Status TrainingState::Optimize(const plan::Plan& plan, PartState& part, int64_t step,
                                     const Optimizing& how) {
  const Moment now = Moment::Now(options_.device);
  if (how.everywhere) {
    if (how.decides) RETURN_IF_ERROR(faults_->Reach(job::FaultPhase::kMirror, step));
    const c10::OptionalStreamGuard guard(update_stream_.get());
    now.Await();
    UpdateEverywhere(plan, part, step);
    return absl::OkStatus();
  }
  bool mirrors = false;
  {
    const c10::OptionalStreamGuard guard(update_stream_.get());
    now.Await();
    for (StateBlock& block : std::views::reverse(part.blocks())) {
      mirrors |= block.mirrors;
      if (block.mirrors) continue;
      AwaitReaders(&block);
      Update(plan, part, block, step, /*weights=*/true);
      part.set_updated(block.bucket, Moment::Now(options_.device));
    }
    MarkApplied(part, /*mirrors=*/false, step);
    updated_ = Moment::Now(options_.device);
  }
  if (!mirrors) return absl::OkStatus();
  if (how.decides) RETURN_IF_ERROR(faults_->Reach(job::FaultPhase::kMirror, step));
  const c10::OptionalStreamGuard guard(mirror_stream_.get());
  updated_.Await();
  for (StateBlock& block : part.blocks()) {
    if (!block.mirrors) continue;
    AwaitReaders(&block);
    Update(plan, part, block, step, /*weights=*/false);
  }
  MarkApplied(part, /*mirrors=*/true, step);
  mirrored_ = Moment::Now(options_.device);
  return absl::OkStatus();
}

void TrainingState::UpdateEverywhere(const plan::Plan& plan, PartState& part, int64_t step) {
  for (auto bucket = static_cast<int32_t>(part.parameters().buckets.size()) - 1; bucket >= 0;
       --bucket) {
    for (StateBlock& block : part.blocks()) {
      if (block.bucket != bucket) continue;
      AwaitReaders(&block);
      Update(plan, part, block, step, /*weights=*/true);
    }
    part.set_updated(bucket, Moment::Now(options_.device));
  }
  MarkApplied(part, /*mirrors=*/false, step);
  MarkApplied(part, /*mirrors=*/true, step);
  updated_ = Moment::Now(options_.device);
}

void TrainingState::MarkApplied(PartState& part, bool mirrors, int64_t step) {
  int32_t marked = -1;
  for (const StateBlock& block : part.blocks()) {
    if (block.mirrors != mirrors || block.home == marked) continue;
    marked = block.home;  // blocks of a home follow each other
    kernels_->MarkApplied(block.home, step);
  }
}

void TrainingState::HoldState(const void* reader, Reader how) { readers_[reader] = std::move(how); }

bool TrainingState::IsRead() const {
  return std::any_of(readers_.begin(), readers_.end(),
                     [](const auto& entry) { return entry.second.reads(); });
}

void TrainingState::AwaitReaders(const StateBlock* block) {
  const Waiting for_readers;
  for (const auto& [reader, how] : readers_) how.wait(block);
}

void TrainingState::AwaitUpdates() {
  updated_.Await();
  mirrored_.Await();
}

bool TrainingState::Lacks() const {
  for (const auto& part : parts_) {
    for (const StateBlock& block : part->blocks()) {
      if (!block.lacking.empty()) return true;
    }
  }
  return false;
}

void TrainingState::Update(const plan::Plan& plan, PartState& part, StateBlock& block, int64_t step,
                           bool weights) {
  const job::Optimizer& optimizer = plan.spec.optimizer;
  // Of a step that is accounted for already, its own update is counted in.
  const bool counted = step == decided_.step && decided_.verdict == Verdict::kCommitted;
  kernels_->AdamW(part.gradients(), block, weights ? &part.weights() : nullptr,
                  {.learning_rate = LearningRate(optimizer, step, plan.spec.steps),
                   .beta1 = optimizer.betas[0],
                   .beta2 = optimizer.betas[1],
                   .epsilon = optimizer.epsilon,
                   .weight_decay = optimizer.weight_decay,
                   .update = counts_.updates + (counted ? 0 : 1)},
                  step);
}

void TrainingState::Account(const Decision& decision) {
  counts_ = After(counts_, decision.verdict);
  decided_ = decision;
}

void TrainingState::Adopt(const Start& start) {
  decided_ = start.decision;
  counts_ = start.counts;
  reduced_step_ = 0;
  told_ = decided_.step;
  kernels_->SetDecision(decided_);
  for (int32_t home = 0; home < homes_; ++home) kernels_->SetApplied(home, decided_.step);
}

absl::Status TrainingState::CheckStart(const Start& start) const {
  const int64_t step = start.decision.step;
  if (step > 0 && !IsDecided(start.decision.verdict))
    return absl::FailedPreconditionError(absl::StrCat("step ", step, " is not decided"));
  if (!HoldsState()) return absl::OkStatus();
  if (step < decided_.step || step > decided_.step + 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this rank's last decided step is ", decided_.step, ": it cannot go on from step ", step));
  }
  const bool known = step == decided_.step;
  if (known && step > 0 && !SameOutcome(start.decision, decided_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " was decided otherwise on this rank"));
  }
  const Counts counts = known ? counts_ : After(counts_, start.decision.verdict);
  if (counts != start.counts) {
    return absl::FailedPreconditionError(
        absl::StrCat("up to step ", step, " this rank counts ", counts.updates, " updates and ",
                     counts.skipped_in_a_row, " skipped steps in a row, the order ",
                     start.counts.updates, " and ", start.counts.skipped_in_a_row));
  }
  for (int32_t home = 0; home < homes_; ++home) {
    const int64_t applied = kernels_->applied(home);
    if (applied == step || (applied == step - 1 && reduced_step_ == step)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("a part of this rank has applied step ", applied, " and holds gradients of ",
                     reduced_step_, ": it cannot go on from step ", step));
  }
  return absl::OkStatus();
}

bool TrainingState::MayGoOn(const Start& start) const {
  // Between layouts nothing can be applied.
  const bool behind = layout_.empty() && HoldsState() && decided_.step != start.decision.step;
  return !behind && CheckStart(start).ok();
}

absl::Status TrainingState::Attributed(absl::Status ended) const {
  if (ended.ok() || absl::IsCancelled(ended) || kernels_->Check().ok()) return ended;
  return job::WithKind(job::FailureKind::kDeviceFailed, std::move(ended));
}

absl::Status TrainingState::GoOn(const plan::Plan& plan, const Start& start) {
  if (layout_ != plan.digest) {
    return absl::FailedPreconditionError(absl::StrCat("this rank's state lies in ",
                                                      layout_.empty() ? "no layout" : layout_,
                                                      ", not in ", plan.digest));
  }
  RETURN_IF_ERROR(CheckStart(start));
  const int64_t step = start.decision.step;
  kernels_->SetDecision(start.decision);
  if (step == decided_.step + 1) {
    Account(start.decision);
  } else if (!HoldsState()) {
    decided_ = start.decision;
    counts_ = start.counts;
  }
  for (const auto& part : parts_) {
    std::set<int32_t> behind;
    for (StateBlock& block : part->blocks()) {
      if (kernels_->applied(block.home) >= step) continue;
      Update(plan, *part, block, step, !block.mirrors);
      behind.insert(block.home);
    }
    for (const int32_t home : behind) kernels_->MarkApplied(home, step);
    part->Recast();
    part->SetBegun(Moment::Now(options_.device));
  }
  reduced_step_ = 0;
  return absl::OkStatus();
}

absl::Status TrainingState::Leave(const plan::Plan& before) {
  if (layout_.empty()) return absl::OkStatus();
  if (layout_ != before.digest) {
    return absl::FailedPreconditionError(
        absl::StrCat("this rank's state lies in ", layout_, ", not in ", before.digest));
  }
  for (int32_t home = 0; home < homes_; ++home) {
    if (kernels_->applied(home) == decided_.step) continue;
    return absl::FailedPreconditionError(absl::StrCat("a part of this rank has applied step ",
                                                      kernels_->applied(home),
                                                      ", the last decided one is ", decided_.step));
  }
  AwaitReaders(nullptr);
  for (const auto& part : parts_) loose_.Add(before, *part);
  parts_.clear();
  layout_.clear();
  reduced_step_ = 0;  // it is applied, and its buffers are laid out anew
  NumberHomes();
  return absl::OkStatus();
}

Holdings TrainingState::HoldingsNow() const {
  Holdings holdings = loose_.HoldingsNow();
  holdings.step = decided_.step;
  return holdings;
}

absl::StatusOr<Moved> TrainingState::Enter(const plan::Plan& after, const Transfers& transfers,
                                           const BulkGroup& group) {
  if (!layout_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("this rank's state still lies in ", layout_));
  }
  Relayout relayout(after, rank_, options_, loose_, group, [this] { return stop_requested(); });
  RETURN_IF_ERROR(relayout.Run(transfers));
  parts_ = relayout.Take();
  layout_ = after.digest;
  NumberHomes();
  return relayout.moved();
}

Standing TrainingState::StandingNow() const {
  Standing standing{.counts = counts_, .copied = copied(), .begun = begun_};
  if (HoldsState()) standing.decided = decided_;
  for (const auto& part : parts_) {
    int32_t told = -1;
    for (const StateBlock& block : part->blocks()) {
      if (std::exchange(told, block.home) == block.home) continue;
      standing.homes.push_back({.module = part->place().module,
                                .chunk = part->chunk(),
                                .primary = block.primary,
                                .applied = kernels_->applied(block.home)});
    }
  }
  return standing;
}

}  // namespace phalanx::train
