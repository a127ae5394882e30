#include "core/job/node_check.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace phalanx::job {
namespace {

// Far below what any sound device does, and far below what a loaded one does. Bytes a second.
constexpr double kSlowCpu = 100e6, kSlowGpu = 1e9, kSlowPeer = 1e9;
// A device that is as good as out of reach.
constexpr double kUseless = 1e6;

std::string Rate(double bytes_per_second) {
  return absl::StrFormat("%.1f GB/s", bytes_per_second / 1e9);
}

std::string Operations(double per_second) {
  constexpr double kTera = 1e12;
  return per_second < kTera ? absl::StrFormat("%.1f GFLOP/s", per_second / 1e9)
                            : absl::StrFormat("%.1f TFLOP/s", per_second / kTera);
}

}  // namespace

void JudgeRates(bool gpu, DeviceCheck& check) {
  std::vector<std::string> slow;
  const auto judge = [&](double rate, double slowest, const std::string& what) {
    if (rate < kUseless) {
      check.verdict = CheckVerdict::kFailed;
      check.reason = absl::StrFormat("%s at %.3f MB/s: it cannot be used", what, rate / 1e6);
    } else if (rate < slowest) {
      slow.push_back(
          absl::StrFormat("%s at %.0f MB/s, below %.0f MB/s", what, rate / 1e6, slowest / 1e6));
    }
    return check.verdict != CheckVerdict::kFailed;
  };
  const double slowest = gpu ? kSlowGpu : kSlowCpu;
  if (!judge(check.to_bytes_per_second, slowest, "copies to it") ||
      !judge(check.from_bytes_per_second, slowest, "copies from it") ||
      (check.peer >= 0 && !judge(check.peer_bytes_per_second, kSlowPeer,
                                 absl::StrCat("copies from device ", check.peer)))) {
    return;
  }
  if (slow.empty()) return;
  check.verdict = CheckVerdict::kSlow;
  check.reason = absl::StrJoin(slow, "; ");
}

absl::string_view ToString(CheckVerdict verdict) {
  switch (verdict) {
    case CheckVerdict::kNone:
      return "";
    case CheckVerdict::kPassed:
      return "passed";
    case CheckVerdict::kSlow:
      return "slow";
    case CheckVerdict::kFailed:
      return "failed";
  }
  return "";
}

std::string FiguresOf(const DeviceCheck& check) {
  std::vector<std::string> figures;
  if (check.memory_bytes > 0) {
    figures.push_back(
        absl::StrFormat("%.1f MiB kept", static_cast<double>(check.memory_bytes) / (1 << 20)));
  }
  if (check.operations_per_second > 0) figures.push_back(Operations(check.operations_per_second));
  if (check.to_bytes_per_second > 0)
    figures.push_back(absl::StrCat(Rate(check.to_bytes_per_second), " to it"));
  if (check.from_bytes_per_second > 0)
    figures.push_back(absl::StrCat(Rate(check.from_bytes_per_second), " from it"));
  if (check.peer_bytes_per_second > 0) {
    figures.push_back(absl::StrCat(Rate(check.peer_bytes_per_second), " from device ", check.peer));
  }
  return absl::StrJoin(figures, ", ");
}

std::string FiguresOf(const LoopbackCheck& check) {
  if (check.bytes_per_second <= 0) return "";
  return absl::StrFormat("%s, %.0f us there and back", Rate(check.bytes_per_second),
                         check.round_trip_seconds * 1e6);
}

}  // namespace phalanx::job
