#include "coordinator/runtime/counting.h"

#include <algorithm>
#include <utility>

namespace phalanx::coordinator {

void Counting::Heartbeat(const PublishHeartbeat& heartbeat) {
  metrics_.Heartbeat();
  const auto [last, first] = heartbeats_.try_emplace(heartbeat.node, heartbeat.time);
  if (!first && heartbeat.time - last->second > 2 * heartbeat_interval_) metrics_.LateHeartbeat();
  last->second = heartbeat.time;
}

// One that comes back is not late for as long as it was away.
void Counting::Node(const NodeView& node) {
  if (!node.connected) Forget(node.name);
}

void Counting::Step(JobId job, const StepReport& step, Instant now) {
  metrics_.Step(step.tokens, step.seconds);
  Times& times = times_[job];
  const bool again = step.step <= times.step;
  times.step = std::max(times.step, step.step);
  if (!times.until.has_value()) return;
  metrics_.Ran(now - *times.until, again ? absl::ZeroDuration() : absl::Seconds(step.seconds));
  times.until = now;
}

void Counting::Time(const JobView& job, Instant now) {
  Times& times = times_[job.id];
  if (times.until.has_value()) metrics_.Ran(now - *times.until, absl::ZeroDuration());
  times.until.reset();
  if (job.phase == job::JobPhase::kRunning) times.until = now;
  if (job.last_step.has_value()) times.step = std::max(times.step, job.last_step->step);
  if (job::IsTerminal(job.phase)) times_.erase(job.id);
}

void Counting::Incident(JobId job, const coordinator::Incident& incident) {
  using Phase = coordinator::Incident::Phase;
  Incidents& counted = incidents_[job];
  const bool begun = incident.number > counted.begun;
  const bool closed = incident.IsClosed() && incident.number > counted.closed;
  const bool loss = incident.kind == coordinator::Incident::Kind::kLoss;
  counted.begun = std::max(counted.begun, incident.number);
  if (begun) counted.cause = loss ? std::string(job::ToString(incident.cause.kind)) : "";
  if (closed) counted.closed = incident.number;
  if (recovering_) return;
  if (begun) metrics_.IncidentBegun(ToString(incident.kind), counted.cause);
  if (!closed) return;
  metrics_.StepsRedone(incident.steps_redone);
  metrics_.Restarted(counted.cause, !loss ? "return" : incident.standby ? "standby" : "replan");
  for (size_t i = 0; i < coordinator::Incident::kPhases; ++i) {
    const coordinator::Incident::Span& span = incident.phases[i];
    if (!span.end.has_value()) continue;
    const auto phase = static_cast<Phase>(i);
    metrics_.IncidentPhase(ToString(phase), absl::Microseconds(*span.end));
    if (loss && phase == Phase::kDetected)
      metrics_.Detected(counted.cause, absl::Microseconds(*span.end));
  }
}

void Counting::Job(const JobView& job, Instant now) {
  const auto [it, added] = phases_.emplace(job.id, job.phase);
  const job::JobPhase before = std::exchange(it->second, job.phase);
  if (before == job.phase && !added) return;
  Time(job, now);
  const bool found = added && job.phase != job::JobPhase::kQueued;
  if (job::IsTerminal(job.phase)) phases_.erase(it);
  if (found || recovering_) return;
  const bool again = job.epoch > Epoch{1};  // it was queued again meanwhile
  if (job.phase == job::JobPhase::kQueued && !added) {
    Incidents& counted = incidents_[job.id];
    metrics_.Restarted(counted.begun > counted.closed ? counted.cause : "", "queued");
    counted.closed = counted.begun;
  } else if (job.phase == job::JobPhase::kStarting && !again) {
    metrics_.JobStarted(job.started.value_or(job.submitted) - job.submitted);
  } else if (job.phase == job::JobPhase::kRunning && job.started.has_value() && !again) {
    metrics_.JobRunning(now - *job.started);
  } else if (job::IsTerminal(job.phase)) {
    metrics_.JobEnded(job.phase,
                      job.failure.has_value() ? std::optional(job.failure->kind) : std::nullopt);
  }
}

}  // namespace phalanx::coordinator
