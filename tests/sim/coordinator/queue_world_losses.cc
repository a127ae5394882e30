// Nodes are lost, and come back.
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/coordinator/queue_world.h"

namespace phalanx::coordinator {

using job::FailureKind;
using job::JobPhase;

void QueueWorld::LoseSomething() {
  if (!Chance(80)) return;
  Host& host = hosts_[prng_.Below(hosts_.size())];
  if (host.away_until.has_value()) return;
  // Often no longer than the coordinator waits for it; sometimes until it has forgotten the node.
  const uint64_t longest = Chance(3) ? 8 : Chance(2) ? 60 : 400;
  Lose(host, /*cut=*/Chance(2), absl::Seconds(1 + static_cast<int64_t>(prng_.Below(longest))));
}

void QueueWorld::Lose(Host& host, bool cut, absl::Duration time) {
  ++(cut ? counts_.cut : counts_.died);
  said_.push_back(absl::StrCat(absl::FormatTime("%H:%M:%S", now_, absl::UTCTimeZone()), " ",
                               host.name, cut ? " is cut off for " : " dies for ",
                               absl::FormatDuration(time)));
  NoteHit(host);
  host.away_until = now_ + time;
  host.cut = cut;
  host.welcome = false;
  DropAnswersOf(host.session);
  if (!cut) {
    std::fill(host.devices.begin(), host.devices.end(), JobId{});
    for (const auto& [id, epoch] : std::exchange(host.running, {})) {
      const auto trains = training_.find(id);
      if (trains == training_.end() || trains->second.epoch != epoch) continue;
      Training& training = trains->second;
      training.assigned.erase(host.name);
      training.begun.erase(host.name);
      training.state.erase(host.name);
      std::erase_if(training.said, [&host](const auto& said) { return said.first == host.name; });
    }
    host.last_command = 0;
    host.incarnation = Incarnation{++incarnations_};
  }
  if (Chance(2)) Feed(SessionClosed{host.session});
}

void QueueWorld::NoteHit(const Host& host) {
  std::set<JobId> hit;
  for (const auto& [id, epoch] : host.running) hit.insert(id);
  lost_.insert(hit.begin(), hit.end());
  const auto node = machine_->nodes().find(host.name);
  if (node != machine_->nodes().end())
    hit.insert(node->second.device_jobs.begin(), node->second.device_jobs.end());
  hit.erase(JobId{});
  for (const JobId id : hit) counts_.hit += hit_.insert(id).second ? 1 : 0;
}

void QueueWorld::DropAnswersOf(SessionId session) {
  std::erase_if(answers_, [session](const Event& event) {
    const auto* finished = std::get_if<CommandFinished>(&event);
    const auto* reported = std::get_if<RankReported>(&event);
    return (finished != nullptr && finished->session == session) ||
           (reported != nullptr && reported->session == session);
  });
}

void QueueWorld::ComeBack(Host& host) {
  host.away_until.reset();
  // Whoever waits for its name hears of the end of the stream before, or waits for its silence.
  if (Chance(2)) Feed(SessionClosed{host.session});
  Feed(Hello(host));
  for (auto& [id, training] : training_) {
    for (auto& [node, report] : training.said) {
      if (node != host.name) continue;
      report.session = host.session;
      answers_.push_back(report);
    }
  }
}

void QueueWorld::NoteSaved(const Event& heard) {
  const auto* reported = std::get_if<RankReported>(&heard);
  if (reported == nullptr) return;
  const auto* published = std::get_if<RankCheckpointPublished>(&reported->report);
  if (published != nullptr) saved_[reported->job] = published->step;
}

// Ranks whose peers are gone may say so.
void QueueWorld::Accuse(JobId id, Training& training, const NodeName& gone) {
  if (!Chance(4) || std::exchange(training.accuses, true)) return;
  for (const NodeName& node : training.Working()) {
    if (!training.assigned.contains(node)) continue;
    Report(id, training, training.RanksOf(node).front(),
           RankError{.kind = FailureKind::kPeerLost,
                     .accused = training.RanksOf(gone).front(),
                     .message = "gone"});
    return;
  }
}

absl::StatusOr<PlanSummary> QueueWorld::PlanOf(const ComputePlan& order) {
  plan::Layout layout{.epoch = order.epoch, .nodes = order.placement};
  if (order.layout.has_value()) {  // of an epoch that begins anew, or goes on
    layout = **order.layout;
    layout.epoch = std::max(layout.epoch, order.epoch);
  }
  size_t places = 0;
  for (const NodeDevices& entry : layout.nodes) places += entry.devices.size();
  if (!order.layout.has_value()) {
    for (auto spare = order.request->world; spare < static_cast<int32_t>(places); ++spare)
      layout.idle.push_back(Rank{spare});
  }
  std::set<Rank> lost(layout.lost.begin(), layout.lost.end());
  lost.insert(order.lost.begin(), order.lost.end());
  for (const Rank rank : order.returned) lost.erase(rank);
  layout.lost = {lost.begin(), lost.end()};
  const bool saves = order.any_rung && mirrored_.contains(order.request->name);
  if (!lost.empty() && !(saves && lost.size() < places))
    return absl::FailedPreconditionError(absl::StrCat(lost.size(), " ranks are missing"));
  return PlanSummary{.layout = std::move(layout), .digest = absl::StrCat("plan:", order.number)};
}

Instant QueueWorld::UndisturbedSince(JobId job) const {
  Instant since = absl::InfinitePast();
  for (const Host& host : hosts_) {
    const auto node = machine_->nodes().find(host.name);
    if (node == machine_->nodes().end()) continue;
    const std::vector<JobId>& holders = node->second.device_jobs;
    if (std::find(holders.begin(), holders.end(), job) == holders.end()) continue;
    since = std::max(since, host.welcome ? host.back : absl::InfiniteFuture());
  }
  return since;
}

bool QueueWorld::IsOnlyOfAway(JobId job) const {
  return faults_.losses && std::all_of(hosts_.begin(), hosts_.end(), [this, job](const Host& host) {
           const auto node = machine_->nodes().find(host.name);
           if (node == machine_->nodes().end() || !host.welcome) return true;
           const std::vector<JobId>& holders = node->second.device_jobs;
           return std::find(holders.begin(), holders.end(), job) == holders.end();
         });
}

// A job fails, or loses its place, of what has befallen it alone.
void QueueWorld::CheckMoved(JobId id, const PhaseChanged& moved) {
  const bool was_hit = hit_.contains(id) || faults_.crashes;
  if (moved.phase == JobPhase::kQueued) {
    over_[id] = machine_->jobs().at(id).state.epoch;
    if (!moved.in_order) ++counts_.queued;
    if (!moved.in_order && !was_hit)
      Violate(absl::StrCat(ToString(id), " is queued again and has lost nothing: ", moved.reason));
    hit_.erase(id);
  }
  if (moved.phase != JobPhase::kFailed) return;
  if (moved.reason.empty() || !moved.failure.has_value())
    return Violate(absl::StrCat(ToString(id), " fails without a reason"));
  const FailureKind kind = moved.failure->kind;
  if (kind == FailureKind::kTimeLimit || kind == FailureKind::kNodeStopped) return;
  ++counts_.failed;
  if (!was_hit) Violate(absl::StrCat(ToString(id), " fails and has lost nothing: ", moved.reason));
}

// Nobody waits for devices that are there and that nobody before could use. Where owners take
// turns, who is first of one priority changes with time, so there all of them that compete have to
// fit.
void QueueWorld::CheckWaits() {
  planned_.clear();
  const std::set<JobId> waiting = Waiting({}), kept = Kept(waiting, {});
  std::vector<const Coordinator::Job*> may;
  for (const JobId id : waiting) {
    const Coordinator::Job& job = machine_->jobs().at(id);
    const bool fits = job.state.request->devices <= CapacityFor(*job.state.request);
    if (fits && !kept.contains(id)) may.push_back(&job);
  }
  const bool turns = options_.share_half_life > absl::ZeroDuration();
  for (const Coordinator::Job* job : may) {
    std::vector<const Coordinator::Job*> first = {job};  // one of them is
    bool waits = false;
    for (size_t i = 0; i < first.size() && !waits; ++i) {
      const JobRequest& request = *first[i]->state.request;
      waits = request.devices > FreeFor(request);
      for (size_t k = 0; k < may.size() && !waits; ++k) {
        const Coordinator::Job* other = may[k];
        const int32_t priority = other->state.request->priority;
        const bool is_there = std::find(first.begin(), first.end(), other) != first.end();
        if (is_there || priority < request.priority) continue;
        if (priority == request.priority && !turns && other->state.id > first[i]->state.id)
          continue;
        if (!Compete(request, *other->state.request)) continue;
        waits = priority > request.priority || !turns;
        if (!waits) first.push_back(other);
      }
    }
    if (waits) continue;
    return Violate(absl::StrCat(ToString(job->state.id), " waits, and ",
                                FreeFor(*job->state.request), " devices are free for it"));
  }
}

}  // namespace phalanx::coordinator
