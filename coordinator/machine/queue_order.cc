#include "coordinator/machine/queue_order.h"

#include <algorithm>

namespace phalanx::coordinator {

Instant EnoughFreeAt(Instant now, int64_t free, std::vector<HeldDevices> held, int64_t needed) {
  if (free >= needed) return now;
  std::sort(held.begin(), held.end(),
            [](const HeldDevices& a, const HeldDevices& b) { return a.until < b.until; });
  for (const HeldDevices& devices : held) {
    free += devices.count;
    if (free >= needed) return std::max(now, devices.until);
  }
  return absl::InfiniteFuture();
}

Instant LastStartAt(Instant now, int64_t free, std::vector<HeldDevices> held,
                    absl::Span<const Demand> queue) {
  const auto sooner = [](const HeldDevices& a, const HeldDevices& b) { return a.until < b.until; };
  std::sort(held.begin(), held.end(), sooner);
  size_t next = 0;  // those before it are free again
  Instant start = now;
  for (const Demand& demand : queue) {
    while (next < held.size() && (held[next].until <= start || free < demand.devices)) {
      if (held[next].until == absl::InfiniteFuture()) return absl::InfiniteFuture();
      start = std::max(start, held[next].until);
      free += held[next++].count;
    }
    if (free < demand.devices) return absl::InfiniteFuture();
    free -= demand.devices;
    const HeldDevices taken{demand.devices, start + demand.run};
    held.insert(std::upper_bound(held.begin() + static_cast<std::ptrdiff_t>(next), held.end(),
                                 taken, sooner),
                taken);
  }
  return start;
}

std::vector<JobId> WhoLeaves(int64_t missing, std::vector<Preemptible> candidates) {
  std::sort(candidates.begin(), candidates.end(),
            [](const Preemptible& a, const Preemptible& b) { return b.place < a.place; });
  std::vector<Preemptible> leaving;
  int64_t freed = 0;
  for (const Preemptible& candidate : candidates) {
    if (freed >= missing) break;
    freed += candidate.devices;
    leaving.push_back(candidate);
  }
  if (freed < missing) return {};
  // Those that were taken last have the most to lose.
  std::vector<JobId> jobs;
  for (auto it = leaving.rbegin(); it != leaving.rend(); ++it) {
    if (freed - it->devices >= missing) {
      freed -= it->devices;
    } else {
      jobs.push_back(it->place.job);
    }
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

}  // namespace phalanx::coordinator
