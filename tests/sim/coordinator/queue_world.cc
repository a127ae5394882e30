#include "tests/sim/coordinator/queue_world.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

// As coordinator_queue.cc has them: what a job may take before its time_limit counts, and its
// processes behind its end.
constexpr absl::Duration kPlanned = absl::Seconds(30), kGone = absl::Seconds(30);
// By when a drained node has been left by all that can leave it.
constexpr absl::Duration kLeft = absl::Seconds(60);

}  // namespace

QueueWorld::QueueWorld(uint64_t seed, bool crashes) : prng_(seed), crashes_(crashes) {
  options_.end_grace = absl::Seconds(20 + static_cast<int64_t>(prng_.Below(20)));
  options_.cancel_grace = absl::Seconds(2);
  options_.share_half_life = absl::Seconds(static_cast<int64_t>(prng_.Below(4)) * 120);
  if (crashes_) options_.share_half_life = absl::ZeroDuration();
  if (Chance(2)) options_.quotas = quotas_ = DrawQuotas();
  machine_.emplace(options_);
  for (const Action& action : machine_->Recover(now_, {})) Take(action);
  const uint64_t count = 1 + prng_.Below(4);
  for (uint64_t i = 0; i < count; ++i) {
    const auto devices = static_cast<int32_t>(1 + prng_.Below(4));
    hosts_.push_back({.name = absl::StrCat("node-", i), .session = SessionId{++sessions_}});
    hosts_.back().devices.resize(static_cast<size_t>(devices));
    devices_ += devices;
    Feed(SessionOpened{hosts_.back().session, WorkerHello{.node = hosts_.back().name,
                                                          .incarnation = Incarnation{1},
                                                          .devices = devices}});
  }
}

QueueWorld::Host& QueueWorld::HostNamed(const NodeName& name) {
  return *std::find_if(hosts_.begin(), hosts_.end(),
                       [&name](const Host& host) { return host.name == name; });
}

// Every step is stored at once, so that what the machine is asked for is all of its order.
void QueueWorld::Feed(const Event& event) {
  std::deque<Event> events = {event};
  while (!events.empty()) {
    planned_.clear();
    const std::vector<Action> actions = machine_->Step(now_, events.front());
    events.pop_front();
    for (const Action& action : actions) Take(action);
    CheckPlanned(planned_);
    CheckQuotas(planned_);
    if (const std::optional<uint64_t> kept = CrashesAt(); kept.has_value()) {
      Crash(*kept);
      events = {RecordStored{records_}};
      stored_ = records_;
    } else if (stored_ != records_) {
      stored_ = records_;
      events.push_back(RecordStored{stored_});
    } else if (events.empty() && machine_->NextDeadline() <= now_) {
      events.push_back(DeadlineReached{});
    }
  }
}

void QueueWorld::Take(const Action& action) {
  if (const auto* store = std::get_if<StoreRecord>(&action)) {
    ++records_;
    log_.push_back(store->record);
    const auto* wish = std::get_if<EndWished>(&store->record.body);
    if (wish == nullptr || wish->preempted_by == JobId{}) return;
    ++counts_.preempted;
    const JobRequest& leaves = *machine_->jobs().at(store->record.job).state.request;
    const JobRequest& gets = *machine_->jobs().at(wish->preempted_by).state.request;
    if (!leaves.preemptible || leaves.priority >= gets.priority)
      Violate(absl::StrCat(ToString(store->record.job), " is preempted and may not be"));
  } else if (const auto* plan = std::get_if<ComputePlan>(&action)) {
    for (const auto& [id, job] : machine_->jobs()) {
      if (job.planning.has_value() && job.planning->number == plan->number) planned_.push_back(id);
    }
    plans_.push_back(*plan);
  } else if (const auto* answer = std::get_if<AnswerJob>(&action)) {
    CheckAnswer(*answer);
    Note(*answer);
  } else if (const auto* log = std::get_if<LogLine>(&action)) {
    said_.push_back(
        absl::StrCat(absl::FormatTime("%H:%M:%S", now_, absl::UTCTimeZone()), " ", log->text));
    if (said_.size() > kSaidMax) said_.pop_front();
  } else if (const auto* node = std::get_if<AnswerNode>(&action)) {
    Note(*node);
  } else if (const auto* send = std::get_if<SendCommand>(&action)) {
    for (Host& host : hosts_) {
      if (host.session == send->session) Obey(host, send->command_number, send->command);
    }
  }
}

