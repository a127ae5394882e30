// worker/train/fault_points.h: places in a rank's work at which it can be told to fail.
//
// A point costs a relaxed load while no fault is there. On CUDA the host runs ahead of the device:
// a point is where the host comes to enqueue a phase, and what it enqueued before may still run.
//
//   forward, backward  before a pass
//   reduce             before a part's gradients are reduced, mirrors given theirs
//   record             before the record of the step is made: nothing of it is decided
//   optimizer          before a part's own state is updated: the step is decided
//   mirror             behind that, before the state that this rank mirrors is updated, or, where
//   it
//                      updates all weights, before both
//   gather             before a part's parameters are gathered, if they are
//   checkpoint         before each block of the part of a checkpoint, on the thread that writes it
//   recovery           of an epoch that goes on: step 0 before it is told from where, and again, of
//                      the step that it goes on behind, before state moves
//
// What is no number (kNan) is made where these come to something, which may be a little later: what
// a forward pass gives, a part's gradients before a backward pass or before their sums begin, the
// sums of the record.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/job/injected_fault.h"

namespace phalanx::train {

// Stops the process, all its threads, as SIGSTOP does; with a duration it goes on after it: a timer
// of the kernel sends SIGCONT, for a stopped process can do nothing for itself.
void StopProcess(std::optional<absl::Duration> duration);

class FaultPoints {
 public:
  // Called on the thread that comes to where the fault comes about, right before.
  using Tell =
      std::function<void(const job::InjectedFault& fault, job::FaultPhase phase, int64_t step)>;
  explicit FaultPoints(Tell tell = nullptr) : tell_(std::move(tell)) {}

  // That of tests and of whoever has none.
  static FaultPoints& None();

  // Kill, stop and exit that are at_once() come about in here. Any other takes the place of one
  // that has not come about yet.
  void Inject(const job::InjectedFault& fault) ABSL_LOCKS_EXCLUDED(mu_);

  bool armed() const { return armed_.load(std::memory_order_relaxed); }

  // This thread comes to `phase` of `step`. Does not return if the process ends there, or until a
  // hang is over. Errors: ResourceExhausted, of the kind OutOfMemory.
  absl::Status Reach(job::FaultPhase phase, int64_t step) {
    return armed() ? Come(phase, step) : absl::OkStatus();
  }
  // Whether what comes of `phase` of this step is to be no number; once. Asked where that can be
  // brought about; where no phase is named it is of the record.
  bool Spoils(job::FaultPhase phase, int64_t step) { return armed() && Spoil(phase, step); }
  // How many times as long a pass of `step` is to take: 1 or more. Where a phase is named it is 1
  // until that is reached.
  double SlowFactor(int64_t step) { return armed() ? Slow(step) : 1; }

 private:
  absl::Status Come(job::FaultPhase phase, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  bool Spoil(job::FaultPhase phase, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  double Slow(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  void DisarmLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Told(const job::InjectedFault& fault, job::FaultPhase phase, int64_t step) const {
    if (tell_ != nullptr) tell_(fault, phase, step);
  }

  const Tell tell_;
  std::atomic<bool> armed_ = false;  // whether there is a fault_
  Mutex mu_;
  std::optional<job::InjectedFault> fault_ ABSL_GUARDED_BY(mu_);
  // Of one that lasts and has begun.
  std::optional<std::chrono::steady_clock::time_point> begun_ ABSL_GUARDED_BY(mu_);
};

}  // namespace phalanx::train
