#include "tests/sim/coordinator/world.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

// world_nodes.cc.
agent::Command ToDaemon(const Command& command);

namespace {

constexpr uint64_t kStore = 7;

std::vector<int64_t> HostMemoryOf(const Placement& placement) {
  std::vector<int64_t> bytes;
  for (const NodeDevices& entry : placement)
    bytes.push_back(kHostBytesOfDevice * static_cast<int64_t>(entry.devices.size()));
  return bytes;
}

PlanSummary PlanFor(const ComputePlan& order) {
  PlanSummary plan{.layout = {.epoch = order.epoch, .nodes = order.placement},
                   .digest = absl::StrCat("plan:", ToString(order.placement)),
                   .host_memory = HostMemoryOf(order.placement)};
  if (order.layout.has_value()) plan.layout = **order.layout;
  for (const Rank rank : order.lost) {
    plan.layout.lost.push_back(rank);
    absl::StrAppend(&plan.digest, " without ", rank.value);
  }
  return plan;
}

}  // namespace

World::World(uint64_t seed) : prng_(seed) {
  options_.store = kStore;
  options_.live_jobs_max = 1 + static_cast<int64_t>(prng_.Below(8));
  options_.start_timeout = absl::Seconds(20 + static_cast<int64_t>(prng_.Below(600)));
  options_.heartbeat_interval = absl::Seconds(1);
  options_.heartbeat_timeout = absl::Seconds(3 + static_cast<int64_t>(prng_.Below(20)));
  const uint64_t count = 1 + prng_.Below(4);
  for (uint64_t i = 0; i < count; ++i) {
    FakeNode& node = nodes_.emplace_back();
    node.name = absl::StrCat("node-", i);
    node.devices = 1 + static_cast<int32_t>(prng_.Below(4));
  }
  machine_.emplace(options_);
  Take(machine_->Recover(now_, {}));
  for (FakeNode& node : nodes_) Start(node);
}

void World::Violate(std::string what) { violations_.push_back(std::move(what)); }

int64_t World::ended() const {
  return std::count_if(published_.begin(), published_.end(),
                       [](const auto& entry) { return job::IsTerminal(entry.second.phase); });
}

int64_t World::succeeded() const {
  return std::count_if(published_.begin(), published_.end(), [](const auto& entry) {
    return entry.second.phase == job::JobPhase::kSucceeded;
  });
}

int64_t World::ended_early() const {
  return std::count_if(published_.begin(), published_.end(), [](const auto& entry) {
    return entry.second.reason.find(", checkpoint /c/") != std::string::npos;
  });
}

int64_t World::left() const {
  return std::count_if(records_.begin(), records_.end(), [](const JournalRecord& record) {
    const auto* moved = std::get_if<PhaseChanged>(&record.body);
    return moved != nullptr && moved->phase == job::JobPhase::kQueued &&
           moved->reason.find("it goes on behind step 6") != std::string::npos;
  });
}

std::string World::Describe() const {
  std::string text;
  for (const auto& [id, job] : machine_->jobs()) {
    if (job.state.IsTerminal() && !job.run.has_value()) continue;
    absl::StrAppend(&text, ToString(id), " ", job::ToString(job.state.phase), " epoch ",
                    job.state.epoch.value, " on ", ToString(*job.state.placement), " reason \"",
                    job.state.reason, "\"", job.run.has_value() ? " has a run" : "", "\n");
  }
  for (const auto& [name, node] : machine_->nodes()) {
    absl::StrAppend(&text, name, node.connected() ? " connected" : " away", " free ",
                    node.FreeDevices(), " of ", node.device_jobs.size(), " foreign ",
                    node.foreign.size(), " leftovers ", node.leftovers.size(), " outstanding ",
                    node.outstanding.size(), "\n");
  }
  for (const FakeNode& node : nodes_) {
    absl::StrAppend(&text, node.name, node.daemon.has_value() ? "" : " has no daemon",
                    node.stream.has_value() ? "" : " has no stream", " prepares ",
                    node.preparing.size(), "\n");
    for (const auto& [number, process] : node.processes) {
      absl::StrAppend(&text, "  process ", number.value, " of ", ToString(process.job), " epoch ",
                      process.epoch.value, " rank ", process.rank,
                      process.succeeded ? " (succeeded)"
                      : process.ready   ? ""
                                        : " (not ready)",
                      process.ending ? " (ending)" : "", "\n");
    }
  }
  return text;
}

void World::Feed(const Event& event) {
  Take(machine_->Step(now_, event));
  Check();
  while (!plans_.empty() && Chance(2)) PlanOne();
}

