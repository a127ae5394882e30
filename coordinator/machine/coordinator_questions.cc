// What people ask of a job: why it is where it is, and its logs.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/ended_job.h"
#include "core/base/rough_time.h"
#include "core/job/schema.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;

// Reasons that a job waits for others are listed for so many of them.
constexpr size_t kWaitReasonsMax = 8;
// Jobs before one in the queue past which nobody guesses when it starts.
constexpr size_t kGuessedMax = 256;
// Jobs that one question is answered for, and jobs before each of them past which no start is told:
// lists are asked for again and again.
constexpr size_t kListedMax = 32;

absl::string_view KindName(job::DeviceKind kind) {
  return job::DeviceNames()[static_cast<size_t>(kind)];
}

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string Named(const Coordinator::Job& job) {
  return absl::StrCat(ToString(job.state.id), " (", job.state.request->name, ")");
}

// Those of the queue in the order in which they are looked at if none of them starts.
std::vector<JobId> InOrder(const std::set<QueuePlace>& queue, const std::map<JobId, LiveJob>& jobs,
                           const Owners& owners, Instant now) {
  std::vector<JobId> order;
  for (auto place = queue.begin(); place != queue.end();) {
    std::vector<OwnedJob> owned;  // of one priority
    const int32_t priority = place->priority;
    for (; place != queue.end() && place->priority == priority; ++place) {
      order.push_back(place->job);
      if (owners.Compete()) owned.push_back({place->job, jobs.at(place->job).state.request->owner});
    }
    if (!owners.Compete()) continue;
    order.resize(order.size() - owned.size());
    TakeTurns(
        owned, [&](const std::string& owner) { return owners.ShareOf(owner, now); },
        [&](size_t place) {
          order.push_back(owned[place].job);
          return true;
        });
  }
  return order;
}

}  // namespace

void Coordinator::On(const ExplainRequested& event) {
  const Job* job = FindJob(event.job);
  if (job == nullptr) {
    actions_.push_back(AnswerExplain{event.token, NoSuchJob(event.job)});
    return;
  }
  std::vector<std::string> reasons = Explain(*job);
  if (!event.store_fault.empty()) {
    reasons.push_back(event.store_fault);
    actions_.push_back(AnswerExplain{event.token, std::move(reasons)});
    return;
  }
  // It speaks of other jobs too, so it waits for all that is decided.
  TellAfter(last_record_, Action(AnswerExplain{event.token, std::move(reasons)}));
}

