#include "core/job/node_check.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace phalanx::job {
namespace {

std::string Rate(double bytes_per_second) {
  return absl::StrFormat("%.1f GB/s", bytes_per_second / 1e9);
}

}  // namespace

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
  if (check.operations_per_second > 0)
    figures.push_back(absl::StrFormat("%.1f GFLOP/s", check.operations_per_second / 1e9));
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
