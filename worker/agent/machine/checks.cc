// Checks of devices that nobody uses (machine.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/agent/machine/machine.h"

namespace phalanx::agent {

bool Machine::IsWanted(int32_t device) const {
  const auto waits = [device](const auto& entry) { return entry.second.to_start.contains(device); };
  return std::any_of(assignments_.begin(), assignments_.end(), waits) ||
         std::any_of(warmings_.begin(), warmings_.end(), waits);
}

bool Machine::IsIdle(int32_t device) const {
  const auto has = [device](const auto& entry) { return entry.second.device == device; };
  return std::none_of(processes_.begin(), processes_.end(), has) && !IsWanted(device) &&
         LostDevice(device).ok();
}

bool Machine::IsChecked(int32_t device) const {
  return check_.has_value() && check_->devices.contains(device);
}

void Machine::CallOffCheck() {
  if (!check_.has_value() || std::exchange(check_->killed, true)) return;
  actions_.push_back(KillCheck{check_->number});
}

Instant Machine::CheckDeadline() const {
  if (check_.has_value()) return check_->killed ? absl::InfiniteFuture() : check_->kill_at;
  if (draining_ || session_state_ != SessionState::kOpen ||
      options_.check_interval == absl::InfiniteDuration()) {
    return absl::InfiniteFuture();
  }
  Instant next = absl::InfiniteFuture();
  for (int32_t device = 0; device < options_.devices; ++device) {
    const Instant due = check_due_[static_cast<size_t>(device)];
    if (due < next && IsIdle(device)) next = due;
  }
  return next;
}

void Machine::KeepCheck() {
  if (check_.has_value()) {
    if (std::any_of(check_->devices.begin(), check_->devices.end(),
                    [this](int32_t device) { return IsWanted(device); })) {
      CallOffCheck();
    } else if (!check_->killed && judged_ >= check_->kill_at) {
      check_->late = true;
      CallOffCheck();
    }
    return;
  }
  if (now_ < CheckDeadline()) return;
  Check check;
  for (int32_t device = 0; device < options_.devices; ++device) {
    if (check_due_[static_cast<size_t>(device)] <= now_ && IsIdle(device))
      check.devices.insert(device);
  }
  check.number = last_check_ = CheckNumber{last_check_.value + 1};
  check.kill_at = now_ + options_.check_timeout;
  actions_.push_back(StartCheck{check.number, {check.devices.begin(), check.devices.end()}});
  check_ = std::move(check);
}

void Machine::Apply(const CheckProgressed& event) {
  if (check_.has_value() && check_->number == event.check)
    check_->kill_at = now_ + options_.check_timeout;
}

void Machine::Apply(const CheckEnded& event) {
  if (!check_.has_value() || check_->number != event.check) return;
  Check check = *std::exchange(check_, std::nullopt);
  const auto keep = [this](job::DeviceCheck found) {
    found.time = now_;
    check_due_[static_cast<size_t>(found.device)] = now_ + options_.check_interval;
    const auto place = std::lower_bound(
        checked_.devices.begin(), checked_.devices.end(), found.device,
        [](const job::DeviceCheck& one, int32_t device) { return one.device < device; });
    if (found.verdict == job::CheckVerdict::kFailed)
      Log(absl::StrCat("device ", found.device, " failed its check: ", found.reason));
    if (place != checked_.devices.end() && place->device == found.device) {
      *place = std::move(found);
    } else {
      checked_.devices.insert(place, std::move(found));
    }
    check_untold_ = true;
  };
  for (const job::DeviceCheck& found : event.devices) {
    if (check.devices.erase(found.device) != 0) keep(found);
  }
  if (event.loopback.has_value()) {
    checked_.loopback = *event.loopback;
    check_untold_ = true;
  }
  // Checked in order: the first without a word is the one that it was at.
  if (check.late && !check.devices.empty()) {
    const int32_t device = *check.devices.begin();
    check.devices.erase(device);
    keep({.device = device,
          .verdict = job::CheckVerdict::kFailed,
          .reason = absl::StrCat("a check did not get past it within ",
                                 absl::FormatDuration(options_.check_timeout),
                                 ": the device or its driver does not answer")});
  }
  if (!check.killed && !event.status.ok())
    Log(absl::StrCat("a check of devices ended early: ", OneLine(event.status)));
  for (const int32_t device : check.devices) {
    check_due_[static_cast<size_t>(device)] =
        now_ + (check.killed ? options_.check_delay : options_.check_interval);
  }
  if (check_untold_) ++checked_.number;
  StartProcesses();
  StartWarming();
}

}  // namespace phalanx::agent
