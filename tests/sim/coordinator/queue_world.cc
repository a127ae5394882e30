#include "tests/sim/coordinator/queue_world.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace phalanx::coordinator {
namespace {

// By when a drained node has been left by all that can leave it.
constexpr absl::Duration kLeft = absl::Seconds(60);

}  // namespace

QueueWorld::QueueWorld(uint64_t seed, Faults faults) : prng_(seed), faults_(faults) {
  options_.end_grace = absl::Seconds(20 + static_cast<int64_t>(prng_.Below(20)));
  options_.cancel_grace = absl::Seconds(2);
  options_.share_half_life = absl::Seconds(static_cast<int64_t>(prng_.Below(4)) * 120);
  if (Chance(2)) options_.quotas = quotas_ = DrawQuotas();
  if (faults_.crowded) quotas_ = Quotas();
  if (faults_.owners) {
    quotas_.owners[kOwners[1]] = {.devices_max = 2, .weight = 0.5};
    quotas_.owners[kOwners[2]] = {.weight = 3};
  }
  if (faults_.crowded) options_.quotas = quotas_;
  if (faults_.losses) {
    options_.heartbeat_interval = absl::Seconds(1);
    options_.heartbeat_timeout = absl::Seconds(4 + static_cast<int64_t>(prng_.Below(12)));
    options_.node_forget_delay = absl::Seconds(30 + static_cast<int64_t>(prng_.Below(200)));
  }
  machine_.emplace(options_);
  for (const Action& action : machine_->Recover(now_, {})) Take(action);
  const uint64_t count = (faults_.mixed ? 2 : 1) + prng_.Below(4);
  for (uint64_t i = 0; i < count; ++i) {
    const auto devices = static_cast<int32_t>(1 + prng_.Below(4));
    hosts_.push_back({.name = absl::StrCat("node-", i), .session = SessionId{++sessions_}});
    Host& host = hosts_.back();
    host.devices.resize(static_cast<size_t>(devices));
    devices_ += devices;
    if (faults_.mixed) {
      if (Chance(3)) host.kind = job::DeviceKind::kGpu;
      host.labels["zone"] = Chance(2) ? "north" : "south";
      if (Chance(2)) host.labels["disk"] = "fast";
    }
    Feed(SessionOpened{host.session, WorkerHello{.node = host.name,
                                                 .incarnation = Incarnation{1},
                                                 .device_kind = host.kind,
                                                 .devices = devices,
                                                 .labels = host.labels}});
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
    NoteSaved(events.front());
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
    if (const auto* moved = std::get_if<PhaseChanged>(&store->record.body))
      CheckMoved(store->record.job, *moved);
    const auto* wish = std::get_if<EndWished>(&store->record.body);
    if (wish == nullptr || wish->preempted_by == JobId{}) return;
    ++counts_.preempted;
    const JobRequest& leaves = *machine_->jobs().at(store->record.job).state.request;
    const JobRequest& gets = *machine_->jobs().at(wish->preempted_by).state.request;
    if (!leaves.preemptible || leaves.priority >= gets.priority)
      Violate(absl::StrCat(ToString(store->record.job), " is preempted and may not be"));
    const auto helps = [&](const auto& entry) {
      const std::vector<JobId>& holders = entry.second.device_jobs;
      return Suits(entry.first, gets) &&
             std::find(holders.begin(), holders.end(), store->record.job) != holders.end();
    };
    if (!std::any_of(machine_->nodes().begin(), machine_->nodes().end(), helps))
      Violate(absl::StrCat(ToString(store->record.job), " is preempted and has nothing for ",
                           ToString(wish->preempted_by)));
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
      const bool hears = host.session == send->session && !host.away_until.has_value();
      if (hears) Obey(host, send->command_number, send->command);
    }
  } else if (const auto* welcome = std::get_if<SendWelcome>(&action)) {
    for (Host& host : hosts_) {
      const bool hears = host.session == welcome->session && !host.away_until.has_value();
      if (hears && !std::exchange(host.welcome, true)) host.back = now_;
    }
  } else if (const auto* close = std::get_if<CloseSession>(&action)) {
    for (Host& host : hosts_) {
      const bool is_refused = host.session == close->session && !host.away_until.has_value();
      if (is_refused) host.away_until = now_, host.cut = true;  // it comes again
    }
  }
}

bool QueueWorld::Suits(const NodeName& node, const JobRequest& request) const {
  const auto host = std::find_if(hosts_.begin(), hosts_.end(),
                                 [&node](const Host& each) { return each.name == node; });
  if (host == hosts_.end() || host->kind != request.device_kind) return false;
  for (const auto& [label, value] : request.node_selector) {
    const auto has = host->labels.find(label);
    if (has == host->labels.end() || has->second != value) return false;
  }
  return true;
}

