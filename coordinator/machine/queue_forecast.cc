#include "coordinator/machine/queue_forecast.h"

#include <algorithm>

#include "core/base/rough_time.h"

namespace phalanx::coordinator {
namespace {

// What a job may take before its time_limit counts, to be planned, and behind its end, for its
// processes to be gone.
constexpr absl::Duration kPlanned = absl::Seconds(30), kGone = absl::Seconds(30);
// Beyond it nobody knows.
constexpr absl::Duration kGuessedFarthest = absl::Hours(24 * 365);

}  // namespace

Instant QueueForecast::EndsBy(const LiveJob& job) const {
  if (job.state.ended.has_value()) {
    // Ranks that are not gone by then may never be: nobody knows.
    const Instant gone = *job.state.ended + options_.cancel_grace + kGone;
    return gone > now_ ? gone : absl::InfiniteFuture();
  }
  const Instant since = job.state.counts_since.value_or(now_ + kPlanned);
  return since + job.state.TimeLeft() + options_.end_grace + options_.cancel_grace + kGone;
}

Instant QueueForecast::EndsAbout(const LiveJob& job) const {
  const JobState& state = job.state;
  if (state.ended.has_value()) return EndsBy(job);
  const std::optional<absl::Duration> mean = job.step_times.Mean();
  if (!mean.has_value() || state.ending.has_value() || job.recovery.has_value())
    return absl::InfiniteFuture();
  int64_t done = 0;
  absl::Duration begun;  // what of the step that it is in is over
  if (state.phase == job::JobPhase::kRunning) {
    begun = now_ - job.run->stepped_at;
    if (job.step_times.StandsStill(begun)) return absl::InfiniteFuture();
    done = job.last_step.has_value() ? job.last_step->step : 0;
  } else if (const auto checkpoint = LastCheckpoint(job)) {
    done = checkpoint->step;
  }
  const int64_t left = std::max<int64_t>(0, state.request->steps - done);
  // As many as people ask for who end it by hand.
  if (left > kGuessedFarthest / *mean) return absl::InfiniteFuture();
  const Instant end = now_ + std::max(absl::ZeroDuration(), left * *mean - std::min(begun, *mean));
  return std::min(end, EndsBy(job));
}

Instant QueueForecast::EnoughFreeBy(const JobRequest& request) const {
  const MatchingDevices devices = DevicesFor(request);
  return EnoughFreeAt(now_, devices.free, HeldUntil(devices, &QueueForecast::EndsBy),
                      request.devices);
}

std::vector<const LiveJob*> QueueForecast::AheadOf(const LiveJob& job,
                                                   absl::Span<const JobId> queue) const {
  std::vector<const Node*> wanted;
  for (const auto& [name, node] : nodes_) {
    if (Matches(node, *job.state.request)) wanted.push_back(&node);
  }
  std::map<LineKey, bool> competes;  // most jobs of a queue wait in few lines
  std::vector<const LiveJob*> ahead;
  for (const JobId id : queue) {
    if (id == job.state.id) break;
    const LiveJob& other = jobs_.at(id);
    if (other.too_large || !other.over_quota.empty()) continue;  // holds nobody up
    const JobRequest& request = *other.state.request;
    const auto [line, added] = competes.try_emplace({request.device_kind, request.node_selector});
    if (added) {
      line->second = std::any_of(wanted.begin(), wanted.end(),
                                 [&](const Node* node) { return Matches(*node, request); });
    }
    if (!line->second) continue;
    ahead.push_back(&other);
  }
  return ahead;
}

int64_t QueueForecast::NumberOf(const LiveJob& job, absl::Span<const LiveJob* const> ahead) {
  return job.too_large || !job.over_quota.empty() ? 0 : static_cast<int64_t>(ahead.size()) + 1;
}

QueueSpot QueueForecast::SpotOf(const LiveJob& job, absl::Span<const LiveJob* const> ahead) const {
  QueueSpot spot{.number = NumberOf(job, ahead)};
  if (spot.number == 0) return spot;
  const MatchingDevices devices = DevicesFor(*job.state.request);
  spot.starts_by = StartOf(job, ahead, devices, &QueueForecast::EndsBy);
  if (const auto start = StartOf(job, ahead, devices, &QueueForecast::EndsAbout)) {
    const Instant about = RoughTime(now_, *start);
    if (!spot.starts_by.has_value() || about < *spot.starts_by) spot.starts_about = about;
  }
  return spot;
}

QueueForecast::MatchingDevices QueueForecast::DevicesFor(const JobRequest& request) const {
  MatchingDevices devices;
  for (const auto& [name, node] : nodes_) {
    if (!Matches(node, request)) continue;
    if (node.TakesJobs()) devices.free += node.FreeDevices();
    if (!node.connected() || !node.MayTakeJobs()) continue;
    for (const JobId holder : node.device_jobs) {
      if (holder != JobId{}) ++devices.held[holder];
    }
  }
  return devices;
}

std::vector<HeldDevices> QueueForecast::HeldUntil(const MatchingDevices& devices,
                                                  EndOf end_of) const {
  std::vector<HeldDevices> until;
  for (const auto& [holder, count] : devices.held)
    until.push_back({count, (this->*end_of)(jobs_.at(holder))});
  return until;
}

std::optional<Instant> QueueForecast::StartOf(const LiveJob& job,
                                              absl::Span<const LiveJob* const> ahead,
                                              const MatchingDevices& devices, EndOf end_of) const {
  std::vector<Demand> queue;
  for (const LiveJob* other : ahead)
    queue.push_back({other->state.request->devices, (this->*end_of)(*other) - now_});
  queue.push_back({job.state.request->devices});
  const Instant start = LastStartAt(now_, devices.free, HeldUntil(devices, end_of), queue);
  if (start == absl::InfiniteFuture() || start <= now_) return std::nullopt;
  return start;
}

}  // namespace phalanx::coordinator
