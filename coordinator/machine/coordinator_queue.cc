// Submit, cancel, questions, admission and planning.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/ended_job.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;

// Notes of a plan that become events.
constexpr size_t kPlanNotesMax = 16;

// Reasons that a job waits for others are listed for so many of them.
constexpr size_t kNamedMax = 8;

absl::string_view KindName(job::DeviceKind kind) {
  return kind == job::DeviceKind::kGpu ? "gpu" : "cpu";
}

std::string Named(const Coordinator::Job& job) {
  return absl::StrCat(ToString(job.state.id), " (", job.state.request->name, ")");
}

absl::Status NoSuchJob(JobId id) {
  return absl::NotFoundError(absl::StrCat("there is no ", ToString(id)));
}

}  // namespace

void Coordinator::On(const SubmitRequested& event) {
  const auto refuse = [&](absl::Status status) {
    actions_.push_back(AnswerJob{event.token, std::move(status)});
  };
  if (!event.request_id.empty()) {
    const auto known = request_ids_.find(event.request_id);
    if (known != request_ids_.end()) {
      Job& job = jobs_.at(known->second);
      const JobRequest& first = *job.state.request;
      if (first.document != event.request->document || first.lost != event.request->lost) {
        return refuse(RequestIdReused(event.request_id, job.state.id));
      }
      return Tell(job, Action(AnswerJob{event.token, std::make_shared<const JobView>(
                                                         job.state.View(job.last_step))}));
    }
  }
  const auto named = live_names_.find(event.request->name);
  if (named != live_names_.end()) {
    return refuse(absl::AlreadyExistsError(
        absl::StrCat(ToString(named->second), " is named \"", event.request->name,
                     "\" and has not ended; cancel it or choose another name")));
  }
  if (static_cast<int64_t>(live_names_.size()) >= options_.live_jobs_max) {
    return refuse(absl::ResourceExhaustedError(absl::StrCat(
        live_names_.size(), " jobs have not ended; at most ", options_.live_jobs_max)));
  }
  const int64_t bytes = RequestBytes(*event.request);
  if (live_request_bytes_ + bytes > options_.live_request_bytes_max) {
    return refuse(absl::ResourceExhaustedError(
        absl::StrCat("the documents of jobs that have not ended hold ", live_request_bytes_,
                     " bytes and this one has ", bytes, "; at most ",
                     options_.live_request_bytes_max, " in all")));
  }
  live_request_bytes_ += bytes;
  const JobId id{++last_job_.value};
  Job& job = jobs_[id];
  job.state.id = id;
  if (!event.request_id.empty()) request_ids_.emplace(event.request_id, id);
  live_names_.emplace(event.request->name, id);
  queue_.insert(id);
  Commit(job, JobSubmitted{event.request, event.request_id});
  Tell(job, Action(AnswerJob{event.token,
                             std::make_shared<const JobView>(job.state.View(job.last_step))}));
  // It changes nothing for those before it.
  if (lines_.size() > 2 * live_names_.size()) capacity_changed_ = true;  // lines of jobs long gone
  if (!capacity_changed_ && !PlannersAreFull()) Consider(job);
}

void Coordinator::On(const CancelRequested& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr) {
    actions_.push_back(AnswerJob{event.token, NoSuchJob(event.job)});
    return;
  }
  if (event.checkpoint && MayEndWithCheckpoint(*job)) {
    WishEnd(*job, {});
  } else if (!job->state.IsTerminal()) {
    End(*job, JobPhase::kCancelled, "cancelled on request", std::nullopt, options_.cancel_grace);
  }
  const auto view = std::make_shared<const JobView>(job->state.View(job->last_step));
  Tell(*job, Action(AnswerJob{event.token, job->state.IsTerminal() ? CancelEnded(view) : view}));
}

