#include "tests/sim/coordinator/world.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

PlanSummary PlanFor(const ComputePlan& order) {
  if (order.layout.has_value()) {
    return {.layout = *order.layout, .digest = absl::StrCat("plan:", ToString(order.placement))};
  }
  return {.layout = {.epoch = order.epoch, .nodes = order.placement},
          .digest = absl::StrCat("plan:", ToString(order.placement))};
}

}  // namespace

World::World(uint64_t seed) : prng_(seed) {
  options_.live_jobs_max = 1 + static_cast<int64_t>(prng_.Below(8));
  options_.start_timeout = absl::Seconds(20 + static_cast<int64_t>(prng_.Below(600)));
  options_.heartbeat_timeout = absl::Seconds(3 + static_cast<int64_t>(prng_.Below(20)));
  const uint64_t count = 1 + prng_.Below(4);
  for (uint64_t i = 0; i < count; ++i) {
    nodes_.push_back(
        {.name = absl::StrCat("node-", i), .devices = 1 + static_cast<int32_t>(prng_.Below(4))});
  }
  machine_.emplace(options_);
  Take(machine_->Recover(now_, {}));
}

void World::Violate(std::string what) { violations_.push_back(std::move(what)); }

int64_t World::ended() const {
  return std::count_if(published_.begin(), published_.end(),
                       [](const auto& entry) { return job::IsTerminal(entry.second.phase); });
}

std::string World::Describe() const {
  std::string text;
  for (const auto& [id, job] : machine_->jobs()) {
    absl::StrAppend(&text, ToString(id), " ", job::ToString(job.state.phase), " epoch ",
                    job.state.epoch.value, " on ", ToString(job.state.layout.nodes), " reason \"",
                    job.state.reason, "\"", job.run.has_value() ? " has a run" : "", "\n");
  }
  for (const auto& [name, node] : machine_->nodes()) {
    absl::StrAppend(&text, name, node.connected() ? " connected" : " away", " free ",
                    node.FreeDevices(), " of ", node.device_jobs.size(), " foreign ",
                    node.foreign.size(), " outstanding ", node.outstanding.size(), "\n");
  }
  for (const FakeNode& node : nodes_) {
    for (const auto& [job, ranks] : node.running) {
      absl::StrAppend(&text, node.name, " runs ", ToString(job), " epoch ", ranks.epoch.value, ":");
      for (const auto& [rank, device] : ranks.device_of) {
        absl::StrAppend(&text, " ", rank, ranks.succeeded.contains(rank) ? "(succeeded)" : "",
                        ranks.ready.contains(rank) ? "" : "(not ready)");
      }
      absl::StrAppend(&text, "\n");
    }
  }
  return text;
}

void World::Feed(const Event& event) {
  Take(machine_->Step(now_, event));
  Check();
  while (!plans_.empty() && prng_.Below(2) == 0) {
    const ComputePlan order = std::move(plans_.front());
    plans_.erase(plans_.begin());
    Take(machine_->Step(now_, PlanComputed{order.number, PlanFor(order)}));
    Check();
  }
}

void World::Take(std::vector<Action> actions) {
  for (const Action& action : actions) Take(action);
}

void World::Take(const Action& action) {
  fingerprint_ = Mix64(fingerprint_ ^ action.index());
  if (const auto* store = std::get_if<StoreRecord>(&action)) {
    if (store->record_number != records_.size() + 1) Violate("a record number is out of turn");
    records_.push_back(store->record);
  } else if (const auto* send = std::get_if<SendCommand>(&action)) {
    fingerprint_ = Mix64(fingerprint_ ^ send->command_number);
    CheckCommand(send->command);
    for (FakeNode& node : nodes_) {
      if (node.session == send->session) node.inbox.push_back(*send);
    }
  } else if (const auto* plan = std::get_if<ComputePlan>(&action)) {
    plans_.push_back(*plan);
  } else if (const auto* close = std::get_if<CloseSession>(&action)) {
    for (FakeNode& node : nodes_) {
      if (node.session != close->session) continue;
      node.session = SessionId{};
      node.inbox.clear();
    }
  } else if (const auto* publish = std::get_if<PublishJob>(&action)) {
    const JobView& job = *publish->job;
    const auto before = published_.find(job.id);
    if (before != published_.end()) {
      if (job::IsTerminal(before->second.phase) && before->second.phase != job.phase) {
        Violate(absl::StrCat(ToString(job.id), " left a terminal phase"));
      }
      if (job.epoch < before->second.epoch)
        Violate(absl::StrCat(ToString(job.id), ": its epoch fell"));
    }
    published_[job.id] = job;
  } else if (const auto* answer = std::get_if<AnswerJob>(&action)) {
    if (answer->job.ok()) acknowledged_.insert((*answer->job)->id);
  }
}