void QueueWorld::Obey(Host& host, uint64_t number, const Command& command) {
  host.last_command = std::max(host.last_command, number);
  CommandFinished answer{.session = host.session, .command_number = number};
  if (std::holds_alternative<PrepareData>(command)) answer.data_digest = "data";
  if (const auto* assign = std::get_if<Assign>(&command)) Assigned(host, *assign);
  if (const auto* stop = std::get_if<StopRanks>(&command)) {
    const auto runs = host.running.find(stop->job);
    if (runs != host.running.end() && runs->second <= stop->epoch) {
      std::replace(host.devices.begin(), host.devices.end(), stop->job, JobId{});
      host.running.erase(runs);
    }
    const auto trains = training_.find(stop->job);
    if (trains != training_.end() && trains->second.epoch <= stop->epoch) training_.erase(trains);
  }
  const auto* wish = std::get_if<Wish>(&command);
  if (wish != nullptr && training_.contains(wish->job)) training_.at(wish->job).wished = true;
  if (const auto* publish = std::get_if<PublishCheckpoint>(&command)) {
    answers_.push_back(RankReported{
        host.session, publish->job, publish->epoch, publish->rank,
        RankCheckpointPublished{publish->step, absl::StrCat("/c/", publish->step), ""}});
  }
  answers_.push_back(std::move(answer));
}

void QueueWorld::Assigned(Host& host, const Assign& assign) {
  Training& training = training_[assign.job];
  if (training.epoch != assign.epoch)
    training = {.epoch = assign.epoch, .placement = assign.layout->nodes};
  training.assigned.insert(host.name);
  host.running[assign.job] = assign.epoch;
  for (const NodeDevices& entry : training.placement) {
    if (entry.node != host.name) continue;
    for (const int32_t device : entry.devices) {
      JobId& holder = host.devices[static_cast<size_t>(device)];
      if (holder != JobId{} && !(crashes_ && holder == assign.job)) {
        Violate(absl::StrCat(host.name, " device ", device, " is given to ", ToString(assign.job),
                             " and has ", ToString(holder)));
      }
      holder = assign.job;
    }
  }
  const int64_t behind = assign.checkpoint.has_value() ? assign.checkpoint->step : 0;
  if (behind != done_[assign.job]) {
    Violate(absl::StrCat(ToString(assign.job), " goes on behind step ", behind, " and had done ",
                         done_[assign.job]));
  }
  if (behind != 0) ++counts_.went_on;
}

int64_t QueueWorld::Free() const {
  int64_t free = 0;
  for (const auto& [name, node] : machine_->nodes()) {
    if (node.TakesJobs()) free += node.FreeDevices();
  }
  return free;
}

Instant QueueWorld::EndOf(const Coordinator::Job& job) const {
  if (job.state.ended.has_value()) return *job.state.ended + options_.cancel_grace + kGone;
  const Instant since = job.state.counts_since.value_or(now_ + kPlanned);
  return since + job.state.request->time_limit - job.state.used + options_.end_grace +
         options_.cancel_grace + kGone;
}

// When so many devices are free at the latest, in the plainest way there is.
Instant QueueWorld::StartOf(int64_t needed, int64_t free,
                            std::vector<std::pair<Instant, int64_t>> held) const {
  std::sort(held.begin(), held.end());
  Instant start = now_;
  for (const auto& [until, count] : held) {
    if (free >= needed) break;
    free += count;
    start = std::max(start, until);
  }
  return free >= needed ? start : absl::InfiniteFuture();
}

