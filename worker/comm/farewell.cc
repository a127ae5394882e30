#include "worker/comm/farewell.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
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

std::string FarewellOf(int32_t self, const absl::Status& reason, Blame blame) {
  if (reason.ok()) return FarewellOf(Leaving::kHealthy, "", Rank{self});
  const Leaving how = blame == Blame::kNobody ? Leaving::kStopped : Leaving::kFailed;
  Rank accused{self};
  if (blame == Blame::kPeer) accused = AccusedIn(reason).value_or(accused);
  const bool began_here = blame == Blame::kSelf || absl::IsCancelled(reason);
  if (!began_here) return FarewellOf(how, reason.message(), accused);
  const absl::string_view end = how == Leaving::kStopped ? " was told to stop: " : " is gone: ";
  return FarewellOf(how, absl::StrCat("rank ", self, end, reason.message()), accused);
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

absl::Status Gone(int32_t peer, absl::string_view what) {
  if (const size_t end = what.find("] "); !what.empty() && what[0] == '[' && end != what.npos)
    what.remove_prefix(end + 2);
  return Accusing(Rank{peer},
                  absl::UnavailableError(absl::StrCat("rank ", peer, " is gone: ", what)));
}

}  // namespace phalanx::comm
