// coordinator/machine/quotas.h: how much of the cluster an owner may have at a time, and what it
// has used of it.
//
// An owner is whoever a job's caller was known as; the empty one stands for everybody whom nobody
// asked. What a job has is charged to its owner from when its devices are held for its plan until
// they are free again. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "core/base/time.h"

namespace phalanx::coordinator {

inline constexpr int64_t kNoQuota = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kQueuedMax = 1000;  // where nothing is said

struct Quota {
  int64_t devices_max = kNoQuota;  // of jobs that have devices
  int64_t jobs_max = kNoQuota;     // such jobs
  // Jobs that wait, suspended ones among them; one more is refused. Left out: kQueuedMax, and any
  // number of everybody whom nobody asked.
  std::optional<int64_t> queued_max;
  // Of a job that is submitted by somebody who may not take any (SubmitRequested).
  int64_t priority_max = kNoQuota;
  double weight = 1;  // of its share: twice the weight, twice the device time. Above 0
  friend bool operator==(const Quota&, const Quota&) = default;
};
struct Quotas {
  Quota others;  // of each owner that is not named
  std::map<std::string, Quota> owners;

  const Quota& Of(const std::string& owner) const {
    const auto found = owners.find(owner);
    return found == owners.end() ? others : found->second;
  }
  friend bool operator==(const Quotas&, const Quotas&) = default;
};

// Device time of an owner, of which what is older counts less: half of it after each half-life. One
// of zero counts nothing.
class DeviceTime {
 public:
  // The owner has so many devices from `now` on, which never decreases.
  void Have(Instant now, int64_t devices, absl::Duration half_life);
  // Of before this one: so much at that instant.
  void Restore(Instant at, double device_seconds);
  // It had so many devices more from `since` until `now`.
  void Add(Instant since, Instant now, int64_t devices, absl::Duration half_life);
  // Device-seconds that count at `now`.
  double At(Instant now, absl::Duration half_life) const;
  // Until when all that was used is counted in what was restored; InfinitePast: nothing was.
  Instant restored_at() const { return restored_at_; }

 private:
  Instant as_of_ = absl::InfinitePast();
  double used_ = 0;      // device-seconds that count at as_of_
  int64_t devices_ = 0;  // since then
  Instant restored_at_ = absl::InfinitePast();
};

}  // namespace phalanx::coordinator
