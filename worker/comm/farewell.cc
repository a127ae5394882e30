#include "worker/comm/farewell.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/base/accused.h"

namespace phalanx::comm {
namespace {

constexpr size_t kAccusedAt = kFarewellBytes - 1 - sizeof(int32_t);

}  // namespace

std::string FarewellOf(Leaving how, absl::string_view text, Rank accused) {
  std::string farewell(text.substr(0, kAccusedAt));
  farewell.resize(kAccusedAt);
  farewell.append(reinterpret_cast<const char*>(&accused.value), sizeof(accused.value));
  farewell.push_back(static_cast<char>(how));
  return farewell;
}

Leaving HowLeft(char* farewell) {
  return static_cast<Leaving>(
      std::atomic_ref(farewell[kFarewellBytes - 1]).load(std::memory_order_acquire));
}

absl::Status Passed(char* farewell) {
  const Leaving how = HowLeft(farewell);
  const absl::string_view text(farewell, strnlen(farewell, kAccusedAt));
  if (how == Leaving::kStopped) return absl::AbortedError(text);
  if (how != Leaving::kFailed) return absl::OkStatus();
  int32_t accused = 0;
  std::memcpy(&accused, farewell + kAccusedAt, sizeof(accused));
  return Accusing(Rank{accused}, absl::UnavailableError(text));
}

}  // namespace phalanx::comm