int64_t QueueWorld::FreeFor(const JobRequest& request) const {
  int64_t free = 0;
  for (const auto& [name, node] : machine_->nodes()) {
    if (node.TakesJobs() && Suits(name, request)) free += node.FreeDevices();
  }
  return free;
}

int64_t QueueWorld::CapacityFor(const JobRequest& request) const {
  int64_t capacity = 0;
  for (const auto& [name, node] : machine_->nodes()) {
    if (node.MayTakeJobs() && !node.lost && Suits(name, request))
      capacity += static_cast<int64_t>(node.device_jobs.size());
  }
  return capacity;
}

bool QueueWorld::Compete(const JobRequest& a, const JobRequest& b) const {
  return a.owner == b.owner || std::any_of(hosts_.begin(), hosts_.end(), [&](const Host& host) {
           return Suits(host.name, a) && Suits(host.name, b);
         });
}

Instant QueueWorld::EndOf(const Coordinator::Job& job) const {
  const Instant end = LimitOf(job);
  // Ranks that are not gone by then may never be.
  return job.state.ended.has_value() && end <= now_ ? absl::InfiniteFuture() : end;
}

Instant QueueWorld::LimitOf(const Coordinator::Job& job) const {
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
  std::set<JobId> later;
  for (auto id = planned.rbegin(); id != planned.rend(); ++id) {
    const Coordinator::Job& job = machine_->jobs().at(*id);
    if (job.run.has_value()) continue;  // it had its devices before
    later.insert(*id);
    for (const Coordinator::Job* first : FirstsBefore(job, later)) CheckAhead(job, *first, later);
  }
}

// Devices are counted as before the job had its own, on nodes that suit the first one.
void QueueWorld::CheckAhead(const Coordinator::Job& job, const Coordinator::Job& first,
                            const std::set<JobId>& later) {
  CheckLeavesQuota(job, first, later);
  const JobRequest& needs = *first.state.request;
  int64_t free = 0, taken = 0;  // by the job
  int64_t silent = 0;           // on nodes of which nothing is heard
  std::map<JobId, int64_t> holders;
  for (const auto& [name, node] : machine_->nodes()) {
    if (!Suits(name, needs)) continue;
    if (node.TakesJobs()) free += node.FreeDevices();
    if (node.suspect && node.connected() && node.MayTakeJobs()) silent += node.FreeDevices();
    for (const JobId holder : node.device_jobs) {
      if (holder == job.state.id) ++taken;
      if (later.contains(holder)) {
        ++free;
      } else if (holder != JobId{} && node.MayTakeJobs() && node.connected()) {
        ++holders[holder];
      }
    }
  }
  if (taken == 0) {
    ++counts_.apart;
    return;
  }
  ++counts_.ahead;
  const int64_t needed = needs.devices;
  std::vector<std::pair<Instant, int64_t>> held;
  for (const auto& [id, count] : holders) held.emplace_back(EndOf(machine_->jobs().at(id)), count);
  const std::string both = absl::StrCat(ToString(job.state.id), " takes ", taken, " ahead of ",
                                        ToString(first.state.id), " of ", needed);
  if (needed <= free) return Violate(absl::StrCat(both, ", for which ", free, " were free"));
  const auto starts = [&](int64_t there) {
    auto more = held;
    more.emplace_back(EndOf(job), taken);
    return std::pair(StartOf(needed, there, held), StartOf(needed, there - taken, more));
  };
  const auto delays = [&](int64_t there) {
    const auto [before, after] = starts(there);
    // A promise is of when it was made: what was planned then has started since, and ends sooner.
    return before == absl::InfiniteFuture() || after > before + kPlanned;
  };
  // Nor was a node silent then that is now.
  if (delays(free) && (silent == 0 || delays(free + silent))) {
    const auto [before, after] = starts(free);
    Violate(absl::StrCat(both, ", which would start by ", absl::FormatTime(before), ", and now by ",
                         absl::FormatTime(after)));
  }
}

// Nobody has devices for longer than a reservation counts with.
void QueueWorld::CheckLimits() {
  for (const auto& [id, job] : machine_->jobs()) {
    if (!job.run.has_value() || !job.state.counts_since.has_value()) continue;
    if (IsOnlyOfAway(id)) continue;
    const absl::Duration ends = options_.end_grace + options_.cancel_grace + kGone;
    if (now_ > LimitOf(job) && now_ > UndisturbedSince(id) + ends)
      Violate(absl::StrCat(ToString(id), " has its devices behind its limit"));
  }
}

void QueueWorld::CheckDrains() {
  for (const Host& host : hosts_) {
    if (!host.drains.has_value() || now_ < *host.drains + kLeft) continue;
    if (!machine_->nodes().contains(host.name)) continue;  // lost, and forgotten
    for (const JobId id : machine_->nodes().at(host.name).device_jobs) {
      const auto holder = machine_->jobs().find(id);
      if (holder == machine_->jobs().end()) continue;
      const JobRequest& request = *holder->second.state.request;
      // What it has lost it may wait for.
      const absl::Duration hold = lost_.contains(id) ? request.hold : absl::ZeroDuration();
      if (now_ < std::max(*host.drains, UndisturbedSince(id)) + hold + kLeft) continue;
      if (request.checkpoints)
        Violate(absl::StrCat(host.name, " drains, and ", ToString(id), " does not leave it"));
    }
  }
}

