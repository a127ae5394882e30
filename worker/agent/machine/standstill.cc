// How long a process may not run, or its training stand still where it waits for nobody. How long
// it has stood where it does wait is told to the coordinator, who knows of all ranks.
#include <algorithm>
#include <optional>
#include <utility>

#include "worker/agent/machine/machine.h"

namespace phalanx::agent {
namespace {

// Longer than a machine with much to do keeps a process from being seen to run.
constexpr absl::Duration kStopped = absl::Seconds(3);

}  // namespace

void Machine::Apply(const ProcessRan& event) {
  const auto found = processes_.find(event.process);
  if (found == processes_.end()) return;
  Process& process = found->second;
  if (process.state == ProcessState::kEnding || process.state == ProcessState::kDead) return;
  // Who was stopped did not wait meanwhile: others may have waited for him.
  const absl::Duration gap = now_ - std::exchange(process.ran_at, now_);
  if (gap > kStopped) LeaveOutOfWait(process, gap);
  NoteWait(process, event.waits, now_);
  const bool before = std::exchange(process.stands_still, event.stands_still);
  if (event.stands_still && before) return;
  const bool before_steps = event.stands_still && !process.step_times.trains();
  absl::Duration patience = !before_steps ? PatienceWith(process)
                            : process.step_times.Slow().has_value()
                                ? options_.standstill_timeout_recovery
                                : options_.standstill_timeout_start;
  if (event.stands_still && HasDead()) patience = std::max(patience, options_.teardown_timeout);
  process.hung_at = now_ + patience;
}

absl::Duration Machine::PatienceWith(const Process& process) const {
  const std::optional<absl::Duration> step = process.step_times.Slow();
  return step.has_value() ? std::max(options_.hang_timeout_min, 10 * *step)
                          : options_.hang_timeout_start;
}

bool Machine::HasDead() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const auto& entry) {
    return entry.second.killed || entry.second.state == ProcessState::kDead;
  });
}

void Machine::ExcuseStandstills() {
  const bool dead = HasDead();
  for (auto& [number, process] : processes_) {
    if (!process.stands_still || process.hung_at <= judged_ ||
        process.hung_at == absl::InfiniteFuture()) {
      continue;
    }
    process.hung_at = dead ? std::max(process.hung_at, now_ + options_.teardown_timeout)
                           : std::min(process.hung_at, now_ + PatienceWith(process));
  }
}

void Machine::NoteWait(Process& process, bool waits, Instant now) {
  process.waits_since = waits ? std::min(process.waits_since, now) : absl::InfiniteFuture();
  process.waits = waits ? now - process.waits_since : absl::ZeroDuration();
}

void Machine::LeaveOutOfWait(Process& process, absl::Duration time) const {
  if (process.waits_since < absl::InfiniteFuture())
    process.waits_since = std::min(process.waits_since + time, now_);
}

// Who makes ready may have the driver make the others wait, and so may who is dead, for so long as
// those that stand still are given beside him. He may be there for ever.
absl::Duration Machine::WaitOf(JobId job, Epoch epoch) const {
  absl::Duration waits = absl::InfiniteDuration(), undisturbed = absl::InfiniteDuration();
  for (const auto& [number, process] : processes_) {
    if (process.gone_at < absl::InfiniteFuture()) {
      undisturbed = std::min(undisturbed, now_ - process.gone_at - options_.teardown_timeout);
      continue;
    }
    const bool is_warm = process.state == ProcessState::kIdle &&
                         process.kill_at == absl::InfiniteFuture();  // and in no epoch
    if (process.job != job || process.succeeded || is_warm) continue;
    if (process.state != ProcessState::kRunning || process.epoch != epoch)
      return absl::ZeroDuration();
    waits = std::min(waits, process.waits);
  }
  if (waits == absl::InfiniteDuration()) return absl::ZeroDuration();
  return std::max(std::min(waits, undisturbed), absl::ZeroDuration());
}

}  // namespace phalanx::agent
