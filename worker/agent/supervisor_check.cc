// The process that checks devices (worker/rank/node_check.h).
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/wire/check_codec.h"
#include "google/protobuf/util/json_util.h"
#include "phalanx/v1/common.pb.h"
#include "spdlog/spdlog.h"
#include "worker/agent/supervisor.h"

namespace phalanx::agent {
namespace {

// Of all that a check prints: some 600 bytes a device.
constexpr size_t kCheckBytesMax = 1 << 20;
constexpr size_t kOtherLinesMax = 20;
constexpr int kNodeDevicesMax = 1024;

// Each line that is a NodeCheck says what was found of a device or of the node.
void Read(absl::string_view output, CheckEnded& ended) {
  size_t others = 0;
  for (const absl::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    v1::NodeCheck said;
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;
    if (!absl::StartsWith(line, "{") ||
        !google::protobuf::util::JsonStringToMessage(std::string(line), &said, options).ok()) {
      if (++others <= kOtherLinesMax) spdlog::info("check of devices: {}", std::string(line));
      continue;
    }
    job::NodeCheck found = wire::FromProto(said, kNodeDevicesMax);
    for (job::DeviceCheck& device : found.devices) {
      if (device.verdict != job::CheckVerdict::kNone) ended.devices.push_back(std::move(device));
    }
    if (said.has_loopback()) ended.loopback = std::move(found.loopback);
  }
}

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
  kill(-check_->spawned.pid, SIGKILL);
}

void Supervisor::ReadCheck() {
  char bytes[4096];
  while (check_->spawned.output.is_open()) {
    const ssize_t n = read(check_->spawned.output.get(), bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) return check_->spawned.output.reset();
    if (memchr(bytes, '\n', static_cast<size_t>(n)) != nullptr)
      events_.push_back(CheckProgressed{check_->number});
    const size_t room = kCheckBytesMax - std::min(kCheckBytesMax, check_->output.size());
    check_->output.append(bytes, std::min(room, static_cast<size_t>(n)));
  }
}

void Supervisor::ReapCheck() {
  // Before it is reaped its process group cannot be another's.
  kill(-check_->spawned.pid, SIGKILL);
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(check_->spawned.pid), &info, WEXITED) != 0 &&
         errno == EINTR) {
  }
  ReadCheck();
  CheckEnded ended{.check = check_->number};
  if (info.si_code != CLD_EXITED) {
    ended.status = absl::InternalError(absl::StrCat("ended by signal ", info.si_status));
  } else if (info.si_status != 0) {
    ended.status = absl::InternalError(absl::StrCat("exit code ", info.si_status));
  }
  Read(check_->output, ended);
  spdlog::info("check={} ended devices={}{} {}", check_->number.value, ended.devices.size(),
               check_->killed ? " killed" : "", ended.status.ToString());
  check_.reset();
  events_.push_back(std::move(ended));
}

}  // namespace phalanx::agent