// Of those that are planned by one look at the queue each is checked as if those behind it were
// not.
void QueueWorld::CheckPlanned(const std::vector<JobId>& planned) {
  int64_t free = Free();
  std::set<JobId> later;
  for (auto id = planned.rbegin(); id != planned.rend(); ++id) {
    const Coordinator::Job& job = machine_->jobs().at(*id);
    if (job.run.has_value()) continue;  // it had its devices before
    free += job.state.request->devices;
    later.insert(*id);
    CheckAhead(job, free, later);
  }
}

// `free`: devices before the job had its own; `later`: the job, and those planned behind it.
void QueueWorld::CheckAhead(const Coordinator::Job& job, int64_t free,
                            const std::set<JobId>& later) {
  int64_t capacity = 0;
  std::map<JobId, int64_t> holders;
  for (const auto& [name, node] : machine_->nodes()) {
    if (!node.MayTakeJobs()) continue;
    capacity += static_cast<int64_t>(node.device_jobs.size());
    for (const JobId holder : node.device_jobs) {
      if (holder != JobId{} && !later.contains(holder)) ++holders[holder];
    }
  }
  const Coordinator::Job* first = FirstBefore(job, capacity, later);
  if (first == nullptr) return;
  ++counts_.ahead;
  CheckLeavesQuota(job, *first, later);
  const int64_t needed = first->state.request->devices;
  std::vector<std::pair<Instant, int64_t>> held;
  for (const auto& [id, count] : holders) held.emplace_back(EndOf(machine_->jobs().at(id)), count);
  const std::string both =
      absl::StrCat(ToString(job.state.id), " of ", job.state.request->devices, " goes ahead of ",
                   ToString(first->state.id), " of ", needed);
  if (needed <= free) return Violate(absl::StrCat(both, ", for which ", free, " were free"));
  const Instant before = StartOf(needed, free, held);
  held.emplace_back(EndOf(job), job.state.request->devices);
  const Instant after = StartOf(needed, free - job.state.request->devices, held);
  // A promise is of when it was made: what was planned then has started since, and ends sooner.
  if (before == absl::InfiniteFuture() || after > before + kPlanned) {
    Violate(absl::StrCat(both, ", which would start by ", absl::FormatTime(before), ", and now by ",
                         absl::FormatTime(after)));
  }
}

// Nobody has devices for longer than a reservation counts with.
void QueueWorld::CheckLimits() {
  for (const auto& [id, job] : machine_->jobs()) {
    if (job.run.has_value() && job.state.counts_since.has_value() && now_ > EndOf(job))
      Violate(absl::StrCat(ToString(id), " has its devices behind its limit"));
  }
}

void QueueWorld::CheckDrains() {
  for (const Host& host : hosts_) {
    if (!host.drains.has_value() || now_ < *host.drains + kLeft) continue;
    for (const JobId id : machine_->nodes().at(host.name).device_jobs) {
      const auto holder = machine_->jobs().find(id);
      if (holder != machine_->jobs().end() && holder->second.state.request->checkpoints)
        Violate(absl::StrCat(host.name, " drains, and ", ToString(id), " does not leave it"));
    }
  }
}

void QueueWorld::Report(JobId id, Training& training, int32_t rank,
                        decltype(RankReported::report) report) {
  int32_t first = 0;
  for (const NodeDevices& entry : training.placement) {
    const int32_t end = first + static_cast<int32_t>(entry.devices.size());
    if (rank < end) {
      const RankReported said{HostNamed(entry.node).session, id, training.epoch, rank,
                              std::move(report)};
      if (std::holds_alternative<StepReport>(said.report)) {
        std::erase_if(training.said, [](const auto& before) {
          return std::holds_alternative<StepReport>(before.second.report);
        });
      }
      training.said.emplace_back(entry.node, said);
      return answers_.push_back(said);
    }
    first = end;
  }
}