void Coordinator::On(const DeleteRequested& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr) {
    actions_.push_back(DeleteEndedJob{event.token, event.job});
  } else if (job->state.IsTerminal()) {
    job->delete_requests.push_back(event.token);
    if (const Team* team = TeamOutOfReach(*job); team != nullptr) {
      RefuseDeletes(*job, MayHaveRanksOn(*job, team->node));
    } else if (!job->archive_failure.ok()) {
      RefuseDeletes(*job, job->archive_failure);
    }
  } else {
    actions_.push_back(RefuseDelete{
        event.token, absl::FailedPreconditionError(absl::StrCat(
                         ToString(event.job), " is ", job::ToString(job->state.phase),
                         "; only a job that has ended can be deleted: cancel it first"))});
  }
}

// The team of a job that has ended whose ranks may still be there, on a node that is away.
const Team* Coordinator::TeamOutOfReach(const Job& job) const {
  if (!job.run.has_value() || !job.state.IsTerminal()) return nullptr;
  for (const Team& team : job.run->teams) {
    const auto node = nodes_.find(team.node);
    if (!team.released && node != nodes_.end() && !node->second.connected()) return &team;
  }
  return nullptr;
}

// Nobody waits for a node that may stay away.
absl::Status Coordinator::MayHaveRanksOn(const Job& job, const NodeName& away) const {
  return absl::FailedPreconditionError(
      absl::StrCat(ToString(job.state.id), " may still have ranks on node ", away,
                   ", which is away; delete it when the node is back, or has been away for ",
                   absl::FormatDuration(options_.node_forget_delay), " and is forgotten"));
}

void Coordinator::RefuseDeletes(Job& job, const absl::Status& status) {
  for (Token token : std::exchange(job.delete_requests, {})) {
    actions_.push_back(RefuseDelete{token, status});
  }
}

void Coordinator::On(const JobArchived& event) {
  const auto found = jobs_.find(event.job);
  if (found == jobs_.end() || !found->second.state.IsTerminal() || found->second.run.has_value()) {
    return;
  }
  for (Token token : found->second.delete_requests) {
    actions_.push_back(DeleteEndedJob{token, event.job});
  }
  const auto requested = request_ids_.find(found->second.state.request_id);
  if (requested != request_ids_.end() && requested->second == event.job) {
    request_ids_.erase(requested);
  }
  spared_.erase(event.job);
  jobs_.erase(found);
}

void Coordinator::On(const ArchiveFailed& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr || !job->state.IsTerminal()) return;
  job->archive_failure = absl::DataLossError(
      absl::StrCat(ToString(event.job),
                   " cannot be stored among the jobs that "
                   "have ended: ",
                   event.status.message(), "; phalanx-coordinator --check-store lists all damage"));
  Log(absl::StrCat("job=", event.job.value, " stays in memory reason=\"",
                   job->archive_failure.message(), "\""));
  RefuseDeletes(*job, job->archive_failure);
}

void Coordinator::Archive(const Job& job) { Tell(job, Action(ArchiveJob{job.state.id})); }

void Coordinator::On(const ExplainRequested& event) {
  const Job* job = FindJob(event.job);
  if (job == nullptr) {
    actions_.push_back(AnswerExplain{event.token, NoSuchJob(event.job)});
    return;
  }
  // It speaks of other jobs too, so it waits for all that is decided.
  TellAfter(last_record_, Action(AnswerExplain{event.token, Explain(*job)}));
}

void Coordinator::On(const LogsRequested& event) {
  const Job* job = FindJob(event.job);
  std::vector<LogSource> sources;
  std::vector<std::pair<Node*, FetchLogs>> fetches;
  int32_t first = 0;
  const bool follow = event.follow && job != nullptr && !job->state.IsTerminal();
  for (const NodeDevices& entry : job != nullptr ? *job->state.placement : event.placement) {
    const int32_t end = first + static_cast<int32_t>(entry.devices.size());
    FetchLogs fetch{.job = event.job, .follow = follow, .tail = event.tail};
    for (int32_t rank : event.ranks) {
      if (rank >= first && rank < end) fetch.ranks.push_back(rank);
    }
    const bool wanted = event.ranks.empty() || !fetch.ranks.empty();
    first = end;
    const auto node = nodes_.find(entry.node);
    if (!wanted) continue;
    if (node == nodes_.end() || !node->second.connected()) {
      if (!follow) continue;
      // A follower asks again, and would miss these ranks for as long as the others write.
      actions_.push_back(AnswerLogs{event.token, absl::UnavailableError(absl::StrCat(
                                                     "node ", entry.node, " is not connected"))});
      return;
    }
    if (const auto after = event.after.find(entry.node); after != event.after.end()) {
      fetch.after = after->second;
    }
    fetch.fetch_id = absl::StrCat(event.token.value, ".", ++fetch_count_);
    sources.push_back({entry.node, fetch.fetch_id});
    fetches.emplace_back(&node->second, std::move(fetch));
  }
  // Answered first: the caller must know a fetch before its worker can answer it.
  actions_.push_back(AnswerLogs{event.token, std::move(sources)});
  for (auto& [node, fetch] : fetches) SendTo(*node, std::move(fetch));
}