void QueueWorld::DrawWish(JobRequest& request) {
  const Host& like = hosts_[prng_.Below(hosts_.size())];
  request.device_kind = like.kind;
  for (const auto& label : like.labels) {
    if (Chance(3)) request.node_selector.insert(label);
  }
  int64_t devices = 0;
  for (const Host& host : hosts_)
    devices += Suits(host.name, request) ? static_cast<int64_t>(host.devices.size()) : 0;
  request.devices = static_cast<int32_t>(std::min<int64_t>(request.devices, devices));
  request.world = request.devices;
  if (!faults_.losses && request.devices > 1 && Chance(4)) --request.world;
}

void QueueWorld::Submit() {
  auto request = std::make_shared<JobRequest>(JobRequest{
      .name = absl::StrCat("job", ++token_),
      .steps = 2 + static_cast<int64_t>(prng_.Below(Chance(4) ? 300 : 40)),
      .devices = 1 + static_cast<int32_t>(prng_.Below(static_cast<uint64_t>(devices_)))});
  request->world = request->devices;
  if (Chance(2)) request->devices = request->world = 1;  // small ones are many
  if (faults_.mixed) DrawWish(*request);
  request->checkpoints = !Chance(5);
  request->priority = Chance(3) ? static_cast<int32_t>(prng_.Below(3)) : 0;
  request->preemptible = Chance(2);
  if (Chance(2)) request->time_limit = absl::Seconds(5 + static_cast<int64_t>(prng_.Below(200)));
  request->owner = kOwners[prng_.Below(std::size(kOwners))];
  if (faults_.losses) {
    request->waits = !Chance(3);
    request->restarts = !Chance(3);
    request->recovers = request->waits || request->restarts;
    request->begins_anew = request->checkpoints;  // each writes them on its way
    request->hold = absl::Seconds(10 + static_cast<int64_t>(prng_.Below(150)));
    if (Chance(2)) mirrored_.insert(request->name);
  }
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
  if (faults_.crashes && Chance(100)) Reserve(hosts_[prng_.Below(hosts_.size())].name, Chance(3));
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
  if (faults_.losses && !machine_->nodes().contains(host.name)) host.drains.reset();  // forgotten
}

void QueueWorld::Second() {
  UseDevices();
  now_ += absl::Seconds(1);
  for (Host& host : hosts_) {
    if (!host.welcome) NoteHit(host);  // jobs may have been placed there since
    if (host.away_until.has_value() && *host.away_until <= now_) ComeBack(host);
    if (!host.away_until.has_value()) Feed(HeartbeatReceived{.session = host.session});
  }
  Feed(DeadlineReached{});
  const int64_t crashes = counts_.crashes;
  for (const ComputePlan& order : std::exchange(plans_, {})) {
    if (counts_.crashes != crashes) break;  // another one has ordered its own
    Feed(PlanComputed{order.number, PlanOf(order)});
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
  CheckWaits();
}

void QueueWorld::Act() {
  Ask();
  if (faults_.losses) LoseSomething();
  Second();
}

bool QueueWorld::Finish() {
  settling_ = true;
  for (Host& host : hosts_) {
    if (host.away_until.has_value())
      host.away_until = now_ + absl::Seconds(static_cast<int64_t>(prng_.Below(200)));
  }
  std::vector<JobId> suspended;
  for (const auto& [id, job] : machine_->jobs()) {
    if (job.state.suspended && !job.state.IsTerminal()) suspended.push_back(id);
  }
  for (const JobId id : suspended) Suspend(id, false);
  for (Host& host : hosts_) {
    host.drains.reset();
    Mark(host.name, std::nullopt, false);
    if (faults_.crashes) Reserve(host.name, false);
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
                    job.state.request->devices,
                    job.state.request->device_kind == job::DeviceKind::kGpu ? " gpu" : "",
                    " devices of ", job.state.request->owner, " {",
                    absl::StrJoin(job.state.request->node_selector, " ", absl::PairFormatter("=")),
                    "}, priority ", job.state.request->priority, ", limit ",
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
    absl::StrAppend(&text, name, " {", absl::StrJoin(node.labels, " ", absl::PairFormatter("=")),
                    "}", node.device_kind == job::DeviceKind::kGpu ? " gpu" : "", " free ",
                    node.FreeDevices(), " of ", node.device_jobs.size(),
                    node.mark.has_value() ? absl::StrCat(" ", ToString(*node.mark)) : "", "\n");
  }
  return text;
}

}  // namespace phalanx::coordinator
