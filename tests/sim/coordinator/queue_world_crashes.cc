// The coordinator dies, and what it had answered is looked for.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/coordinator/queue_world.h"

namespace phalanx::coordinator {

QueueWorld::Counts& QueueWorld::Counts::operator+=(const Counts& other) {
  apart += other.apart, ahead += other.ahead, preempted += other.preempted,
      went_on += other.went_on;
  drained += other.drained, kept += other.kept, turns += other.turns, left += other.left;
  crashes += other.crashes, lost += other.lost;
  died += other.died, cut += other.cut, hit += other.hit, recovered += other.recovered;
  went_back += other.went_back, queued += other.queued, failed += other.failed;
  again += other.again;
  job_answers += other.job_answers, node_answers += other.node_answers;
  return *this;
}

std::optional<uint64_t> QueueWorld::CrashesAt() {
  // Mostly in the middle of a write: some of what was to be stored is there.
  const uint64_t waiting = records_ - stored_;
  if (!faults_.crashes || settling_ || !Chance(waiting > 0 ? 30 : 3000)) return std::nullopt;
  return stored_ + prng_.Below(waiting + 1);
}

void QueueWorld::Crash(uint64_t kept) {
  ++counts_.crashes;
  counts_.lost += static_cast<int64_t>(records_ - kept);
  said_.push_back(absl::StrCat("dies with ", records_ - kept, " records"));
  log_.resize(kept);
  records_ = kept;
  plans_.clear();
  asked_.clear();
  asked_of_jobs_.clear();
  asked_of_nodes_.clear();
  options_.quotas = quotas_;  // it reads its files anew
  machine_.emplace(options_);
  const std::vector<JournalRecord> stored = log_;
  for (const Action& action : machine_->Recover(now_, stored, {.last_record = kept})) Take(action);
  CheckAnswered();
  RestoreUse();
  RestoreEnds();
  for (Host& host : hosts_) {  // of what was asked for, and not answered, nobody knows
    const auto node = machine_->nodes().find(host.name);
    const bool drains = node != machine_->nodes().end() && node->second.Drains();
    if (drains != host.drains.has_value())
      host.drains = drains ? std::optional<Instant>(now_) : std::nullopt;
  }
  // Daemons say again what they run, and what its ranks have said.
  answers_.clear();
  for (Host& host : hosts_) {
    if (host.away_until.has_value()) continue;
    for (const Action& action : machine_->Step(now_, Hello(host))) Take(action);
  }
  for (auto& [id, training] : training_) {
    for (auto& [node, report] : training.said) {
      if (HostNamed(node).away_until.has_value()) continue;
      report.session = HostNamed(node).session;
      answers_.push_back(report);
    }
  }
  planned_.clear();
}

// Of checkpoints that were published, and of epochs that are over, it knows what is stored.
void QueueWorld::RestoreEnds() {
  saved_.clear();
  over_.clear();
  std::map<JobId, Epoch> planned;
  for (const JournalRecord& record : log_) {
    const auto* epoch = std::get_if<EpochPlanned>(&record.body);
    if (epoch != nullptr) planned[record.job] = epoch->layout->epoch;
    const auto* moved = std::get_if<PhaseChanged>(&record.body);
    if (moved != nullptr && moved->phase == job::JobPhase::kQueued)
      over_[record.job] = planned[record.job];
    const auto* ended = std::get_if<CheckpointEnded>(&record.body);
    if (ended != nullptr && ended->error.empty()) saved_[record.job] = ended->step;
  }
}

SessionOpened QueueWorld::Hello(Host& host) {
  host.session = SessionId{++sessions_};
  WorkerHello hello{.node = host.name,
                    .incarnation = host.incarnation,
                    .last_command_number = host.last_command,
                    .device_kind = host.kind,
                    .devices = static_cast<int32_t>(host.devices.size()),
                    .labels = host.labels};
  for (const auto& [job, epoch] : host.running) hello.running.push_back({job, epoch});
  return {host.session, std::move(hello)};
}

void QueueWorld::Suspend(JobId job, bool suspended) {
  suspended_.erase(job);
  asked_of_jobs_[Token{++token_}] = {.job = job, .suspended = suspended};
  Feed(SuspensionRequested{Token{token_}, job, suspended});
}

void QueueWorld::Cancel(JobId job, bool checkpoint) {
  asked_of_jobs_[Token{++token_}] = {.job = job, .checkpoint = checkpoint};
  Feed(CancelRequested{Token{token_}, job, checkpoint});
}

void QueueWorld::Mark(const NodeName& node, std::optional<NodeMark> mark, bool force) {
  marked_.erase({node, false});
  asked_of_nodes_[Token{++token_}] = {
      .node = node,
      .mark = !mark.has_value() ? "" : absl::StrCat(mark->drains ? "drains: " : "", mark->reason)};
  Feed(NodeMarkRequested{Token{token_}, node, std::move(mark), "ops", force});
}

void QueueWorld::Reserve(const NodeName& node, bool reserves) {
  marked_.erase({node, true});
  asked_of_nodes_[Token{++token_}] = {
      .node = node, .reserves = true, .mark = reserves ? "in reserve" : ""};
  std::optional<ReserveMark> reserve;
  if (reserves) reserve = ReserveMark{.reason = "spares"};
  Feed(ReserveRequested{Token{token_}, node, std::move(reserve)});
}

void QueueWorld::Note(const AnswerJob& answer) {
  const auto asked = asked_of_jobs_.find(answer.token);
  if (!answer.job.ok()) {
    if (asked != asked_of_jobs_.end()) asked_of_jobs_.erase(asked);
    return;
  }
  if (asked == asked_of_jobs_.end()) {
    submitted_.insert((*answer.job)->id);
    return;
  }
  const Asked was = asked->second;
  asked_of_jobs_.erase(asked);
  if (was.suspended.has_value()) {
    suspended_[was.job] = *was.suspended;
  } else {
    cancelled_.emplace(was.job, was.checkpoint);
  }
}

void QueueWorld::Note(const AnswerNode& answer) {
  const auto asked = asked_of_nodes_.find(answer.token);
  if (asked == asked_of_nodes_.end()) return;
  const Marked& was = asked->second;
  if (answer.node.ok()) marked_[{was.node, was.reserves}] = was.mark;
  asked_of_nodes_.erase(asked);
}

// By the coordinator that has just read what is stored.
void QueueWorld::CheckAnswered() {
  const auto& jobs = machine_->jobs();
  const auto violate = [this](JobId job, const std::string& what) {
    Violate(absl::StrCat(ToString(job), " ", what, " when the coordinator died"));
  };
  for (const JobId id : submitted_) {
    if (!jobs.contains(id)) violate(id, "was there and is gone");
  }
  for (const auto& [id, checkpoint] : cancelled_) {
    const auto job = jobs.find(id);
    if (job == jobs.end()) continue;  // said above
    const auto& ending = job->second.state.ending;
    const bool ends = checkpoint && ending.has_value() && !ending->wish.queues;
    if (!job->second.state.IsTerminal() && !ends) violate(id, "was cancelled and goes on");
  }
  for (const auto& [id, suspended] : suspended_) {
    const auto job = jobs.find(id);
    if (job == jobs.end() || job->second.state.IsTerminal()) continue;
    if (job->second.state.suspended != suspended)
      violate(id, suspended ? "was suspended and is not" : "was resumed and is not");
  }
  for (const auto& [what, mark] : marked_) {
    const auto& [name, of_reserve] = what;
    const auto node = machine_->nodes().find(name);
    std::string has;
    if (node != machine_->nodes().end() && of_reserve && node->second.reserve.has_value())
      has = "in reserve";
    if (node != machine_->nodes().end() && !of_reserve && node->second.mark.has_value())
      has = absl::StrCat(node->second.mark->drains ? "drains: " : "", node->second.mark->reason);
    if (has != mark) {
      Violate(absl::StrCat(name, " was marked \"", mark, "\" and is \"", has,
                           "\" when the coordinator died"));
    }
  }
  counts_.job_answers +=
      static_cast<int64_t>(submitted_.size() + cancelled_.size() + suspended_.size());
  counts_.node_answers += static_cast<int64_t>(marked_.size());
}

}  // namespace phalanx::coordinator
