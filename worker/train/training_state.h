// worker/train/training_state.h: what a rank has learned: parameters, gradients and optimizer state
// of all its pipeline parts, and how far it is.
//
// It belongs to the rank process and outlives epochs, which borrow it. What is bound to one epoch
// (communicators, program, messages, activations) is the executor's.
//
// It lies in one layout, or in none. To come from one to another (relayout.h) it goes on from the
// last decided step in the old one (GoOn), leaves it (Leave) and enters the new one (Enter). If
// that fails it lies in none, says what it holds (HoldingsNow), and can enter any layout of the job
// (NameAs).
//
// Whatever the moment at which an epoch ends, the state is one of two: it has applied the last
// decided step, or it still holds that step's reduced gradients, since they are cleared only behind
// its decision. So the next epoch can go on from the last step that any rank knows to be decided.
//
// Words: a *home* is the optimizer state of one part's shares (state_block.h) of one primary, the
// rank itself or one that it mirrors.
//
// Not thread-safe but for RequestStop, stop_requested, WishEnd and WishLeave.
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
#include "worker/device/cuda_device.h"
#include "worker/train/commit.h"
#include "worker/train/fault_points.h"
#include "worker/train/holdings.h"
#include "worker/train/loose_state.h"
#include "worker/train/message_stream.h"
#include "worker/train/part_reduction.h"
#include "worker/train/part_state.h"
#include "worker/train/step_kernels.h"
#include "worker/train/transfers.h"
#include "worker/train/verified_exchange.h"

namespace phalanx::train {

// Whose state it is, for as long as its process lives. It serves epochs with the layout that it
// lies in, and comes to lie in others.
struct StateIdentity {
  std::string store;  // of the coordinator that gave the job its number
  int64_t job = 0;
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
  int64_t copied = kKeepsNoCopies;  // TrainingState::copied
  int64_t begun = 0;                // the last step that this rank has begun; 0: none
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

  // Lies in no layout and holds nothing: of a rank that comes to a job that has trained. Adopt what
  // it goes on from, then Enter.
  static std::unique_ptr<TrainingState> CreateNowhere(Rank rank, const BufferOptions& options);

  const BufferOptions& options() const { return options_; }
  // The digest of the plan whose layout it lies in, which does not tell epochs apart; empty: none.
  const std::string& layout() const { return layout_; }
  // By place in the order of the plan, then by chunk.
  const std::vector<std::unique_ptr<PartState>>& parts() const { return parts_; }
  StepKernels& kernels() { return *kernels_; }
  // On which an epoch's messages run; none on CPU.
  std::optional<c10::Stream> forward_stream() const { return forward_stream_.get(); }
  std::optional<c10::Stream> backward_stream() const { return backward_stream_.get(); }

  ReductionMeans& reductions() { return reductions_; }

  // Where the process is told to fail; outlives the state. Until it is set: nowhere.
  void set_faults(FaultPoints* faults) { faults_ = faults; }
  FaultPoints& faults() { return *faults_; }

  // Thread-safe. Ends the epoch that borrows the state: no step is decided here any more.
  void RequestStop() { kernels_->SetStop(true); }
  bool stop_requested() const { return kernels_->stopped(); }
  // `writing` says when asked whether a part of a checkpoint is still being written; nullptr: none.
  void set_writing(std::function<bool()> writing) { writing_ = std::move(writing); }
  int64_t writing() const { return writing_ != nullptr && writing_() ? 1 : 0; }

  // Thread-safe. This rank's next records wish for the end of the job (kWishEnd).
  void WishEnd() {
    int64_t none = kNoWish;
    wish_.compare_exchange_strong(none, kWishEnd);
  }
  // Likewise for that of the epoch (kWishLeave).
  void WishLeave() { wish_.store(kWishLeave); }
  int64_t wish() const { return wish_.load(); }
  // Before an epoch's first request or wish can come.
  void TakeBackRequests() {
    kernels_->SetStop(false);
    wish_.store(kNoWish);
  }

  // What ended an epoch that borrowed the state, as what it came of: a failed device fails whatever
  // is called next, and not every library says why. Of the kind DeviceFailed if the device says so.
  absl::Status Attributed(absl::Status ended) const;

  // Whether what it keeps is of `start`'s step, or to be. That of a process that was out of reach
  // while others went on is not.
  bool MayGoOn(const Start& start) const;
  // An epoch begins that goes on from `start`, with nothing enqueued: applies start's step where
  // that is still to be done and makes the parameters of this rank's shares those of their masters.
  // Gradients are of no more use afterwards. Calling it again is harmless.
  // Errors: FailedPrecondition if this state cannot go on from there, or lies in another layout.
  absl::Status GoOn(const plan::Plan& plan, const Start& start);

  // With nothing enqueued: all homes, mirrors too, have been filled with the state of start's step,
  // and so have the parameters that do not train. GoOn from there brings the others.
  void Adopt(const Start& start);

