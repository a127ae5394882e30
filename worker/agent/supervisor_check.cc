// The process that checks devices (worker/rank/node_check.h).
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/posix/run_delay.h"
#include "spdlog/spdlog.h"
#include "worker/agent/supervisor.h"

namespace phalanx::agent {
namespace {

// Its process group with it: before it is reaped that cannot be another's.
siginfo_t ReapChild(const Spawned& spawned) {
  kill(-spawned.pid, SIGKILL);
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(spawned.pid), &info, WEXITED) != 0 && errno == EINTR) {
  }
  return info;
}

absl::Duration RunDelayOf(const Spawned& spawned) { return RunDelay(absl::StrCat(spawned.pid)); }

}  // namespace

std::optional<CheckEnded> Supervisor::Carry(const StartCheck& order) {
  std::vector<std::string> arguments = {"--check-devices", options_.device_kind,
                                        absl::StrJoin(order.devices, ",")};
  if (!options_.check_faults.empty()) arguments.push_back(options_.check_faults);
  absl::StatusOr<Spawned> spawned = SpawnRank(options_.program, {}, std::move(arguments));
  if (!spawned.ok()) return CheckEnded{.check = order.check, .status = spawned.status()};
  spdlog::info("check={} of {} devices started pid={}", order.check.value, order.devices.size(),
               spawned->pid);
  check_ = Check{.number = order.check, .spawned = *std::move(spawned)};
  return std::nullopt;
}

void Supervisor::Carry(const KillCheck& order) {
  if (!check_.has_value() || check_->number != order.check) return;
  check_->killed = true;
  check_->starved =
      std::max(RunDelayOf(check_->spawned) - check_->delay_then, absl::ZeroDuration());
  kill(-check_->spawned.pid, SIGKILL);
}

std::optional<CheckEnded> Supervisor::Carry(const LeaveCheck& order) {
  if (!check_.has_value() || check_->number != order.check) return std::nullopt;
  ReadCheck();
  CheckEnded ended{.check = check_->number,
                   .devices = check_->output.devices(),
                   .loopback = check_->output.loopback(),
                   .status = absl::DeadlineExceededError("it was killed and does not end"),
                   .left = true,
                   .starved = check_->starved};
  spdlog::warn("check={} pid={} was killed and does not end; it is left to itself",
               order.check.value, check_->spawned.pid);
  check_->spawned.output.reset();
  left_.push_back(*std::exchange(check_, std::nullopt));
  return ended;
}

void Supervisor::ReadCheck() {
  char bytes[4096];
  while (check_->spawned.output.is_open()) {
    const ssize_t n = read(check_->spawned.output.get(), bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) return check_->spawned.output.reset();
    if (!check_->output.Append({bytes, static_cast<size_t>(n)})) continue;
    check_->delay_then = RunDelayOf(check_->spawned);
    events_.push_back(CheckProgressed{check_->number});
  }
}

void Supervisor::ReapCheck() {
  const siginfo_t info = ReapChild(check_->spawned);
  ReadCheck();
  CheckEnded ended{.check = check_->number,
                   .devices = check_->output.devices(),
                   .loopback = check_->output.loopback(),
                   .starved = check_->starved};
  if (info.si_code != CLD_EXITED) {
    ended.status = absl::InternalError(absl::StrCat("ended by signal ", info.si_status));
  } else if (info.si_status != 0) {
    ended.status = absl::InternalError(absl::StrCat("exit code ", info.si_status));
  }
  spdlog::info("check={} ended devices={}{} {}", check_->number.value, ended.devices.size(),
               check_->killed ? " killed" : "", ended.status.ToString());
  check_.reset();
  events_.push_back(std::move(ended));
}

void Supervisor::ReapLeft(size_t index) {
  ReapChild(left_[index].spawned);
  events_.push_back(CheckEnded{.check = left_[index].number});
  left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(index));
}

}  // namespace phalanx::agent