void Coordinator::Schedule() {
  capacity_changed_ = false;
  lines_.clear();
  closed_.clear();
  for (JobId id : std::vector<JobId>(queue_.begin(), queue_.end())) {
    if (PlannersAreFull()) return;
    Consider(jobs_.at(id));
  }
}

// The queue is looked at anew when half of the plans are answered, not after each.
bool Coordinator::PlannersAreFull() {
  if (unanswered_plans_.size() >= options_.plans_max) planners_full_ = true;
  return planners_full_;
}

void Coordinator::Consider(Job& job) {
  ++jobs_considered_;
  const JobRequest& request = *job.state.request;
  const auto [found, added] = lines_.try_emplace({request.device_kind, request.node_selector});
  Line& line = found->second;
  if (added) line.capacity = CapacityFor(nodes_, request);
  // What does not fit the whole cluster waits for more of it, not for what others hold.
  const bool too_large = line.capacity < request.devices;
  if (!too_large && line.first == JobId{}) {
    std::optional<Placement> placement = ChoosePlacement(nodes_, closed_, request);
    if (placement.has_value()) return Plan(job, *std::move(placement));
    line.first = job.state.id;
    for (const auto& [name, node] : nodes_) {
      if (Matches(node, request)) closed_.insert(name);
    }
  }
  if (too_large != job.too_large) {
    job.too_large = too_large;
    Publish(job);
  }
}

// Only the first of a line closes nodes to the jobs behind it.
void Coordinator::LeaveQueue(const Job& job) {
  if (queue_.erase(job.state.id) == 0) return;
  const JobRequest& request = *job.state.request;
  const auto line = lines_.find({request.device_kind, request.node_selector});
  if (line != lines_.end() && line->second.first == job.state.id) capacity_changed_ = true;
}

void Coordinator::Plan(Job& job, Placement placement) {
  job.too_large = false;
  queue_.erase(job.state.id);
  for (const NodeDevices& entry : placement) {
    Node& node = nodes_.at(entry.node);
    for (int32_t device : entry.devices) {
      node.device_jobs[static_cast<size_t>(device)] = job.state.id;
    }
    PublishView(node);
  }
  OrderPlan(job, std::move(placement), std::nullopt);
}

void Coordinator::OrderPlan(Job& job, Placement placement,
                            std::optional<Shared<plan::Layout>> layout) {
  const uint64_t number = ++plan_count_;
  plan::MemoryLimits limits = LimitsOf(nodes_, placement, job.state.id);
  job.planning = {.number = number, .placement = placement, .host_memory = limits.nodes};
  planning_.emplace(number, job.state.id);
  unanswered_plans_.insert(number);
  actions_.push_back(ComputePlan{.number = number,
                                 .request = job.state.request,
                                 .placement = std::move(placement),
                                 .limits = std::move(limits),
                                 .epoch = Epoch{job.state.epoch.value + 1},
                                 .layout = std::move(layout)});
}

Coordinator::Job::Planning Coordinator::EndPlanning(Job& job) {
  planning_.erase(job.planning->number);
  Job::Planning planning = *std::move(job.planning);
  job.planning.reset();
  return planning;
}