void World::PlanOne() {
  const ComputePlan order = std::move(plans_.front());
  plans_.erase(plans_.begin());
  CheckHostMemory(order);
  JobId begins;  // a queued job, should the plan be of one
  for (const auto& [id, job] : machine_->jobs()) {
    if (job.planning.has_value() && job.planning->number == order.number && !job.run.has_value())
      begins = id;
  }
  Take(machine_->Step(now_, PlanComputed{order.number, PlanFor(order)}));
  Check();
  if (begins != JobId{}) CheckPlacement(machine_->jobs().at(begins));
}

void World::Take(std::vector<Action> actions) {
  for (const Action& action : actions) Take(action);
}

void World::Take(const Action& action) {
  fingerprint_ = Mix64(fingerprint_ ^ action.index());
  const auto stream_of = [this](SessionId session) -> Stream* {
    for (FakeNode& node : nodes_) {
      if (node.stream.has_value() && node.stream->session == session) return &*node.stream;
    }
    return nullptr;
  };
  if (const auto* store = std::get_if<StoreRecord>(&action)) {
    if (store->record_number != records_.size() + 1) Violate("a record number is out of turn");
    records_.push_back(store->record);
  } else if (const auto* plan = std::get_if<ComputePlan>(&action)) {
    plans_.push_back(*plan);
  } else if (const auto* node = std::get_if<PublishNode>(&action)) {
    if (node->node->suspect) ++suspicions_;
  } else if (const auto* welcome = std::get_if<SendWelcome>(&action)) {
    if (Stream* stream = stream_of(welcome->session)) {
      stream->down.push_back(agent::SessionWelcomed{stream->number, absl::Seconds(1),
                                                    Incarnation{coordinator_}, kStore});
    }
  } else if (const auto* send = std::get_if<SendCommand>(&action)) {
    fingerprint_ = Mix64(fingerprint_ ^ send->command_number);
    CheckCommand(send->command);
    if (Stream* stream = stream_of(send->session)) {
      stream->down.push_back(
          agent::CommandReceived{stream->number, send->command_number, ToDaemon(send->command)});
    }
  } else if (const auto* close = std::get_if<CloseSession>(&action)) {
    if (Stream* stream = stream_of(close->session)) {
      stream->down.push_back(agent::SessionClosed{stream->number, close->status});
    }
    std::erase(impostors_, close->session);
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
  } else if (const auto* marked = std::get_if<AnswerNode>(&action)) {
    if (marked->node.ok()) ++marked_;
  }
}

