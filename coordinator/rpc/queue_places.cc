#include "coordinator/rpc/queue_places.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

absl::StatusOr<std::shared_ptr<void>> QueuePlaces::Take(const std::string& owner, int64_t queued) {
  if (owner.empty() || person_max_ == 0) return nullptr;
  MutexLock lock(&mu_);
  int64_t& taken = taken_[owner];
  if (queued + taken >= person_max_) {
    const int64_t all = queued + taken;
    if (taken == 0) taken_.erase(owner);
    return absl::ResourceExhaustedError(
        absl::StrCat(owner, " has ", all, " jobs in the queue; at most ", person_max_,
                     ": wait until some have begun, or cancel some"));
  }
  ++taken;
  return std::shared_ptr<void>(this, [this, owner](void*) { GiveBack(owner); });
}

void QueuePlaces::GiveBack(const std::string& owner) {
  MutexLock lock(&mu_);
  const auto found = taken_.find(owner);
  if (found != taken_.end() && --found->second == 0) taken_.erase(found);
}

}  // namespace phalanx::coordinator