  // With nothing enqueued, behind GoOn: the state lies in no layout any more. Whoever named parts
  // of it (executors, sections of checkpoints) must have gone. Moves no element. Nothing to do
  // where it lies in none. Errors: FailedPrecondition if a home has not applied the last decided
  // step, or the state lies in another layout.
  absl::Status Leave(const plan::Plan& before);
  // While it lies in none: what it holds is named as `after` has it from now on, whose stages may
  // be others (LooseState::NameAs). Before HoldingsNow and Enter.
  void NameAs(const plan::Plan& after) { loose_.NameAs(after); }
  // What it holds while it lies in no layout, and of which step.
  Holdings HoldingsNow() const;
  // While it lies in none: has from now on what `other` holds in plan's, of any rank and the same
  // step. `other` is of no more use. Errors: FailedPrecondition where either lies elsewhere.
  absl::Status TakeOver(const plan::Plan& plan, TrainingState& other);
  // It comes to lie in `after`; parameters are still to be gathered. All ranks that are named in
  // `transfers`, or hold state, call it with the same list. Errors: those of Relayout::Run; then it
  // lies in no layout and has lost nothing.
  absl::StatusOr<Moved> Enter(const plan::Plan& after, const Transfers& transfers,
                              const BulkGroup& group);

  // Who reads the state of the last decided step beside what is enqueued next, on the thread that
  // trains: before a block is changed `wait` is called with it, to make the current stream (on CPU
  // the thread) wait until the reader is done with that one; nullptr: with all. `reads` says
  // whether he still reads.
  struct Reader {
    std::function<void(const StateBlock* block)> wait;
    std::function<bool()> reads;
  };
  void HoldState(const void* reader, Reader how);
  void LetGo(const void* reader) { readers_.erase(reader); }
  // Whether what was enqueued may be waiting for a reader.
  bool IsRead() const;

  // The last step of whose state host memory has a whole copy of what this rank keeps there, as
  // `copied` says when asked; kKeepsNoCopies: it keeps nothing there.
  void set_copied(std::function<int64_t()> copied) { copied_ = std::move(copied); }
  int64_t copied() const { return copied_ == nullptr ? kKeepsNoCopies : copied_(); }

  // The step after decided().step is decided.
  void Account(const Decision& decision);
  const Decision& decided() const { return decided_; }
  const Counts& counts() const { return counts_; }

  // The last step that this rank's process has told of (TrainerCallbacks::on_step), or need not.
  int64_t told() const { return told_; }
  void set_told(int64_t step) { told_ = step; }

  // The buffers hold the reduced gradients of this step; 0: of none.
  void set_reduced_step(int64_t step) { reduced_step_ = step; }
  void set_begun(int64_t step) { begun_ = step; }

  // Enqueues the optimizer of a part that trains, predicated on the decision of `step`, the one
  // after decided() or decided() itself. It runs beside what the caller enqueues next, by buckets
  // in the order in which a forward pass uses them (PartState::updated), mirrors last.
  struct Optimizing {
    bool decides = true;      // else it is tried alone, and no fault comes about
    bool everywhere = false;  // weights of mirrors, too, which take their turn by bucket then
  };
  // Errors: those of faults().
  absl::Status Optimize(const plan::Plan& plan, PartState& part, int64_t step,
                        const Optimizing& how);
  // The caller's stream waits for all that Optimize has enqueued.
  void AwaitUpdates();
  // Whether some mirror has not been given all of its state yet (StateBlock::lacking).
  bool Lacks() const;

  // With nothing enqueued.
  Standing StandingNow() const;

 private:
  TrainingState(Rank rank, const BufferOptions& options);
  // Numbers the homes of the parts, which have applied the last decided step.
  void NumberHomes();
  // Whether it knows of steps by itself: a rank without state decides alone and may be anywhere.
  bool HoldsState() const { return !parts_.empty() || !loose_.empty(); }
  absl::Status CheckStart(const Start& start) const;
  void AwaitReaders(const StateBlock* block);
  void Update(const plan::Plan& plan, PartState& part, StateBlock& block, int64_t step,
              bool weights);
  // Of own shares and of those that it mirrors, bucket by bucket, on the current stream.
  void UpdateEverywhere(const plan::Plan& plan, PartState& part, int64_t step);
  // Behind the last block of the part's homes, or of its mirrors.
  void MarkApplied(PartState& part, bool mirrors, int64_t step);

  const Rank rank_;
  const BufferOptions options_;
  std::string layout_;
  LooseState loose_;  // empty while it lies in a layout
  std::vector<std::unique_ptr<PartState>> parts_;
  int32_t homes_ = 0;
  std::unique_ptr<StepKernels> kernels_;
  const device::OwnedStream forward_stream_, backward_stream_, update_stream_, mirror_stream_;
  Moment updated_, mirrored_;  // all that is enqueued on these two
  ReductionMeans reductions_;
  FaultPoints* faults_ = &FaultPoints::None();
  Decision decided_;
  Counts counts_;
  int64_t reduced_step_ = 0;
  int64_t begun_ = 0;
  int64_t told_ = 0;
  std::map<const void*, Reader> readers_;
  std::function<int64_t()> copied_;  // nullptr: nothing is kept there
  std::function<bool()> writing_;    // nullptr: none is written
  std::atomic<int64_t> wish_{kNoWish};
};

}  // namespace phalanx::train
