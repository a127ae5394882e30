// worker/train/training_state.h: what a rank has learned: parameters, gradients and optimizer state
// of all its pipeline parts, and how far it is.
//
// It belongs to the rank process and outlives epochs, which borrow it. What is bound to one epoch
// (communicators, program, messages, activations) is the executor's.
//
// Whatever the moment at which an epoch ends, the state is one of two: it has applied the last
// decided step, or it still holds that step's reduced gradients, since they are cleared only behind
// its decision. So the next epoch can go on from the last step that any rank knows to be decided.
//
// Words: a *home* is a block of optimizer state (state_block.h), the rank's own or a mirror.
//
// Not thread-safe but for RequestStop, stop_requested and WishEnd.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/core/Stream.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "worker/train/commit.h"
#include "worker/train/message_stream.h"
#include "worker/train/part_reduction.h"
#include "worker/train/part_state.h"
#include "worker/train/step_kernels.h"

namespace phalanx::train {

// Whose state it is. A state serves every epoch with the same layout, and no other.
struct StateIdentity {
  std::string store;  // of the coordinator that gave the job its number
  int64_t job = 0;
  std::string plan;  // its digest, which does not tell epochs apart
  int32_t rank = 0;
  friend bool operator==(const StateIdentity&, const StateIdentity&) = default;
};

// Counts over decided steps.
struct Counts {
  int64_t updates = 0;           // committed: the optimizer's own count
  int64_t skipped_in_a_row = 0;  // not finite, up to the last decided step
  friend bool operator==(const Counts&, const Counts&) = default;
};

// What an epoch goes on from: the last step that some rank knows to be decided; step 0: none is.
struct Start {
  Decision decision;
  Counts counts;  // `decision` counted in
};

// Where a rank's state stands once nothing of an epoch runs any more.
struct Standing {
  Decision decided;  // the last step that this rank knows to be decided; step 0: none
  Counts counts;
  struct Home {
    int32_t module = 0, chunk = 0;
    Rank primary;  // whose shares
    int64_t applied = 0;
  };
  std::vector<Home> homes;
  int64_t copied = kCopiedAlways;  // TrainingState::copied
};

class TrainingState {
 public:
  // Holds initial values.
  static absl::StatusOr<std::unique_ptr<TrainingState>> Create(const plan::Plan& plan, Rank rank,
                                                               const BufferOptions& options);
  // Holds zeros: for Adopt.
  static absl::StatusOr<std::unique_ptr<TrainingState>> CreateEmpty(const plan::Plan& plan,
                                                                    Rank rank,
                                                                    const BufferOptions& options);

  const BufferOptions& options() const { return options_; }
  // By place in the order of the plan, then by chunk.
  const std::vector<std::unique_ptr<PartState>>& parts() const { return parts_; }
  StepKernels& kernels() { return *kernels_; }
  // On which an epoch's messages run; none on CPU.
  std::optional<c10::Stream> forward_stream() const { return forward_stream_; }
  std::optional<c10::Stream> backward_stream() const { return backward_stream_; }

  ReductionMeans& reductions() { return reductions_; }

  // Thread-safe. Ends the epoch that borrows the state: no step is decided here any more.
  void RequestStop() { kernels_->SetStop(true); }
  bool stop_requested() const { return kernels_->stopped(); }
  // `writing` says when asked whether a part of a checkpoint is still being written; nullptr: none.
  void set_writing(std::function<bool()> writing) { writing_ = std::move(writing); }
  int64_t writing() const { return writing_ != nullptr && writing_() ? 1 : 0; }

  // Thread-safe. This rank's next records wish for the end of the job (kWishEnd).
  void WishEnd() { wish_.store(kWishEnd); }
  int64_t wish() const { return wish_.load(); }
  // Before an epoch's first request or wish can come.
  void TakeBackRequests() {
    kernels_->SetStop(false);
    wish_.store(kNoWish);
  }

  // What ended an epoch that borrowed the state, as what it came of: a failed device fails whatever
  // is called next, and not every library says why. Of the kind DeviceFailed if the device says so.
  absl::Status Attributed(absl::Status ended) const;

  // An epoch begins that goes on from `start`, with nothing enqueued: applies start's step where
  // that is still to be done and makes the parameters of this rank's shares those of their masters.
  // Gradients are of no more use afterwards. Calling it again is harmless.
  // Errors: FailedPrecondition if this state cannot go on from there.
  absl::Status GoOn(const plan::Plan& plan, const Start& start);

  // With nothing enqueued: all homes, mirrors too, have been filled with the state of start's step,
  // and so have the parameters that do not train. GoOn from there brings the others.
  void Adopt(const Start& start);

  // Somebody reads the state of the last decided step beside what is enqueued next: before any of
  // it is changed, `wait` is called once, on the thread that trains, to make the current stream (on
  // CPU the thread) wait for the reader. nullptr: the reader does not read any more.
  void HoldState(const void* reader, std::function<void()> wait);

  // The last step of whose state host memory has a whole copy of what this rank keeps there, as
  // `copied` says when asked; kCopiedAlways: it keeps nothing there.
  void set_copied(std::function<int64_t()> copied) { copied_ = std::move(copied); }
  int64_t copied() const { return copied_ == nullptr ? kCopiedAlways : copied_(); }

  // The step after decided().step is decided.
  void Account(const Decision& decision);
  const Decision& decided() const { return decided_; }
  const Counts& counts() const { return counts_; }

  // Whether every kernel of its layout has run once in this process. Before that a kernel may be
  // loaded while others wait for this rank, and wait for them in turn.
  bool warm() const { return warm_; }
  void set_warm() { warm_ = true; }

  // The buffers hold the reduced gradients of this step; 0: of none.
  void set_reduced_step(int64_t step) { reduced_step_ = step; }

  // Enqueues the optimizer of a part that trains, predicated on the decision of `step`, the one
  // after decided() or decided() itself. That of mirrors runs beside what the caller enqueues next.
  void Optimize(const plan::Plan& plan, PartState& part, int64_t step);
  // The caller's stream waits for mirrors that are being optimized.
  void AwaitMirrors();

  // With nothing enqueued.
  Standing StandingNow() const;

 private:
  TrainingState(const plan::Plan& plan, Rank rank, const BufferOptions& options);
  absl::Status CheckStart(const Start& start) const;
  void Optimize(const plan::Plan& plan, PartState& part, StateBlock& block, int64_t step);

  const BufferOptions options_;
  std::vector<std::unique_ptr<PartState>> parts_;
  int32_t homes_ = 0;
  std::unique_ptr<StepKernels> kernels_;
  const std::optional<c10::Stream> forward_stream_, backward_stream_, mirror_stream_;
  Moment mirrored_;  // all that is enqueued on mirror_stream_
  ReductionMeans reductions_;
  Decision decided_;
  Counts counts_;
  int64_t reduced_step_ = 0;
  std::map<const void*, std::function<void()>> await_readers_;
  std::function<int64_t()> copied_;  // nullptr: nothing is kept there
  std::function<bool()> writing_;    // nullptr: none is written
  std::atomic<int64_t> wish_{kNoWish};
  bool warm_ = false;
};

}  // namespace phalanx::train