// An order of an epoch follows the stored record of that epoch.
void World::CheckCommand(const Command& command) {
  const auto stored = [&](JobId job, auto matches) {
    return std::any_of(records_.begin(), records_.begin() + static_cast<std::ptrdiff_t>(stored_),
                       [&](const Record& record) {
                         const auto* planned = std::get_if<EpochPlanned>(&record.body);
                         return record.job == job && planned != nullptr && matches(*planned);
                       });
  };
  if (const auto* prepare = std::get_if<PrepareData>(&command)) {
    if (!stored(prepare->job, [](const EpochPlanned&) { return true; })) {
      Violate("data is prepared before the plan is stored");
    }
  } else if (const auto* assign = std::get_if<Assign>(&command)) {
    if (!stored(assign->job, [assign](const EpochPlanned& planned) {
          return planned.layout == assign->layout && planned.plan_digest == assign->plan_digest;
        })) {
      Violate("ranks are assigned before their epoch is stored");
    }
  }
}

void World::Check() {
  std::map<std::pair<NodeName, int32_t>, JobId> holders;
  for (const auto& [id, job] : machine_->jobs()) {
    const bool live = !job.state.IsTerminal() && job.state.phase != job::JobPhase::kQueued;
    if (live && !job.run.has_value())
      Violate(absl::StrCat(ToString(id), " is live and has no run"));
    if (!job.run.has_value()) continue;
    for (const Part& part : job.run->parts) {
      for (int32_t device : part.devices) {
        if (part.released) continue;
        const auto [it, added] = holders.emplace(std::pair(part.node, device), id);
        if (!added) {
          Violate(absl::StrCat(part.node, " device ", device, " has ", ToString(it->second),
                               " and ", ToString(id)));
        }
      }
    }
  }
  for (JobId id : acknowledged_) {
    if (!machine_->jobs().contains(id))
      Violate(absl::StrCat(ToString(id), " was acknowledged and is gone"));
  }
}

// Replaying what is stored gives the durable state of each job.
void World::CheckReplay() {
  if (stored_ != records_.size()) return;
  std::map<JobId, JobState> replayed;
  for (const Record& record : records_) {
    replayed[record.job].id = record.job;
    replayed[record.job].Apply(record);
  }
  for (const auto& [id, job] : machine_->jobs()) {
    const JobState& a = job.state;
    const JobState& b = replayed[id];
    if (a.phase != b.phase || a.reason != b.reason || a.epoch != b.epoch || a.layout != b.layout ||
        a.plan_digest != b.plan_digest || a.submitted != b.submitted || a.ended != b.ended ||
        a.stored_step != b.stored_step || a.failure != b.failure || a.succeeded != b.succeeded ||
        a.event_count != b.event_count || !(*a.request == *b.request)) {
      Violate(absl::StrCat(ToString(id), ": its replay differs"));
    }
  }
}

void World::Commit() {
  if (stored_ == records_.size()) return;
  // A commit takes a beginning of what waits.
  stored_ += 1 + prng_.Below(records_.size() - stored_);
  Feed(RecordStored{stored_});
  CheckReplay();
}

void World::CrashCoordinator() {
  ++crashes_;
  ++coordinator_;
  records_.resize(stored_);
  for (FakeNode& node : nodes_) {
    node.session = SessionId{};
    node.inbox.clear();
  }
  plans_.clear();
  machine_.emplace(options_);
  Take(machine_->Recover(now_, records_));
  Check();
}

