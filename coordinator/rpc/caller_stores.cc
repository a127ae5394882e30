#include "coordinator/rpc/caller_stores.h"

#include <algorithm>

namespace phalanx::coordinator {

double CallerStores::AmountOf(const Store& store, SteadyTime now) const {
  const double since = std::max(0.0, absl::ToDoubleSeconds(absl::FromChrono(now - store.at)));
  return std::min(options_.size, store.amount + since * options_.per_second);
}

CallerStores::Store* CallerStores::StoreLocked(const Identity& caller, SteadyTime now) {
  const std::string key = KeyOf(caller);
  auto found = stores_.find(key);
  if (found == stores_.end()) {
    if (stores_.size() >= options_.callers_max) {
      std::erase_if(
          stores_, [&](const auto& entry) { return AmountOf(entry.second, now) >= options_.size; });
    }
    if (stores_.size() >= options_.callers_max) return nullptr;
    found = stores_.emplace(key, Store{options_.size, now}).first;
  }
  found->second = {AmountOf(found->second, now), now};
  return &found->second;
}

CallerStores::Taken CallerStores::Take(const Caller& caller, double amount, SteadyTime now) {
  if (!Counts(caller)) return Taken::kTaken;
  MutexLock lock(&mu_);
  Store* const store = StoreLocked(*caller, now);
  if (store == nullptr) return Taken::kTooMany;
  if (store->amount < amount) return Taken::kNotThere;
  store->amount -= amount;
  return Taken::kTaken;
}

absl::Duration CallerStores::Spend(const Caller& caller, double amount, SteadyTime now) {
  if (!Counts(caller)) return absl::ZeroDuration();
  MutexLock lock(&mu_);
  Store* const store = StoreLocked(*caller, now);
  if (store == nullptr) return absl::Seconds(1);
  store->amount -= amount;
  return absl::Seconds(std::max(0.0, -store->amount / options_.per_second));
}

}  // namespace phalanx::coordinator
