#include "worker/train/device_wait.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/posix/activity.h"

namespace phalanx::train {
namespace {

constexpr absl::Duration kPoll = absl::Microseconds(20);
constexpr std::chrono::milliseconds kCheckInterval{10};

Waiting::For KindOf(const DeviceWait& wait) {
  return wait.excused() ? Waiting::kAnything : Waiting::kNeed;
}

}  // namespace

absl::Status AwaitDevice(const DeviceWait& wait) {
  Waiting::For kind = KindOf(wait);
  std::optional<Waiting> for_device(std::in_place, kind);
  const auto begin = std::chrono::steady_clock::now();
  const auto deadline = begin + absl::ToChronoNanoseconds(wait.patience);
  auto check_at = begin + kCheckInterval;
  while (!wait.done()) {
    if (wait.stopped()) return absl::CancelledError("asked to stop");
    const auto now = std::chrono::steady_clock::now();
    const bool late = now >= deadline;
    if (late || now >= check_at) {
      RETURN_IF_ERROR(wait.check());
      if (const Waiting::For now_for = KindOf(wait); std::exchange(kind, now_for) != now_for) {
        for_device.reset();
        for_device.emplace(kind);
      }
      check_at = now + kCheckInterval;
    }
    if (late) {
      return job::WithKind(job::FailureKind::kPeerLost,
                           absl::DeadlineExceededError(absl::StrCat(
                               wait.missing, " after ", absl::FormatDuration(wait.patience))));
    }
    absl::SleepFor(kPoll);
  }
  return absl::OkStatus();
}

}  // namespace phalanx::train
