// Checks of devices that nobody uses (machine.h).
#include <algorithm>
#include <string>
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
  check_->leave_at = now_ + options_.check_leave_delay;
  actions_.push_back(KillCheck{check_->number});
}

Instant Machine::CheckDeadline() const {
  if (check_.has_value()) return check_->killed ? check_->leave_at : check_->kill_at;
  // No more of them than devices.
  if (left_checks_.size() >= static_cast<size_t>(options_.devices)) return absl::InfiniteFuture();
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
    if (check_->killed && judged_ >= check_->leave_at) {
      check_->leave_at = absl::InfiniteFuture();
      actions_.push_back(LeaveCheck{check_->number});
    } else if (std::any_of(check_->devices.begin(), check_->devices.end(),
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

void Machine::NoteChecked(job::DeviceCheck found) {
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
}

int32_t Machine::BlameDevice(Check& check, const CheckEnded& event) {
  if (check.devices.empty() || (!check.late && !event.left)) return -1;
  // Checked in order: the first without a word is the one that it was at.
  const int32_t device = *check.devices.begin();
  if (!event.left && event.starved > options_.check_timeout / 2) {
    Log(absl::StrCat("a check of device ", device, " was late and says nothing of it: for ",
                     absl::FormatDuration(event.starved), " others ran in its place"));
    return -1;
  }
  check.devices.erase(device);
  const std::string what =
      event.left ? absl::StrCat("a check of it did not end within ",
                                absl::FormatDuration(options_.check_leave_delay), " of SIGKILL")
                 : absl::StrCat("a check did not get past it within ",
                                absl::FormatDuration(options_.check_timeout));
  NoteChecked({.device = device,
               .verdict = job::CheckVerdict::kFailed,
               .reason = absl::StrCat(what, ": the device or its driver does not answer")});
  return device;
}

void Machine::Apply(const CheckEnded& event) {
  if (const auto left = left_checks_.find(event.check); left != left_checks_.end()) {
    const int32_t device = left->second;
    left_checks_.erase(left);
    Log(absl::StrCat("a check that had been left to itself has ended: check=", event.check.value));
    if (device >= 0) check_due_[static_cast<size_t>(device)] = now_ + options_.check_delay;
    return;
  }
  if (!check_.has_value() || check_->number != event.check) return;
  Check check = *std::exchange(check_, std::nullopt);
  for (const job::DeviceCheck& found : event.devices) {
    if (check.devices.erase(found.device) == 0) continue;
    if (found.verdict == job::CheckVerdict::kNone) {
      check_due_[static_cast<size_t>(found.device)] = now_ + options_.check_interval;
    } else {
      NoteChecked(found);
    }
  }
  if (event.loopback.has_value()) {
    checked_.loopback = *event.loopback;
    check_untold_ = true;
  }
  const int32_t blamed = BlameDevice(check, event);
  if (event.left) left_checks_.emplace(event.check, blamed);
  if (!check.killed && !event.status.ok())
    Log(absl::StrCat("a check of devices ended early: ", OneLine(event.status)));
  // One that was late although it was at no fault of a device finds the machine busy.
  const bool starved = check.late && blamed < 0;
  const bool soon = !starved && (check.killed || !event.devices.empty());
  for (const int32_t device : check.devices) {
    check_due_[static_cast<size_t>(device)] =
        now_ + (soon ? options_.check_delay : options_.check_interval);
  }
  if (check_untold_) ++checked_.number;
  if (event.left && blamed >= 0) {
    // Before its job fails for it: a new plan is to have another device.
    if (session_state_ == SessionState::kOpen) SendHeartbeatNow();
    FailWaiting(blamed);
  }
  StartProcesses();
  StartWarming();
}

}  // namespace phalanx::agent