std::vector<std::string> Coordinator::Explain(const Job& job) const {
  const JobState& state = job.state;
  std::vector<std::string> reasons;
  switch (state.phase) {
    case JobPhase::kQueued:
      if (!job.planning.has_value()) return ExplainQueued(job);
      reasons.push_back(
          absl::StrCat("its plan on ", ToString(job.planning->placement), " is being made"));
      break;
    case JobPhase::kStarting: {
      std::vector<std::string> missing;
      int64_t count = 0;
      if (job.run.has_value() && job.run->stage != Run::Stage::kPreparing) {
        for (size_t rank = 0; rank < job.run->ranks.size(); ++rank) {
          if (!job.run->ranks[rank].used || job.run->ranks[rank].ready) continue;
          if (++count <= 16) missing.push_back(absl::StrCat(rank));
        }
        reasons.push_back(absl::StrCat("epoch ", state.epoch.value, " starts on ",
                                       ToString(*state.placement), "; not ready yet: ", count,
                                       " ranks (", absl::StrJoin(missing, ", "),
                                       count > 16 ? ", ..." : "", ")"));
      } else if (job.run.has_value()) {
        for (const Team& team : job.run->teams) {
          if (!team.prepared) missing.push_back(team.PreparingName());
        }
        reasons.push_back(absl::StrCat("its data is being checked and indexed on ",
                                       absl::StrJoin(missing, ", ")));
      }
      break;
    }
    case JobPhase::kRunning:
      reasons.push_back(absl::StrCat(
          "epoch ", state.epoch.value,
          job.recovery.has_value() || WaitsAsBefore(job) ? " is on " : " trains on ",
          ToString(WithoutLost(*state.layout)), "; step ",
          job.last_step.has_value() ? job.last_step->step : 0, " of ", state.request->steps));
      if (job.recovery.has_value()) reasons.push_back(StageText(*job.recovery));
      if (WaitsAsBefore(job)) reasons.emplace_back(kWaitedBefore);
      for (const auto& [place, device] : job.loans)
        reasons.push_back(absl::StrCat("rank ", place, " is to go on on device ", device.index,
                                       " of node ", device.node, ", which is in reserve"));
      for (std::string& slow : ExplainSlow(job)) reasons.push_back(std::move(slow));
      if (state.ending.has_value()) reasons.push_back(state.reason);
      if (!state.unsaved.empty()) reasons.push_back(state.unsaved);
      if (!state.incidents.empty()) {
        const Incident& last = *state.incidents.back();
        reasons.push_back(absl::StrCat("incident ", last.number, ": ", Summary(last)));
        const auto loss =
            std::find_if(state.incidents.rbegin(), state.incidents.rend(),
                         [](const IncidentPtr& one) { return one->kind == Incident::Kind::kLoss; });
        if (loss != state.incidents.rend()) {  // who comes back has none
          reasons.push_back(
              absl::StrCat(*loss == state.incidents.back()
                               ? "its verdict: "
                               : absl::StrCat("incident ", (*loss)->number, " had the verdict: "),
                           Verdict(**loss)));
        }
        if (!last.not_safe.empty())
          reasons.push_back(absl::StrCat("state without a second home: ", last.not_safe));
      }
      break;
    case JobPhase::kSucceeded:
    case JobPhase::kFailed:
    case JobPhase::kCancelled:
      return ExplainEnded(state.View(job.last_step));
  }
  if (OutputWaits(job)) {
    reasons.push_back(absl::StrCat(kOutputWaiting, ": ", job.run->output_waiting));
  }
  if (job.run.has_value() && !state.IsTerminal()) {
    for (const Team& team : job.run->teams) {
      const auto node = nodes_.find(team.node);
      if (node != nodes_.end() && !node->second.connected()) {
        reasons.push_back(absl::StrCat("node ", team.node, " is disconnected since ",
                                       TimeText(node->second.disconnected_at)));
      } else if (node != nodes_.end() && node->second.suspect) {
        reasons.push_back(absl::StrCat("node ", team.node, " is silent since ",
                                       TimeText(node->second.last_heard)));
      }
    }
  }
  return reasons;
}

