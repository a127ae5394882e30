#include "coordinator/rpc/upload_pace.h"

#include <algorithm>

namespace phalanx::coordinator {

double UploadPace::BytesOf(const Store& store, SteadyTime now) const {
  const double since = std::max(0.0, absl::ToDoubleSeconds(absl::FromChrono(now - store.at)));
  return std::min(kSecondsAtOnce * rate_, store.bytes + since * rate_);
}

absl::Duration UploadPace::Take(const Caller& caller, int64_t bytes, SteadyTime now) {
  if (rate_ == 0 || !caller.has_value()) return absl::ZeroDuration();
  const std::string key = KeyOf(*caller);
  MutexLock lock(&mu_);
  auto found = stores_.find(key);
  if (found == stores_.end()) {
    if (stores_.size() >= kCallersMax) {
      std::erase_if(stores_, [&](const auto& entry) {
        return BytesOf(entry.second, now) >= kSecondsAtOnce * rate_;
      });
    }
    if (stores_.size() >= kCallersMax) return absl::Seconds(1);
    found = stores_.emplace(key, Store{kSecondsAtOnce * rate_, now}).first;
  }
  Store& store = found->second;
  store = {BytesOf(store, now) - static_cast<double>(bytes), now};
  return absl::Seconds(std::max(0.0, -store.bytes / rate_));
}

}  // namespace phalanx::coordinator