// What a command orders follows the stored record of it.
void World::CheckCommand(const Command& command) {
  const auto stored = [&](JobId job, auto matches) {
    return std::any_of(
        records_.begin(), records_.begin() + static_cast<std::ptrdiff_t>(stored_),
        [&](const JournalRecord& record) { return record.job == job && matches(record.body); });
  };
  const auto planned = [](const auto& body) { return std::get_if<EpochPlanned>(&body); };
  if (const auto* prepare = std::get_if<PrepareData>(&command)) {
    if (!stored(prepare->job, [&](const auto& body) { return planned(body) != nullptr; })) {
      Violate("data is prepared before the plan is stored");
    }
  } else if (const auto* assign = std::get_if<Assign>(&command)) {
    if (!stored(assign->job, [&](const auto& body) {
          const EpochPlanned* plan = planned(body);
          return plan != nullptr && plan->layout == assign->layout &&
                 plan->plan_digest == assign->plan_digest;
        })) {
      Violate("ranks are assigned before their epoch is stored");
    }
  } else if (const auto* publish = std::get_if<PublishCheckpoint>(&command)) {
    if (!stored(publish->job, [&](const auto& body) {
          const auto* written = std::get_if<CheckpointWritten>(&body);
          return written != nullptr && written->epoch == publish->epoch &&
                 written->step == publish->step && written->rank == publish->rank;
        })) {
      Violate("a checkpoint is published before it is stored that all of it is written");
    }
  } else if (const auto* wish = std::get_if<Wish>(&command)) {
    if (!stored(wish->job,
                [](const auto& body) { return std::holds_alternative<EndWished>(body); })) {
      Violate("an end is wished before that is stored");
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
    for (const Team& team : job.run->teams) {
      for (int32_t device : team.devices) {
        if (team.released) continue;
        const auto [it, added] = holders.emplace(std::pair(team.node, device), id);
        if (!added) {
          Violate(absl::StrCat(team.node, " device ", device, " has ", ToString(it->second),
                               " and ", ToString(id)));
        }
      }
    }
  }
  CheckDeadlines();
  CheckCharges();
  for (JobId id : acknowledged_) {
    if (!machine_->jobs().contains(id))
      Violate(absl::StrCat(ToString(id), " was acknowledged and is gone"));
  }
}

// No deadline is forgotten: the next one is not after any of them.
void World::CheckDeadlines() {
  const Instant next = machine_->NextDeadline();
  for (const auto& [name, node] : machine_->nodes()) {
    const bool waits = node.connected() || !node.lost;
    const bool in_use =
        std::any_of(node.device_jobs.begin(), node.device_jobs.end(), [this](JobId holder) {
          return holder != JobId{} && !machine_->jobs().at(holder).state.IsTerminal();
        });
    const bool stays = in_use || node.mark.has_value();
    const absl::Duration silence = waits   ? options_.heartbeat_timeout
                                   : stays ? absl::InfiniteDuration()
                                           : options_.node_forget_delay;
    if (next > node.quiet_since() + silence) Violate(absl::StrCat(name, " is never judged"));
  }
  for (const auto& [id, job] : machine_->jobs()) {
    if (job.run.has_value() && next > job.run->NextDeadline()) {
      Violate(absl::StrCat(ToString(id), " is never judged"));
    }
  }
}

// Whoever has devices has their part of the node's memory: nobody is charged for longer, or else.
void World::CheckHostMemory(const ComputePlan& order) {
  const std::vector<int64_t> needs = HostMemoryOf(order.placement);
  for (size_t i = 0; i < needs.size(); ++i) {
    const int64_t left = order.limits.nodes[i];
    if (left != 0 && left < needs[i])
      Violate(absl::StrCat(order.placement[i].node, " has only ", left, " bytes left"));
  }
}

// Nothing begins on a node that has gone away, silent or about to stop while the plan was made.
void World::CheckPlacement(const Coordinator::Job& job) {
  if (!job.run.has_value()) return;
  for (const Team& team : job.run->teams) {
    if (!machine_->nodes().at(team.node).Schedulable())
      Violate(absl::StrCat(ToString(job.state.id), " begins on ", team.node));
  }
}

void World::CheckCharges() {
  for (const auto& [name, node] : machine_->nodes()) {
    for (const auto& [job, bytes] : node.charged) {
      const auto devices = std::count(node.device_jobs.begin(), node.device_jobs.end(), job);
      if (bytes != kHostBytesOfDevice * devices)
        Violate(absl::StrCat(ToString(job), " is charged for ", bytes, " bytes on ", name));
    }
  }
}

// Replaying what is stored gives the durable state of each job.
void World::CheckReplay() {
  if (stored_ != records_.size()) return;
  std::map<JobId, JobState> replayed;
  for (const JournalRecord& record : records_) {
    replayed[record.job].id = record.job;
    replayed[record.job].Apply(record);
  }
  for (const auto& [id, job] : machine_->jobs()) {
    const JobState& a = job.state;
    const JobState& b = replayed[id];
    if (a.phase != b.phase || a.reason != b.reason || a.epoch != b.epoch || a.fence != b.fence ||
        !(a.layout == b.layout) || a.plan_digest != b.plan_digest || a.submitted != b.submitted ||
        a.ended != b.ended || a.stored_step != b.stored_step || a.waits_since != b.waits_since ||
        a.earlier_checkpoints != b.earlier_checkpoints || a.failure != b.failure ||
        a.host_memory != b.host_memory || a.succeeded != b.succeeded ||
        a.ended_step != b.ended_step || a.ending.has_value() != b.ending.has_value() ||
        a.recoveries != b.recoveries || a.failed_starts != b.failed_starts ||
        a.suspended != b.suspended || a.event_count != b.event_count ||
        !(*a.request == *b.request)) {
      Violate(absl::StrCat(ToString(id), ": its replay differs"));
    }
  }
  std::map<NodeName, NodeMarked> last;
  for (const JournalRecord& record : records_) {
    if (const auto* marked = std::get_if<NodeMarked>(&record.body)) last[marked->node] = *marked;
  }
  for (const auto& [name, node] : machine_->nodes()) {
    const NodeMarked& stored = last[name];
    std::set<int32_t> failed;
    for (const job::DeviceCheck& check : stored.checks) failed.insert(check.device);
    for (const int32_t device : stored.let_back) failed.erase(device);
    if (node.mark != stored.mark || node.failed_checks != failed)
      Violate(absl::StrCat(name, ": the replay of its mark, or of its checks, differs"));
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
  // Nothing that was on its way arrives, and nobody remembers a session.
  ended_sessions_.clear();
  impostors_.clear();
  plans_.clear();
  for (FakeNode& node : nodes_) {
    if (node.stream.has_value()) node.stream->broken = true;
  }
  machine_.emplace(options_);
  Take(machine_->Recover(now_, records_));
  Check();
}

// Deadline by deadline, whoever's it is.
void World::AdvanceTime(absl::Duration duration) {
  const Instant end = now_ + duration;
  for (int i = 0;; ++i) {
    if (i == 20'000) return Violate("deadlines that change nothing");
    Instant next = machine_->NextDeadline();
    FakeNode* first = nullptr;
    for (FakeNode& node : nodes_) {
      if (!node.daemon.has_value() || node.daemon->NextDeadline() >= next) continue;
      next = node.daemon->NextDeadline();
      first = &node;
    }
    if (next > end) break;
    now_ = std::max(now_, next);
    if (first != nullptr) {
      FeedDaemon(*first, agent::DeadlineReached{});
    } else {
      Feed(DeadlineReached{});
    }
  }
  now_ = end;
}

// The coordinator does not run for a while; the daemons do. It must not blame them for it.
void World::Stall() {
  const absl::Duration duration = absl::Seconds(1 + static_cast<int64_t>(prng_.Below(60)));
  const Instant end = now_ + duration;
  for (FakeNode& node : nodes_) {
    for (int i = 0; node.daemon.has_value() && node.daemon->NextDeadline() <= end; ++i) {
      if (i == 20'000) return Violate("deadlines of a daemon that change nothing");
      now_ = std::max(now_, node.daemon->NextDeadline());
      FeedDaemon(node, agent::DeadlineReached{});
    }
  }
  now_ = end;
  const auto blamed = [this] {
    return std::count_if(machine_->nodes().begin(), machine_->nodes().end(), [](const auto& entry) {
      return entry.second.lost || entry.second.suspect;
    });
  };
  const auto before = blamed();
  Feed(Stalled{duration});
  Feed(DeadlineReached{});
  if (blamed() > before) Violate("a node is suspect, or lost, because the coordinator did not run");
}

void World::Act() {
  FakeNode& node = nodes_[prng_.Below(nodes_.size())];
  switch (prng_.Below(24)) {
    case 0:
      return Submit();
    case 1:
      if (Chance(4) && !machine_->jobs().empty()) {
        Feed(CancelRequested{
            Token{++token_},
            JobId{1 + static_cast<int64_t>(prng_.Below(machine_->jobs().size() + 1))}, Chance(2)});
      }
      return;
    case 2:
      return Chance(6) ? Break(node, Chance(2)) : void();
    case 3:
      if (node.stream.has_value() && node.stream->broken) Break(node, true);
      return Chance(16) ? Kill(node) : void();
    case 4:
      if (!node.daemon.has_value()) Start(node);
      return Chance(24) ? CrashCoordinator() : void();
    case 5:
      return AdvanceTime(absl::Milliseconds(static_cast<int64_t>(prng_.Below(2000))));
    case 6:
      return Chance(8) ? AdvanceTime(absl::Seconds(5)) : Chance(12) ? Stall() : void();
    case 7:
      CloseOneSession();
      return Chance(40) ? OpenImpostor() : Chance(6) ? Operate() : void();
    case 8:
    case 9:
    case 10:
      return Commit();
    case 11:
      return Chance(60) && node.daemon.has_value() ? FeedDaemon(node, agent::TerminationRequested{})
                                                   : void();
    case 12:
    case 13:
    case 14:
    case 15:
    case 16:
      for (int i = 0; i < 6 && PumpStream(node); ++i) {
      }
      return;
    default:
      PumpProcess(node, /*faults=*/true);
      return;
  }
}

bool World::Heal() {
  PutAllInOrder();
  for (int round = 0; round < 3000; ++round) {
    while (stored_ != records_.size()) Commit();
    while (!plans_.empty()) PlanOne();
    while (!ended_sessions_.empty() || !impostors_.empty()) CloseOneSession();
    for (FakeNode& node : nodes_) {
      if (!node.daemon.has_value()) Start(node);
      if (node.stream.has_value() && node.stream->broken) Break(node, true);
      while (PumpStream(node)) {
      }
      for (int i = 0; i < 8; ++i) PumpProcess(node, /*faults=*/false);
    }
    AdvanceTime(absl::Milliseconds(500));
    bool done = stored_ == records_.size();
    int32_t devices = 0;
    for (const FakeNode& node : nodes_) {
      devices += node.devices;
      done = done && node.processes.empty();
    }
    for (const auto& [id, job] : machine_->jobs()) {
      if (job.state.IsTerminal()) continue;
      const bool fits = job.state.request->devices <= devices;
      done = done && !fits && job.state.phase == job::JobPhase::kQueued;
    }
    for (const auto& [name, node] : machine_->nodes())
      done = done && node.Idle() && node.foreign.empty() && node.leftovers.empty();
    if (done) return true;
  }
  return false;
}

}  // namespace phalanx::coordinator
