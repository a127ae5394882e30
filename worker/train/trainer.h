// worker/train/trainer.h: trains one epoch of a plan on one rank, from where the state stands to
// the last step.
//
// That is the job's last one unless some rank wishes for the end of the job or the epoch
// (TrainingState::WishEnd, WishLeave): its wish is known with the decision of a step, when the next
// one is under way, so that one is the last, on all ranks.
//
// An epoch ends early when the state is told to stop (TrainingState::RequestStop) or when
// communicators fail. The trainer is then of no more use but for AccountForLast.
//
// Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/plan/plan.h"
#include "core/schedule/simulator.h"
#include "worker/train/batches.h"
#include "worker/train/executor.h"
#include "worker/train/skipped_steps.h"
#include "worker/train/training_state.h"
#include "worker/train/warm_passes.h"

namespace phalanx::train {

// One committed step, as the reporter rank tells it.
struct StepSummary {
  int64_t step = 0;
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  int64_t tokens = 0, counted_tokens = 0, images = 0, sounds = 0;
  double seconds = 0;  // 0: not known, another epoch ran it
  // Of these, those in which the thread that trains did not wait for its device or the decision.
  double host_seconds = 0;
  bool skipped = false;
  int64_t corrupt_samples = 0;
  StepFigures previous;  // of the step before this one, on this rank
};

// Called on the thread that trains. All are optional.
struct TrainerCallbacks {
  // Every rank; each decided step once, in order, also over several epochs of one state.
  std::function<void(const StepSummary&)> on_step;
  // Every rank, behind on_step of a step that this epoch has run: the state is that of this step,
  // or becomes it by what is enqueued, and nothing that changes it further is enqueued yet
  // (TrainingState::HoldState). An error ends training there.
  std::function<absl::Status()> on_settled;
  // Every rank, before the second step of this epoch and those behind it, where wants_boundary says
  // so, which is asked before each of them: everything up to the step before is decided and done on
  // the stream that trains, and nothing of the next is enqueued. An error ends training there.
  std::function<bool()> wants_boundary;
  std::function<absl::Status()> on_boundary;
  OnCorruptSample on_corrupt_sample;  // once a sample that this rank found
  // After the last step, on every rank: what all ranks and their communicators did in step
  // `trace_step`, rank by rank, in seconds from the first one's beginning (trace.h says how).
  std::function<void(const std::vector<schedule::TimedInstruction>&,
                     const std::vector<schedule::TimedOperation>&)>
      on_trace;
};

struct TrainerOptions {
  int64_t length_multiple = 1;  // of a microbatch's padded length (batches.h)
  // The state has trained before: it goes on from here. Absent: it holds initial values.
  std::optional<Start> start;
  int64_t last_step = 0;  // 0: the job's; not before `start`
  // The longest that the decision of a step may take once all of the step is enqueued.
  absl::Duration decision_timeout = absl::Minutes(10);
  int64_t skipped_in_a_row_max = 10;  // then the run fails (skipped_steps.h)
  int64_t trace_step = 0;             // 0: none
  // No rank's mirrors lack anything (Executor::UpdateEverywhere); else the caller says when that
  // is.
  bool mirrors_are_whole = true;
  // What this process has run before, to which is added what is run now; it outlives the trainer.
  // nullptr: nothing need be run before the first step, as on CPU, or every rank says so.
  WarmPasses* warm = nullptr;
};

class Trainer {
 public:
  // Takes back what the state was told of a stop. Everything given by reference outlives the
  // trainer.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const plan::Plan& plan, Rank rank,
                                                         comm::Communicators& communicators,
                                                         SampleSource& source, TrainingState& state,
                                                         const TrainerOptions& options,
                                                         TrainerCallbacks callbacks);

  // Makes the state ready for the first step, and warms up what TrainerOptions::warm has not:
  // passes of new shapes, by this rank alone; a whole program where no rank's process has run one,
  // so at a job's beginning. Every rank calls it. Errors: FailedPrecondition if the state cannot go
  // on from options.start; otherwise as Run.
  absl::Status Prepare();
  // After Prepare. Errors: Cancelled after a request to stop; Aborted where a record did not hold;
  // those of SkippedSteps; what communicators and stages return.
  absl::Status Run();
  // As far as it is known, and for good once Run has returned OK.
  int64_t last_step() const { return last_step_; }
  // The job does, here.
  bool ends_early() const { return last_step_ < plan_.spec.steps && !leaves_; }
  // The last step is the epoch's, and the job goes on in another one.
  bool leaves() const { return leaves_; }
  // Runs one step and waits for its decision: what tests use.
  absl::StatusOr<Decision> RunOne(int64_t step);
  // Once nothing of an epoch that ended early runs any more: accounts for a step that was decided
  // and not yet told.
  void AccountForLast();

  // Of a decided step, without what this rank alone knows of it.
  StepSummary SummaryOf(const Decision& decision) const;

  Executor& executor() { return *executor_; }

 private:
  // Of a clock that nobody sets.
  using SteadyTime = std::chrono::steady_clock::time_point;

  Trainer(const plan::Plan& plan, TrainingState& state, const TrainerOptions& options,
          TrainerCallbacks callbacks)
      : plan_(plan),
        state_(state),
        options_(options),
        callbacks_(std::move(callbacks)),
        last_step_(options.last_step > 0 ? options.last_step : plan.spec.steps) {}
  absl::Status WarmUp();
  absl::Status AtBoundary();
  absl::Status Enqueue(int64_t step);
  // Waits for the decision of the step under way, if there is one, and accounts for it.
  absl::Status Settle();
  // The same behind the last step, for somebody who watches (core/posix/activity.h).
  absl::Status SettleLast();
  // The step is decided and counted in: tells it.
  void Tell(const Decision& decision);
  int64_t FirstStep() const {
    return options_.start.has_value() ? options_.start->decision.step + 1 : 1;
  }
  // Whose record stands at `place`: those of ranks that have work, ascending.
  Rank RankOfRecord(int32_t place) const;
  absl::Status ShareTrace();

  const plan::Plan& plan_;
  TrainingState& state_;
  const TrainerOptions options_;
  TrainerCallbacks callbacks_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Batches> batches_;
  std::vector<Microbatch> microbatches_;  // of the step under way
  std::vector<Microbatch> next_;          // of step next_step_
  int64_t next_step_ = 0;

  std::array<double, 3> flops_ = {};  // of the newest steps that were begun, by step modulo 3

  int64_t last_step_;
  bool leaves_ = false;
  int64_t pending_step_ = 0;  // run, decision not yet read; 0: none
  SkippedSteps skipped_{options_.skipped_in_a_row_max};
  StepFigures trace_;                       // of trace_step, once it is known
  std::optional<SteadyTime> last_decided_;  // of this epoch; before its first step: its beginning
  double waited_ = 0;                       // by the executor, when that was decided
};

}  // namespace phalanx::train