void QueueWorld::ReportAll(JobId id, Training& training, decltype(RankReported::report) report) {
  int32_t ranks = 0;
  for (const NodeDevices& entry : training.placement)
    ranks += static_cast<int32_t>(entry.devices.size());
  for (int32_t rank = 0; rank < ranks; ++rank) Report(id, training, rank, report);
}

// A second of a job: a step, or what comes before and behind all steps.
void QueueWorld::Train(JobId id, Training& training) {
  if (training.ended || training.assigned.size() < training.placement.size()) return;
  if (!training.ready) {
    training.ready = true;
    return ReportAll(id, training, RankReady{});
  }
  const auto job = machine_->jobs().find(id);
  if (job == machine_->jobs().end() || job->second.state.phase != job::JobPhase::kRunning) return;
  const int64_t step = ++done_[id];
  Report(id, training, 0, StepReport{.step = step, .epoch = training.epoch});
  const bool last = step == job->second.state.request->steps;
  if (!last && !training.wished) return;
  training.ended = true;
  if (!last) {
    int32_t ranks = 0;
    for (const NodeDevices& entry : training.placement)
      ranks += static_cast<int32_t>(entry.devices.size());
    for (int32_t rank = 0; rank < ranks; ++rank)
      Report(id, training, rank, RankCheckpointPart{step, {.file = absl::StrCat("rank-", rank)}});
  }
  ReportAll(id, training, RankSucceeded{.step = step, .early = !last});
}

void QueueWorld::Submit() {
  auto request = std::make_shared<JobRequest>(JobRequest{
      .name = absl::StrCat("job", ++token_),
      .steps = 2 + static_cast<int64_t>(prng_.Below(Chance(4) ? 300 : 40)),
      .devices = 1 + static_cast<int32_t>(prng_.Below(static_cast<uint64_t>(devices_)))});
  request->world = request->devices;
  if (Chance(2)) request->devices = request->world = 1;  // small ones are many
  request->checkpoints = !Chance(5);
  request->priority = Chance(3) ? static_cast<int32_t>(prng_.Below(3)) : 0;
  request->preemptible = Chance(2);
  if (Chance(2)) request->time_limit = absl::Seconds(5 + static_cast<int64_t>(prng_.Below(200)));
  request->owner = kOwners[prng_.Below(std::size(kOwners))];
  asked_[Token{token_}] = request;
  Feed(SubmitRequested{Token{token_}, request, ""});
}

void QueueWorld::Ask() {
  if (Chance(12)) Submit();
  if (machine_->jobs().empty()) return;
  const auto chosen = std::next(machine_->jobs().begin(),
                                static_cast<std::ptrdiff_t>(prng_.Below(machine_->jobs().size())));
  const JobId job = chosen->first;
  if (Chance(40)) Suspend(job, Chance(2));
  if (Chance(200)) {
    quotas_ = Chance(4) ? Quotas() : DrawQuotas();
    Feed(QuotasChanged{quotas_});
  }
  if (Chance(300)) Cancel(job, Chance(2));
  if (crashes_ && Chance(100)) Reserve(hosts_[prng_.Below(hosts_.size())].name, Chance(3));
  if (!Chance(80)) return;
  Host& host = hosts_[prng_.Below(hosts_.size())];
  std::optional<NodeMark> mark;
  if (!Chance(2)) mark = NodeMark{.drains = Chance(2), .reason = "new fan"};
  const bool drains = mark.has_value() && mark->drains;
  if (drains && !host.drains.has_value()) {
    host.drains = now_;
    ++counts_.drained;
  }
  if (!mark.has_value()) host.drains.reset();
  Mark(host.name, mark, /*force=*/Chance(4));
}