std::vector<std::string> Coordinator::ExplainQueued(const Job& job) const {
  if (job.state.suspended) {
    return {job.state.reason,
            absl::StrCat("phalanx resume ", ToString(job.state.id), " lets it go on")};
  }
  const JobRequest& request = *job.state.request;
  int64_t total = 0, free = 0, count = 0, largest = 0;
  std::map<JobId, int64_t> holders;
  std::vector<std::string> unavailable;
  for (const auto& [name, node] : nodes_) {
    if (!Matches(node, request)) continue;
    if (!node.TakesJobs() || !node.leftovers.empty()) {
      unavailable.push_back(absl::StrCat("node ", name, " matches but is ",
                                         node.mark.has_value() ? ToString(*node.mark)
                                         : !node.connected()   ? "disconnected"
                                         : node.suspect        ? "silent"
                                         : node.draining       ? "stopping"
                                         : !node.unfit.empty() ? absl::StrCat("unfit: ", node.unfit)
                                         : node.reserve.has_value()
                                             ? ToString(*node.reserve)
                                             : "still ending ranks of before"));
      if (!node.connected()) continue;
    }
    ++count;
    total += static_cast<int64_t>(node.device_jobs.size());
    largest = std::max(largest, static_cast<int64_t>(node.device_jobs.size()));
    if (node.TakesJobs()) free += node.FreeDevices();
    for (const int32_t device : node.failed_checks) {
      unavailable.push_back(absl::StrCat("device ", device, " of node ", name,
                                         " failed its check (phalanx describe node ", name,
                                         "); it takes jobs once it passes one, or after phalanx "
                                         "uncordon ",
                                         name));
    }
    for (JobId holder : node.device_jobs) {
      if (holder != JobId{}) ++holders[holder];
    }
  }
  std::string selector = absl::StrJoin(request.node_selector, ", ", absl::PairFormatter("="));
  if (!selector.empty()) selector = absl::StrCat(" with ", selector);
  const std::string need =
      absl::StrCat(request.devices, " ", KindName(request.device_kind), " devices");
  std::vector<std::string> reasons;
  if (!job.over_quota.empty()) reasons.push_back(job.over_quota);
  if (plans_.refuses()) {
    reasons.push_back(absl::StrCat("the plans of ", plans_.count(),
                                   " jobs are being made; it is looked at when half of them are"));
  }
  if (count == 0) {
    reasons.push_back(absl::StrCat(
        "it needs ", need, "; ",
        job.too_large ? job.too_few
                      : absl::StrCat("no connected node has ", KindName(request.device_kind),
                                     " devices", selector)));
  } else if (total < request.devices) {
    reasons.push_back(absl::StrCat("it needs ", need, "; the ", count,
                                   " connected nodes that match", selector, " have ", total,
                                   ", the largest of them ", largest));
  } else {
    reasons.push_back(
        absl::StrCat("it needs ", need, " at once; ", free, " of ", total, " are free"));
  }
  size_t named = 0;
  for (const auto& [holder, devices] : holders) {
    if (++named > kWaitReasonsMax) break;
    const Job& other = jobs_.at(holder);
    reasons.push_back(absl::StrCat(Named(other), " holds ", devices,
                                   other.state.IsTerminal() ? " until its ranks are gone" : ""));
  }
  const auto append = [&reasons](std::vector<std::string> more) {
    more.resize(std::min(more.size(), kWaitReasonsMax));
    std::move(more.begin(), more.end(), std::back_inserter(reasons));
  };
  const QueueForecast forecast = Forecast();
  const std::vector<const Job*> waiting =
      forecast.AheadOf(job, InOrder(queue_, jobs_, owners_, now_));
  std::vector<std::string> ahead;
  for (const Job* other : waiting) {
    if (ahead.size() == kWaitReasonsMax) break;
    const JobRequest& first = *other->state.request;
    const std::string why =
        first.priority > request.priority ? absl::StrCat(" has priority ", first.priority)
        : other->state.id < job.state.id  ? " came first"
                                          : " is of an owner with a smaller share";
    ahead.push_back(absl::StrCat(Named(*other), why, " and waits for ", first.devices));
  }
  append(std::move(ahead));
  append(std::move(unavailable));
  if (const int64_t number = QueueForecast::NumberOf(job, waiting); number > 1) {
    reasons.push_back(
        absl::StrCat("it is number ", number, " of those that wait for such devices"));
  }
  const bool is_guessed = !plans_.refuses() && waiting.size() <= kGuessedMax;
  const QueueSpot spot = is_guessed ? forecast.SpotOf(job, waiting) : QueueSpot();
  if (spot.starts_about.has_value()) {
    reasons.push_back(absl::StrCat("it starts in about ", RoughText(*spot.starts_about - now_),
                                   ", if the jobs before it train on as they did last"));
  }
  if (spot.starts_by.has_value()) {
    reasons.push_back(absl::StrCat("it starts by ", TimeText(*spot.starts_by),
                                   " at the latest, as time limits go"));
  }
  return reasons;
}

void Coordinator::On(const QueueRequested& event) {
  const QueueForecast forecast = Forecast();
  std::vector<JobId> queue;
  std::map<JobId, QueueSpot> spots;
  for (const JobId id : event.jobs) {
    const Job* job = FindJob(id);
    if (job == nullptr || !queue_.contains({job->state.request->priority, id})) continue;
    if (queue.empty()) queue = InOrder(queue_, jobs_, owners_, now_);
    const std::vector<const Job*> ahead = forecast.AheadOf(*job, queue);
    const bool is_told = !plans_.refuses() && ahead.size() <= kListedMax;
    spots.emplace(id, is_told ? forecast.SpotOf(*job, ahead)
                              : QueueSpot{.number = QueueForecast::NumberOf(*job, ahead)});
    if (spots.size() == kListedMax) break;
  }
  // A guess, which waits for no record: people look at jobs while the store hangs, too.
  actions_.push_back(AnswerQueue{event.token, std::move(spots)});
}

}  // namespace phalanx::coordinator
