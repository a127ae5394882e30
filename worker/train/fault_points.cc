#include "worker/train/fault_points.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

#include "core/job/failure.h"

namespace phalanx::train {
namespace {

using job::FaultKind;
using job::FaultPhase;
using std::chrono::steady_clock;

constexpr absl::Duration kForEver = absl::Hours(24 * 365);

// Nothing on this thread, not even an order to stop, ends it earlier.
void Hang(std::optional<absl::Duration> duration) {
  std::this_thread::sleep_for(absl::ToChronoNanoseconds(duration.value_or(kForEver)));
}

[[noreturn]] void Exit() { _exit(1); }

// Of all phases the one that no thread which trains comes to is not any, and of a message of a step
// neither is a recovery.
bool IsIn(FaultPhase phase, const job::InjectedFault& fault) {
  if (fault.phase != FaultPhase::kAny) return fault.phase == phase;
  const bool of_a_step = phase != FaultPhase::kRecovery || fault.kind != FaultKind::kMute;
  return phase != FaultPhase::kCheckpoint && of_a_step;
}

}  // namespace

void StopProcess(std::optional<absl::Duration> duration) {
  timer_t timer{};
  bool timed = false;
  if (duration.has_value()) {
    // With a handler, so that the timer goes on even if it comes before the stop.
    struct sigaction nothing {};
    nothing.sa_handler = [](int) {};
    nothing.sa_flags = SA_RESTART;
    sigaction(SIGCONT, &nothing, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGCONT;
    const timespec after = absl::ToTimespec(*duration);
    const itimerspec times{.it_interval = after, .it_value = after};
    timed = timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 &&
            timer_settime(timer, 0, &times, nullptr) == 0;
  }
  // Without its timer nobody would wake it. To this thread, which then does not come to delete the
  // timer before all of the process stands still.
  if (timed || !duration.has_value()) raise(SIGSTOP);
  if (timed) timer_delete(timer);
}

FaultPoints& FaultPoints::None() {
  static FaultPoints none;
  return none;
}

void FaultPoints::Inject(const job::InjectedFault& fault) {
  if (fault.at_once()) {
    if (fault.kind == FaultKind::kKill) kill(getpid(), SIGKILL);
    if (fault.kind == FaultKind::kExit) Exit();
    if (fault.kind == FaultKind::kStop) return StopProcess(fault.duration);
  }
  const MutexLock lock(&mu_);
  fault_ = fault;
  begun_.reset();
  armed_.store(true, std::memory_order_relaxed);
}

void FaultPoints::DisarmLocked() {
  fault_.reset();
  begun_.reset();
  armed_.store(false, std::memory_order_relaxed);
}

absl::Status FaultPoints::Come(FaultPhase phase, int64_t step) {
  job::InjectedFault fault;
  {
    const MutexLock lock(&mu_);
    if (!fault_.has_value() || step < fault_->at_step || !IsIn(phase, *fault_))
      return absl::OkStatus();
    const bool slow = fault_->kind == FaultKind::kSlow;
    // Without a phase it is slow from a pass on.
    const bool begins = slow && fault_->phase != FaultPhase::kAny && !begun_.has_value();
    if (fault_->kind == FaultKind::kNan || (slow && !begins)) return absl::OkStatus();
    fault = *fault_;
    if (begins) {
      begun_ = steady_clock::now();
    } else {
      DisarmLocked();
    }
  }
  Told(fault, phase, step);
  switch (fault.kind) {
    case FaultKind::kKill:
      kill(getpid(), SIGKILL);
      break;
    case FaultKind::kExit:
      Exit();
    case FaultKind::kStop:
      StopProcess(fault.duration);
      break;
    case FaultKind::kHang:
      Hang(fault.duration);
      break;
    case FaultKind::kXid:
      Hang(fault.duration);  // until the daemon, which was told, ends it
      break;
    case FaultKind::kOom:
      return job::WithKind(job::FailureKind::kOutOfMemory,
                           absl::ResourceExhaustedError("out of memory (on demand)"));
    case FaultKind::kThrow:
      throw std::runtime_error("an exception (on demand)");
    default:  // kPartition, kMute: who was told goes on from here; kSlow: passes are slow
      break;
  }
  return absl::OkStatus();
}

bool FaultPoints::Spoil(FaultPhase phase, int64_t step) {
  job::InjectedFault fault;
  {
    const MutexLock lock(&mu_);
    if (!fault_.has_value() || fault_->kind != FaultKind::kNan || step < fault_->at_step)
      return false;
    const FaultPhase of = fault_->phase == FaultPhase::kAny ? FaultPhase::kRecord : fault_->phase;
    if (of != phase) return false;
    fault = *fault_;
    DisarmLocked();
  }
  Told(fault, phase, step);
  return true;
}

double FaultPoints::Slow(int64_t step) {
  job::InjectedFault fault;
  bool first = false;
  {
    const MutexLock lock(&mu_);
    if (!fault_.has_value() || fault_->kind != FaultKind::kSlow) return 1;
    const bool waits = step < fault_->at_step || fault_->phase != FaultPhase::kAny;
    if (waits && !begun_.has_value()) return 1;
    fault = *fault_;
    const steady_clock::time_point now = steady_clock::now();
    first = !begun_.has_value();
    if (first) begun_ = now;
    if (fault.duration.has_value() && now - *begun_ >= absl::ToChronoNanoseconds(*fault.duration)) {
      DisarmLocked();
      return 1;
    }
  }
  if (first) Told(fault, FaultPhase::kAny, step);
  return fault.factor;
}

}  // namespace phalanx::train