void QueueWorld::Second() {
  UseDevices();
  now_ += absl::Seconds(1);
  for (const Host& host : hosts_) Feed(HeartbeatReceived{.session = host.session});
  Feed(DeadlineReached{});
  const int64_t crashes = counts_.crashes;
  for (const ComputePlan& order : std::exchange(plans_, {})) {
    if (counts_.crashes != crashes) break;  // another one has ordered its own
    plan::Layout layout{.epoch = order.epoch, .nodes = order.placement};
    if (order.layout.has_value()) {  // of an epoch that begins anew
      layout = **order.layout;
      layout.epoch = std::max(layout.epoch, order.epoch);
    }
    Feed(PlanComputed{order.number, PlanSummary{.layout = std::move(layout),
                                                .digest = absl::StrCat("plan:", order.number)}});
  }
  std::vector<JobId> trains;
  for (const auto& [id, training] : training_) trains.push_back(id);
  for (const JobId id : trains) {
    if (training_.contains(id)) Train(id, training_.at(id));
  }
  // What a node says is heard within the second, or in one of the next.
  for (uint64_t late = Chance(3) ? prng_.Below(3) : 0; answers_.size() > late;) {
    const Event event = std::move(answers_.front());
    answers_.pop_front();
    Feed(event);
  }
  CheckLimits();
  CheckDrains();
}

void QueueWorld::Act() {
  Ask();
  Second();
}

bool QueueWorld::Finish() {
  settling_ = true;
  std::vector<JobId> suspended;
  for (const auto& [id, job] : machine_->jobs()) {
    if (job.state.suspended && !job.state.IsTerminal()) suspended.push_back(id);
  }
  for (const JobId id : suspended) Suspend(id, false);
  for (Host& host : hosts_) {
    host.drains.reset();
    Mark(host.name, std::nullopt, false);
    if (crashes_) Reserve(host.name, false);
  }
  // What no quota lets run for ever is let.
  for (const char* owner : kOwners) {
    Quota quota = quotas_.Of(owner);
    quota.devices_max = std::max(quota.devices_max, devices_);
    quota.jobs_max = std::max<int64_t>(quota.jobs_max, 1);
    quotas_.owners[owner] = quota;
  }
  Feed(QuotasChanged{quotas_});
  for (int second = 0; second < 100'000 && violations_.empty(); ++second) {
    Second();
    const bool over =
        std::all_of(machine_->jobs().begin(), machine_->jobs().end(), [](const auto& entry) {
          return entry.second.state.IsTerminal() && !entry.second.run.has_value();
        });
    if (over) return true;
  }
  return false;
}

std::string QueueWorld::Describe() const {
  std::string text;
  for (const std::string& line : said_) absl::StrAppend(&text, line, "\n");
  for (const auto& [id, job] : machine_->jobs()) {
    if (job.state.IsTerminal() && !job.run.has_value()) continue;
    absl::StrAppend(&text, ToString(id), " ", job::ToString(job.state.phase), " of ",
                    job.state.request->devices, " devices of ", job.state.request->owner,
                    ", priority ", job.state.request->priority, ", limit ",
                    absl::FormatDuration(job.state.request->time_limit), ", on ",
                    ToString(*job.state.placement), " reason \"", job.state.reason, "\"\n");
  }
  for (const char* owner : kOwners) {
    const Quota& quota = quotas_.Of(owner);
    absl::StrAppend(&text, owner, " has ", HeldBy(owner, {}).first, " of ", quota.devices_max,
                    " devices, ", HeldBy(owner, {}).second, " of ", quota.jobs_max, " jobs; share ",
                    ShareOf(owner, {}), "\n");
  }
  for (const auto& [name, node] : machine_->nodes()) {
    absl::StrAppend(&text, name, " free ", node.FreeDevices(), " of ", node.device_jobs.size(),
                    node.mark.has_value() ? absl::StrCat(" ", ToString(*node.mark)) : "", "\n");
  }
  return text;
}

}  // namespace phalanx::coordinator