bool Coordinator::IsOvertaken(const Job& job, const Job::Planning& planning,
                              const PlanSummary& plan) const {
  const std::vector<int64_t> left = LimitsOf(nodes_, planning.placement, job.state.id).nodes;
  for (size_t i = 0; i < std::min(left.size(), plan.host_memory.size()); ++i) {
    const bool known = left[i] != 0;
    if (known && left[i] < planning.host_memory[i] && left[i] < plan.host_memory[i]) return true;
  }
  return false;
}

void Coordinator::ChargeNodes(const Job& job) {
  const Placement& placement = *job.state.placement;
  for (size_t i = 0; i < std::min(placement.size(), job.state.host_memory.size()); ++i) {
    const auto node = nodes_.find(placement[i].node);
    if (node == nodes_.end()) continue;
    node->second.charged.erase(job.state.id);
    if (job.state.host_memory[i] > 0)
      node->second.charged.emplace(job.state.id, job.state.host_memory[i]);
  }
}

const NodeDevices* Coordinator::FirstGone(const Job& job, const Placement& placement) const {
  const auto gone = std::find_if(placement.begin(), placement.end(), [&](const NodeDevices& entry) {
    const auto node = nodes_.find(entry.node);
    if (node == nodes_.end() || !node->second.Schedulable()) return true;
    const std::vector<JobId>& holders = node->second.device_jobs;
    return !std::all_of(entry.devices.begin(), entry.devices.end(), [&](int32_t device) {
      return static_cast<size_t>(device) < holders.size() &&
             holders[static_cast<size_t>(device)] == job.state.id;
    });
  });
  return gone == placement.end() ? nullptr : &*gone;
}

void Coordinator::On(const PlanComputed& event) {
  unanswered_plans_.erase(event.number);
  if (planners_full_ && unanswered_plans_.size() <= options_.plans_max / 2) {
    planners_full_ = false;
    capacity_changed_ = true;
  }
  const auto planned = planning_.find(event.number);
  if (planned == planning_.end()) return;
  Job& job = jobs_.at(planned->second);
  Job::Planning planning = EndPlanning(job);
  Placement& placement = planning.placement;
  if (job.run.has_value()) return OnNextEpochPlanned(job, event.plan);
  const NodeDevices* gone = FirstGone(job, placement);
  if (!event.plan.ok() || gone != nullptr) {
    for (const NodeDevices& entry : placement) FreeDevices(job, entry.node, entry.devices);
    if (event.plan.ok()) {
      return OnFailure(
          job, {.kind = FailureKind::kNodeLost,
                .node = gone->node,
                .message = absl::StrCat("node ", gone->node, " went away while the plan was made"),
                .time = now_});
    }
    return OnFailure(job, {.kind = FailureKind::kPlanInvalid,
                           .message = std::string(event.plan.status().message()),
                           .time = now_});
  }
  if (IsOvertaken(job, planning, *event.plan))
    return OrderPlan(job, std::move(placement), std::nullopt);
  job.run = MakeRun(event.plan->layout);
  active_.insert(job.state.id);
  Commit(job, EpochPlanned{.layout = event.plan->layout,
                           .plan_digest = event.plan->digest,
                           .host_memory = event.plan->host_memory});
  ChargeNodes(job);
  const std::vector<std::string>& notes = event.plan->notes;
  for (size_t i = 0; i < std::min(notes.size(), kPlanNotesMax); ++i) {
    Commit(job, EventRecorded{"PlanNote", notes[i], event.plan->layout.epoch});
  }
  Commit(job, PhaseChanged{JobPhase::kStarting, absl::StrCat("starts on ", ToString(placement)),
                           std::nullopt});
  WatchEnd(job);
  Prepare(job, job.run->teams.front());
}

void Coordinator::FreeDevices(const Job& job, const NodeName& name,
                              const std::vector<int32_t>& devices) {
  const auto node = nodes_.find(name);
  if (node == nodes_.end()) return;
  for (int32_t device : devices) {
    const auto index = static_cast<size_t>(device);
    if (index < node->second.device_jobs.size() &&
        node->second.device_jobs[index] == job.state.id) {
      node->second.device_jobs[index] = JobId{};
    }
  }
  node->second.charged.erase(job.state.id);
  NoteDeadline(node->second);  // one that is lost may be forgotten now
  PublishView(node->second);
  capacity_changed_ = true;
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
          "epoch ", state.epoch.value, " trains on ", ToString(*state.placement), "; step ",
          job.last_step.has_value() ? job.last_step->step : 0, " of ", state.request->steps));
      if (state.ending.has_value()) reasons.push_back(state.reason);
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
        reasons.push_back(
            absl::StrCat("node ", team.node, " is disconnected since ",
                         absl::FormatTime(node->second.disconnected_at, absl::UTCTimeZone())));
      }
    }
  }
  return reasons;
}

std::vector<std::string> Coordinator::ExplainQueued(const Job& job) const {
  const JobRequest& request = *job.state.request;
  int64_t total = 0, free = 0, count = 0;
  std::map<JobId, int64_t> holders;
  std::vector<std::string> unavailable;
  for (const auto& [name, node] : nodes_) {
    if (!Matches(node, request)) continue;
    if (!node.Schedulable()) {
      unavailable.push_back(absl::StrCat("node ", name, " matches but is ",
                                         !node.connected() ? "disconnected"
                                         : node.draining   ? "stopping"
                                                           : "still ending ranks of before"));
      if (!node.connected()) continue;
    }
    ++count;
    total += static_cast<int64_t>(node.device_jobs.size());
    if (node.Schedulable()) free += node.FreeDevices();
    for (JobId holder : node.device_jobs) {
      if (holder != JobId{}) ++holders[holder];
    }
  }
  std::string selector = absl::StrJoin(request.node_selector, ", ", absl::PairFormatter("="));
  if (!selector.empty()) selector = absl::StrCat(" with ", selector);
  const std::string need =
      absl::StrCat(request.devices, " ", KindName(request.device_kind), " devices");
  std::vector<std::string> reasons;
  if (planners_full_) {
    reasons.push_back(absl::StrCat("the plans of ", unanswered_plans_.size(),
                                   " jobs are being made; it is looked at when half of them are"));
  }
  if (count == 0) {
    reasons.push_back(absl::StrCat("it needs ", need, "; no connected node has ",
                                   KindName(request.device_kind), " devices", selector));
  } else if (total < request.devices) {
    reasons.push_back(absl::StrCat("it needs ", need, "; the ", count,
                                   " connected nodes that match", selector, " have ", total));
  } else {
    reasons.push_back(
        absl::StrCat("it needs ", need, " at once; ", free, " of ", total, " are free"));
  }
  size_t named = 0;
  for (const auto& [holder, devices] : holders) {
    if (++named > kNamedMax) break;
    const Job& other = jobs_.at(holder);
    reasons.push_back(absl::StrCat(Named(other), " holds ", devices,
                                   other.state.IsTerminal() ? " until its ranks are gone" : ""));
  }
  const auto append = [&reasons](std::vector<std::string> more) {
    more.resize(std::min(more.size(), kNamedMax));
    std::move(more.begin(), more.end(), std::back_inserter(reasons));
  };
  append(AheadOf(job, kNamedMax));
  append(std::move(unavailable));
  return reasons;
}

std::vector<std::string> Coordinator::AheadOf(const Job& job, size_t count) const {
  std::vector<const Node*> wanted;
  for (const auto& [name, node] : nodes_) {
    if (Matches(node, *job.state.request)) wanted.push_back(&node);
  }
  std::map<LineKey, bool> competes;  // most jobs of a queue wait in few lines
  std::vector<std::string> ahead;
  for (auto id = queue_.begin(), end = queue_.lower_bound(job.state.id);
       id != end && ahead.size() < count; ++id) {
    const Job& other = jobs_.at(*id);
    if (other.too_large) continue;  // holds nobody up
    const JobRequest& request = *other.state.request;
    const auto [line, added] = competes.try_emplace({request.device_kind, request.node_selector});
    if (added) {
      line->second = std::any_of(wanted.begin(), wanted.end(),
                                 [&](const Node* node) { return Matches(*node, request); });
    }
    if (!line->second) continue;
    ahead.push_back(absl::StrCat(Named(other), " came first and waits for ", request.devices));
  }
  return ahead;
}

}  // namespace phalanx::coordinator