void World::AdvanceTime(absl::Duration duration) {
  const Instant end = now_ + duration;
  for (int i = 0; machine_->NextDeadline() <= end; ++i) {
    now_ = std::max(now_, machine_->NextDeadline());
    Feed(DeadlineReached{});
    if (i == 10'000) return Violate("deadlines that change nothing");
  }
  now_ = end;
}

void World::Connect(FakeNode& node) {
  node.session = SessionId{++session_};
  WorkerHello hello{.node = node.name,
                    .incarnation = Incarnation{node.incarnation},
                    .last_command_number = node.last_command_number,
                    .devices = node.devices};
  for (const auto& [job, ranks] : node.running) hello.running.push_back({job, ranks.epoch});
  if (node.coordinator != coordinator_) node.last_command_number = 0;
  node.coordinator = coordinator_;
  Feed(SessionOpened{node.session, std::move(hello)});
  const std::vector<RankReported> said = node.said;
  for (RankReported report : said) {
    if (node.session == SessionId{}) return;
    report.session = node.session;
    Feed(report);
  }
}

void World::Break(FakeNode& node) {
  const SessionId session = std::exchange(node.session, SessionId{});
  node.inbox.clear();
  if (session != SessionId{} && prng_.Below(2) == 0) Feed(SessionClosed{session});
}

void World::Restart(FakeNode& node) {
  Break(node);
  node.incarnation += 1;
  node.last_command_number = 0;
  node.running.clear();
  node.said.clear();
  node.stopped.clear();
}

void World::Finish(FakeNode& node, CommandFinished result) {
  // The answer may get lost with its stream.
  if (node.session == SessionId{}) return;
  result.session = node.session;
  Feed(result);
}

void World::HandleCommand(FakeNode& node) {
  if (node.inbox.empty()) return;
  const SendCommand sent = node.inbox.front();
  node.inbox.erase(node.inbox.begin());
  node.last_command_number = std::max(node.last_command_number, sent.command_number);
  if (std::holds_alternative<PrepareData>(sent.command)) {
    CommandFinished result{.command_number = sent.command_number, .data_digest = "data"};
    if (prng_.Below(20) == 0)
      result.data_violations = {{"spec.data.shards", "x", "must be readable"}};
    return Finish(node, std::move(result));
  }
  if (const auto* assign = std::get_if<Assign>(&sent.command)) return Carry(node, sent, *assign);
  if (const auto* stop = std::get_if<StopRanks>(&sent.command)) return Carry(node, sent, *stop);
  Finish(node, {.command_number = sent.command_number});
}

void World::Carry(FakeNode& node, const SendCommand& sent, const Assign& assign) {
  const auto stopped = node.stopped.find(assign.job);
  const auto present = node.running.find(assign.job);
  if ((stopped != node.stopped.end() && assign.epoch <= stopped->second) ||
      (present != node.running.end() && assign.epoch < present->second.epoch)) {
    return Finish(node,
                  {.command_number = sent.command_number, .code = 10, .message = "superseded"});
  }
  if (present == node.running.end() || present->second.epoch < assign.epoch) {
    std::erase_if(node.said, [&](const RankReported& r) { return r.job == assign.job; });
    FakeNode::Ranks ranks{.epoch = assign.epoch};
    int32_t rank = 0;
    for (const NodeDevices& part : assign.layout.nodes) {
      for (int32_t device : part.devices) {
        if (part.node == node.name) ranks.device_of[rank] = device;
        ++rank;
      }
    }
    for (const auto& [job, other] : node.running) {
      if (job == assign.job) continue;
      for (const auto& [r, device] : ranks.device_of) {
        for (const auto& [other_rank, other_device] : other.device_of) {
          if (device == other_device) {
            Violate(absl::StrCat(node.name, " device ", device, " is given to ",
                                 ToString(assign.job), " while ", ToString(job), " runs on it"));
          }
        }
      }
    }
    node.running[assign.job] = std::move(ranks);
  }
  Finish(node, {.command_number = sent.command_number});
}

void World::Carry(FakeNode& node, const SendCommand& sent, const StopRanks& stop) {
  node.stopped[stop.job] = std::max(node.stopped[stop.job], stop.epoch);
  std::erase_if(node.said,
                [&](const RankReported& r) { return r.job == stop.job && r.epoch <= stop.epoch; });
  const auto present = node.running.find(stop.job);
  if (present != node.running.end() && present->second.epoch <= stop.epoch) {
    const FakeNode::Ranks ranks = std::move(present->second);
    node.running.erase(present);
    for (const auto& [rank, device] : ranks.device_of) {
      if (node.session == SessionId{}) break;
      Feed(RankReported{node.session, stop.job, ranks.epoch, rank, RankExited{.expected = true}});
    }
  }
  Finish(node, {.command_number = sent.command_number});
}

void World::Say(FakeNode& node, JobId job, Epoch epoch, int32_t rank,
                decltype(RankReported::report) report) {
  RankReported said{node.session, job, epoch, rank, std::move(report)};
  node.said.push_back(said);
  if (node.session != SessionId{}) Feed(said);
}

void World::ActOnRank(FakeNode& node, bool faults) {
  if (node.running.empty()) return;
  auto it = std::next(node.running.begin(),
                      static_cast<std::ptrdiff_t>(prng_.Below(node.running.size())));
  const JobId job = it->first;
  FakeNode::Ranks& ranks = it->second;
  if (ranks.device_of.empty()) return;
  const auto chosen = std::next(ranks.device_of.begin(),
                                static_cast<std::ptrdiff_t>(prng_.Below(ranks.device_of.size())));
  const int32_t rank = chosen->first;
  const Epoch epoch = ranks.epoch;
  if (faults && prng_.Below(15) == 0) {
    ranks.device_of.erase(chosen);
    if (ranks.device_of.empty()) node.running.erase(it);
    return Say(node, job, epoch, rank, RankExited{.signal = 9});
  }
  if (!ranks.ready.contains(rank)) {
    ranks.ready.insert(rank);
    return Say(node, job, epoch, rank, RankReady{});
  }
  const auto running = machine_->jobs().find(job);
  const bool started =
      running != machine_->jobs().end() && running->second.state.phase != job::JobPhase::kStarting;
  if (!started || ranks.succeeded.contains(rank)) return;
  if (rank == 0 && prng_.Below(3) != 0) {
    return Say(node, job, epoch, rank,
               StepReport{.step = static_cast<int64_t>(prng_.Below(9)) + 1, .epoch = epoch});
  }
  ranks.succeeded.insert(rank);
  Say(node, job, epoch, rank, RankSucceeded{10});
}

void World::Submit() {
  auto request =
      std::make_shared<JobRequest>(JobRequest{.name = absl::StrCat("job", prng_.Below(12)),
                                              .steps = 10,
                                              .devices = 1 + static_cast<int32_t>(prng_.Below(6))});
  request->world = request->devices;
  Feed(SubmitRequested{Token{++token_}, request,
                       prng_.Below(4) == 0 ? absl::StrCat("request", prng_.Below(6)) : ""});
}

void World::Act() {
  FakeNode& node = nodes_[prng_.Below(nodes_.size())];
  switch (prng_.Below(20)) {
    case 0:
      return Submit();
    case 1:
      if (prng_.Below(4) == 0 && !machine_->jobs().empty()) {
        Feed(CancelRequested{
            Token{++token_},
            JobId{1 + static_cast<int64_t>(prng_.Below(machine_->jobs().size() + 1))}});
      }
      return;
    case 2:
      return prng_.Below(4) == 0 ? Break(node) : void();
    case 3:
      return prng_.Below(8) == 0 ? Restart(node) : void();
    case 4:
      return prng_.Below(10) == 0 ? CrashCoordinator() : void();
    case 5:
      return AdvanceTime(absl::Milliseconds(static_cast<int64_t>(prng_.Below(2000))));
    case 6:
      return prng_.Below(6) == 0 ? AdvanceTime(absl::Seconds(5)) : void();
    case 7:
    case 8:
      if (node.session == SessionId{}) return Connect(node);
      return Feed(HeartbeatReceived{.session = node.session});
    case 9:
    case 10:
    case 11:
      return Commit();
    case 12:
    case 13:
    case 14:
    case 15:
      return HandleCommand(node);
    default:
      return ActOnRank(node, /*faults=*/true);
  }
}

bool World::Heal() {
  for (int round = 0; round < 2000; ++round) {
    while (stored_ != records_.size()) Commit();
    bool busy = false;
    for (FakeNode& node : nodes_) {
      if (node.session == SessionId{}) Connect(node);
      Feed(HeartbeatReceived{.session = node.session});
      while (!node.inbox.empty() && node.session != SessionId{}) HandleCommand(node);
      for (int i = 0; i < 8; ++i) ActOnRank(node, /*faults=*/false);
      busy = busy || !node.running.empty();
    }
    AdvanceTime(absl::Milliseconds(500));
    int32_t devices = 0;
    for (const FakeNode& node : nodes_) devices += node.devices;
    bool done = !busy && stored_ == records_.size();
    for (const auto& [id, job] : machine_->jobs()) {
      if (job.state.IsTerminal()) continue;
      const bool fits = job.state.request->devices <= devices;
      done = done && !fits && job.state.phase == job::JobPhase::kQueued;
    }
    for (const auto& [name, node] : machine_->nodes())
      done = done && node.Idle() && node.foreign.empty();
    if (done) return true;
  }
  return false;
}

}  // namespace phalanx::coordinator
