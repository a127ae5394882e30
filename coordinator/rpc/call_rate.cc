#include "coordinator/rpc/call_rate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

double CallRate::CallsOf(const Store& store, SteadyTime now) const {
  const double since = absl::ToDoubleSeconds(absl::FromChrono(now - store.at));
  return std::min(options_.calls_at_once,
                  store.calls + std::max(0.0, since) * options_.calls_per_second);
}

absl::Status CallRate::Take(const Caller& caller, SteadyTime now) {
  if (options_.calls_per_second == 0 || !caller.has_value()) return absl::OkStatus();
  const std::string key = KeyOf(*caller);
  MutexLock lock(&mu_);
  auto found = stores_.find(key);
  if (found == stores_.end()) {
    if (stores_.size() >= options_.callers_max) {
      std::erase_if(stores_, [&](const auto& entry) {
        return CallsOf(entry.second, now) >= options_.calls_at_once;
      });
    }
    if (stores_.size() >= options_.callers_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat(stores_.size(), " callers call at once; ask again in 1 s"));
    }
    found = stores_.emplace(key, Store{options_.calls_at_once, now}).first;
  }
  Store& store = found->second;
  store = {CallsOf(store, now), now};
  if (store.calls < 1) {
    return absl::ResourceExhaustedError(absl::StrCat(caller->name, " calls more often than ",
                                                     options_.calls_per_second,
                                                     " times a second; ask again in 1 s"));
  }
  store.calls -= 1;
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator
