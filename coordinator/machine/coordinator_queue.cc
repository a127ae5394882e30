// The queue: who of it is looked at when, who starts where, and plans that were ordered.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"
#include "coordinator/machine/too_few.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;

// Notes of a plan that become events.
constexpr size_t kPlanNotesMax = 16;

// Where owners take turns, a job that is submitted may go ahead of any other. So many in the queue
// are looked at for each; more so seldom that submits do not cost as much as the queue is long.
constexpr size_t kLooksAtOnceMax = 1000;
constexpr absl::Duration kLookInterval = absl::Microseconds(50);  // for each job of the queue
// Jobs behind the first of their line that are looked at for a place that is free meanwhile: a
// place costs a walk over the nodes, and the queue is looked at whenever devices change.
constexpr int32_t kBackfillsMax = 256;
// Some places have others.
Placement WithDevices(const Placement& placement, const std::map<Rank, plan::Device>& devices) {
  plan::Cluster cluster = plan::ClusterOf(placement);
  for (const auto& [place, device] : devices)
    cluster.devices[static_cast<size_t>(place.value)] = device;
  return plan::PlacementOf(cluster);
}

// The first node of the placement that does not have the devices for the job any more, takes
// nothing new, or has another worker by now, which does not carry the plan out; nullptr: there is
// none.
const NodeDevices* FirstGone(const NodeTable& nodes, JobId job, const Placement& placement,
                             const absl::StatusOr<PlanSummary>& plan) {
  const auto gone = std::find_if(placement.begin(), placement.end(), [&](const NodeDevices& entry) {
    const auto node = nodes.find(entry.node);
    if (node == nodes.end() || !node->second.TakesJobs()) return true;
    if (plan.ok() && !CarriesOut(node->second, plan->layout)) return true;
    const std::vector<JobId>& holders = node->second.device_jobs;
    return !std::all_of(entry.devices.begin(), entry.devices.end(), [&](int32_t device) {
      return static_cast<size_t>(device) < holders.size() &&
             holders[static_cast<size_t>(device)] == job;
    });
  });
  return gone == placement.end() ? nullptr : &*gone;
}

// Whether others were charged, while the plan was made, for host memory that the job needs.
bool IsOvertaken(const NodeTable& nodes, JobId job, const LiveJob::Planning& planning,
                 const PlanSummary& plan) {
  const std::vector<int64_t> left = LimitsOf(nodes, planning.placement, job).nodes;
  for (size_t i = 0; i < std::min(left.size(), plan.host_memory.size()); ++i) {
    const bool known = left[i] != 0;
    if (known && left[i] < planning.host_memory[i] && left[i] < plan.host_memory[i]) return true;
  }
  return false;
}

}  // namespace

void Coordinator::LookFor(Job& job) {
  // It changes nothing for those before it; those behind it are looked at after it.
  const bool before_others = queue_.rbegin()->job != job.state.id || owners_.Compete();
  if (before_others && queue_.size() > kLooksAtOnceMax) {
    look_ = std::min(
        look_, std::max(now_, last_look_ + kLookInterval * static_cast<int64_t>(queue_.size())));
    return;
  }
  if (before_others) capacity_changed_ = true;
  if (lines_.size() > 2 * live_names_.size()) capacity_changed_ = true;  // lines of jobs long gone
  if (!capacity_changed_ && plans_.MayBegin()) Consider(job);
}

void Coordinator::Schedule() {
  LendDevices();
  capacity_changed_ = false;
  look_ = absl::InfiniteFuture();
  last_look_ = now_;
  lines_.clear();
  closed_.clear();
  owners_.BeginLook();
  backfills_ = 0;
  std::vector<OwnedJob> jobs;  // of one priority
  std::vector<Job*> live;      // the same; none leaves jobs_ meanwhile
  const auto consider = [this, &live](size_t place) {
    if (!plans_.MayBegin()) return false;
    Consider(*live[place]);
    return true;
  };
  const std::vector<QueuePlace> queue(queue_.begin(), queue_.end());
  for (auto place = queue.begin(); place != queue.end();) {
    jobs.clear();
    live.clear();
    const int32_t priority = place->priority;
    for (; place != queue.end() && place->priority == priority; ++place) {
      Job& job = jobs_.at(place->job);
      jobs.push_back({place->job, job.state.request->owner});
      live.push_back(&job);
    }
    if (owners_.Compete()) {
      TakeTurns(
          jobs, [this](const std::string& owner) { return owners_.ShareOf(owner, now_); },
          consider);
    } else {
      for (size_t i = 0; i < live.size(); ++i) {
        if (!consider(i)) return;
      }
    }
  }
}

void Coordinator::On(const QuotasChanged& event) {
  if (!owners_.Change(event.quotas)) return;
  Log("the quotas have changed");
  capacity_changed_ = true;
}

bool Coordinator::WaitsForQuota(Job& job, bool too_large) {
  std::string why = too_large ? "" : owners_.WhyWaits(job.state.id, *job.state.request);
  const bool waits = !why.empty();
  if (why != job.over_quota) {
    job.over_quota = std::move(why);
    Publish(job);
  }
  return waits;
}

void Coordinator::NoteCharge(Job& job) {
  const bool has = job.planning.has_value() || job.run.has_value();
  if (has == job.charged) return;
  job.charged = has;
  job.over_quota.clear();
  const JobRequest& request = *job.state.request;
  if (auto used = owners_.Charge(request.owner, request.devices, has, now_); used.has_value())
    actions_.push_back(StoreRecord{++last_record_, {.time = now_, .body = *std::move(used)}});
}

void Coordinator::Consider(Job& job) {
  ++jobs_considered_;
  const JobRequest& request = *job.state.request;
  const auto [found, added] = lines_.try_emplace({request.device_kind, request.node_selector});
  Line& line = found->second;
  if (added) line.capacity = CapacityFor(nodes_, request);
  // What does not fit the whole cluster waits for more of it, not for what others hold.
  const bool too_large = line.capacity < request.devices;
  const bool kept = WaitsForQuota(job, too_large);
  const bool first = line.first == JobId{};
  const Instant end = Forecast().EndsBy(job);
  const bool fills =
      !kept && !first && end < absl::InfiniteFuture() && backfills_++ < kBackfillsMax;
  if (!too_large && !kept && (first || fills)) {
    std::optional<Placement> placement = ChoosePlacement(nodes_, ClosedTo(end), request);
    if (placement.has_value()) return Plan(job, *std::move(placement));
    if (first) owners_.Reserve(job.state.id, request);
    if (first) line.first = job.state.id;
    if (first) MakeRoomFor(job);
    if (first) CloseNodesFor(job);
  }
  if (too_large && line.too_few.empty()) line.too_few = WhyTooFew(nodes_, request);
  if (const std::string& why = too_large ? line.too_few : ""; why != job.too_few) {
    job.too_large = too_large;
    job.too_few = why;
    Publish(job);
  }
}

std::set<NodeName> Coordinator::ClosedTo(Instant end) const {
  std::set<NodeName> closed;
  for (const auto& [name, until] : closed_) {
    if (until < end) closed.insert(name);
  }
  return closed;
}

void Coordinator::CloseNodesFor(const Job& job) {
  const JobRequest& request = *job.state.request;
  Instant start = Forecast().EnoughFreeBy(request);
  // Where nobody knows when it starts that may be at any time. Nor has it a time where there are
  // devices enough: others before it wait for them.
  if (start == absl::InfiniteFuture() || start <= now_) start = absl::InfinitePast();
  for (const auto& [name, node] : nodes_) {
    if (!Matches(node, request)) continue;
    const auto [closed, added] = closed_.try_emplace(name, start);
    if (!added) closed->second = std::min(closed->second, start);
  }
}

void Coordinator::Enqueue(const Job& job) {
  if (job.state.suspended) {
    if (parked_.insert(job.state.id).second) owners_.Parked(job.state.request->owner, 1);
    return;
  }
  Unpark(job);
  if (queue_.insert({job.state.request->priority, job.state.id}).second)
    owners_.Queued(job.state.request->owner, 1);
}

void Coordinator::Unpark(const Job& job) {
  if (parked_.erase(job.state.id) != 0) owners_.Parked(job.state.request->owner, -1);
}

// Only the first of a line closes nodes to the jobs behind it.
void Coordinator::LeaveQueue(const Job& job) {
  Unpark(job);
  if (queue_.erase({job.state.request->priority, job.state.id}) == 0) return;
  owners_.Queued(job.state.request->owner, -1);
  if (!job.over_quota.empty()) capacity_changed_ = true;
  const JobRequest& request = *job.state.request;
  const auto line = lines_.find({request.device_kind, request.node_selector});
  if (line != lines_.end() && line->second.first == job.state.id) capacity_changed_ = true;
}

void Coordinator::Plan(Job& job, Placement placement) {
  job.too_large = false;
  job.too_few.clear();
  if (queue_.erase({job.state.request->priority, job.state.id}) != 0)
    owners_.Queued(job.state.request->owner, -1);
  for (const NodeDevices& entry : placement) {
    Node& node = nodes_.at(entry.node);
    for (int32_t device : entry.devices) {
      node.device_jobs[static_cast<size_t>(device)] = job.state.id;
    }
    PublishView(node);
  }
  OrderPlan(job, {.placement = std::move(placement)});
  NoteCharge(job);
}

void Coordinator::OrderPlan(Job& job, ComputePlan asked) {
  asked.number = plans_.AddFor(job.state.id);
  asked.request = job.state.request;
  asked.epoch = Epoch{job.state.epoch.value + 1};
  asked.any_rung = IsSaving(job);
  for (const Rank rank : asked.returned) {
    const auto loan = job.loans.find(rank.value);
    if (loan != job.loans.end()) asked.lent.emplace(rank, loan->second);
  }
  const Placement used =
      asked.lent.empty() ? asked.placement : WithDevices(asked.placement, asked.lent);
  asked.limits = LimitsOf(nodes_, used, job.state.id);
  asked.device_names = DeviceNamesOf(nodes_, used);
  asked.products = ProductsFor(nodes_, used);
  asked.derivation = DerivationFor(nodes_, asked.placement);
  if (!asked.lost.empty() || !asked.returned.empty()) asked.unfit = UnfitSpares(nodes_, job);
  std::erase_if(asked.unfit, [&asked](Rank place) { return asked.lent.contains(place); });
  job.planning = {.number = asked.number,
                  .placement = asked.placement,
                  .host_memory = asked.limits.nodes,
                  .lent = asked.lent,
                  .slow = asked.slow,
                  .mirrored = asked.kept.has_value() && asked.kept->mirrored};
  actions_.push_back(std::move(asked));
}

Coordinator::Job::Planning Coordinator::EndPlanning(Job& job) {
  plans_.EndFor(job.planning->number);
  Job::Planning planning = *std::move(job.planning);
  job.planning.reset();
  return planning;
}

void Coordinator::ChargeNodes(const Job& job) {
  const Placement& placement = *job.state.placement;
  for (const NodeDevices& entry : placement) {
    const auto node = nodes_.find(entry.node);
    if (node != nodes_.end()) node->second.charged.erase(job.state.id);
  }
  for (size_t i = 0; i < std::min(placement.size(), job.state.host_memory.size()); ++i) {
    const auto node = nodes_.find(placement[i].node);
    if (node == nodes_.end() || job.state.host_memory[i] <= 0) continue;
    node->second.charged[job.state.id] += job.state.host_memory[i];
  }
}

void Coordinator::On(const PlanComputed& event) {
  if (plans_.Answer(event.number)) capacity_changed_ = true;
  if (standby_plan_.has_value() && standby_plan_->number == event.number)
    return OnStandbyPlanned(event);
  const JobId planned = plans_.JobOf(event.number);
  if (planned == JobId{}) return;
  Job& job = jobs_.at(planned);
  Job::Planning planning = EndPlanning(job);
  Placement& placement = planning.placement;
  if (job.run.has_value()) return OnNextEpochPlanned(job, planning, event.plan);
  const NodeDevices* gone = FirstGone(nodes_, job.state.id, placement, event.plan);
  if (!event.plan.ok() || gone != nullptr) {
    for (const NodeDevices& entry : placement) FreeDevices(job, entry.node, entry.devices);
    NoteCharge(job);
    if (event.plan.ok()) {
      return OnFailure(
          job, {.kind = FailureKind::kNodeLost,
                .node = gone->node,
                .message = absl::StrCat("node ", gone->node,
                                        " went away or silent, or has an older worker, since "
                                        "the plan was ordered"),
                .time = now_});
    }
    return OnFailure(job, {.kind = FailureKind::kPlanInvalid,
                           .message = std::string(event.plan.status().message()),
                           .time = now_});
  }
  if (IsOvertaken(nodes_, job.state.id, planning, *event.plan))
    return OrderPlan(job, {.placement = std::move(placement)});
  job.run = MakeRun(event.plan->layout);
  job.run->checkpoint = LastCheckpoint(job);  // of one that was queued again
  active_.insert(job.state.id);
  Commit(job, EpochPlanned{.layout = event.plan->layout,
                           .plan_digest = event.plan->digest,
                           .checkpoint = job.run->checkpoint,
                           .host_memory = event.plan->host_memory});
  ChargeNodes(job);
  TellNotes(job, *event.plan);
  SayStarts(job);
  WatchEnd(job);
  Prepare(job, job.run->teams.front());
}

void Coordinator::TellNotes(Job& job, const PlanSummary& plan) {
  for (size_t i = 0; i < std::min(plan.notes.size(), kPlanNotesMax); ++i) {
    Commit(job, EventRecorded{"PlanNote", plan.notes[i], plan.layout.epoch});
  }
}

void Coordinator::SayStarts(Job& job) {
  const std::string reason = absl::StrCat("starts on ", ToString(*job.state.placement));
  Commit(job, PhaseChanged{JobPhase::kStarting, reason, std::nullopt});
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

}  // namespace phalanx::coordinator
