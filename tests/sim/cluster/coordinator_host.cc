#include "tests/sim/cluster/coordinator_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/wire/command_codec.h"
#include "coordinator/wire/record_codec.h"
#include "coordinator/wire/session_codec.h"

namespace phalanx::sim {

using coordinator::Event;
using coordinator::JournalRecord;

CoordinatorHost::CoordinatorHost(Timeline& timeline, Network& network, Ledger& ledger,
                                 Planner& planner, coordinator::CoordinatorOptions options)
    : timeline_(timeline),
      network_(network),
      ledger_(ledger),
      planner_(planner),
      options_(std::move(options)),
      answers_(ledger) {}

void CoordinatorHost::Start() {
  if (up()) return;
  ++life_;
  timeline_.Note("coordinator $0 starts with $1 records", static_cast<int64_t>(life_),
                 static_cast<int64_t>(log_.size()));
  std::vector<JournalRecord> records;
  for (const StoredLine& line : log_) {
    absl::StatusOr<JournalRecord> record =
        coordinator::DecodeRecord(coordinator::EncodeRecord(line.record, line.number), line.number);
    if (!record.ok())
      return ledger_.Violate(absl::StrCat("a record cannot be read: ", record.status().ToString()));
    records.push_back(*std::move(record));
  }
  machine_.emplace(options_);
  armed_ = absl::InfiniteFuture();
  last_number_ = stored_number_;
  for (const coordinator::Action& action : machine_->Recover(
           timeline_.now(), records, {.last_record = stored_number_, .last_job = last_job_})) {
    Carry(action);
  }
  Check();
  Arm();
}

void CoordinatorHost::Crash() {
  if (!up()) return;
  ++crashes_.all;
  crashes_.writing += stored_number_ < last_number_;
  while (stored_number_ < written_number_) OnCommitted(stored_number_ + 1);
  // What the disk was writing may have become durable up to some record, and the next one in part.
  const uint64_t waiting = last_number_ - stored_number_;
  if (committing_ && waiting > 0) {
    const uint64_t more = timeline_.Below(waiting + 1);
    for (uint64_t i = 0; i < more; ++i) OnCommitted(stored_number_ + 1);
    for (const StoredLine& line : log_) {
      if (line.number == stored_number_ + 1) CheckTorn(line);
    }
  }
  timeline_.Note("coordinator $0 crashes; $1 records are lost", static_cast<int64_t>(life_),
                 static_cast<int64_t>(last_number_ - stored_number_));
  while (!log_.empty() && log_.back().number > stored_number_) log_.pop_back();
  last_number_ = stored_number_;
  machine_.reset();
  ++life_;
  committing_ = false;
  committing_since_ = absl::InfiniteFuture();
  store_failure_ = absl::OkStatus();
  retry_delay_ = absl::ZeroDuration();
  written_number_ = stored_number_;
  inbox_.clear();
  paused_since_.reset();
  waiting_.clear();
  answers_.ForgetAll();
  ledger_.OnCoordinatorGone();
  for (const auto& [session, stream] : std::exchange(streams_, {})) {
    stream->up->Break();
    stream->down->Break();
    stream->coordinator_closed = true;
    if (deliver_close) deliver_close(stream, absl::UnavailableError("the coordinator is gone"));
  }
}

void CoordinatorHost::Pause(absl::Duration duration) {
  if (!up()) return;
  if (!paused_since_.has_value()) paused_since_ = timeline_.now();
  ++pauses_;
  timeline_.Note("coordinator is stopped for $0 ms", absl::ToInt64Milliseconds(duration));
  timeline_.After(duration, [this] {
    if (--pauses_ > 0 || !paused_since_.has_value()) return;
    const absl::Duration stalled = timeline_.now() - *std::exchange(paused_since_, std::nullopt);
    timeline_.Note("coordinator runs again");
    inbox_.push_front(coordinator::Stalled{stalled});
    Event first = std::move(inbox_.front());
    inbox_.pop_front();
    Feed(std::move(first));
  });
}

void CoordinatorHost::Feed(Event event) {
  if (!up()) return;
  const uint64_t life = life_;
  if (paused_since_.has_value() || stepping_) return inbox_.push_back(std::move(event));
  stepping_ = true;
  StepMachine(event);
  while (life == life_ && !inbox_.empty()) {
    const Event next = std::move(inbox_.front());
    inbox_.pop_front();
    StepMachine(next);
  }
  stepping_ = false;
  if (life == life_) Arm();
}

bool CoordinatorHost::AnswersFromStore(const Event& event) {
  const auto* submit = std::get_if<coordinator::SubmitRequested>(&event);
  if (submit == nullptr || machine_->KnowsRequest(submit->request_id)) return false;
  const auto archived = archived_requests_.find(submit->request_id);
  if (archived == archived_requests_.end()) return false;
  const auto waiting = waiting_.find(submit->token);
  if (waiting == waiting_.end()) return true;
  const Waiting answered = std::move(waiting->second);
  waiting_.erase(waiting);
  answers_.Forget(submit->token);
  answered.answer(archived->second);
  return true;
}

void CoordinatorHost::StepMachine(const Event& event) {
  if (AnswersFromStore(event)) return;
  for (const coordinator::Action& action : machine_->Step(timeline_.now(), event)) Carry(action);
  Check();
}

// One timer waits for the next deadline; a later one is looked at when the earlier has come.
void CoordinatorHost::Arm() {
  const Instant next = std::max(machine_->NextDeadline(), timeline_.now());
  if (next >= armed_ || next == absl::InfiniteFuture()) return;
  armed_ = next;
  timeline_.At(next, [this, next, life = life_] {
    if (life != life_ || armed_ != next) return;
    armed_ = absl::InfiniteFuture();
    OnTimer();
  });
}

void CoordinatorHost::OnTimer() {
  if (paused_since_.has_value()) return;  // judged when it runs again
  if (machine_->NextDeadline() > timeline_.now()) return Arm();
  idle_deadlines_ = deadline_fed_ == timeline_.now() ? idle_deadlines_ + 1 : 0;
  deadline_fed_ = timeline_.now();
  if (idle_deadlines_ > 30) return ledger_.Violate("deadlines that change nothing");
  Feed(coordinator::DeadlineReached{timeline_.now()});
}

void CoordinatorHost::Carry(const coordinator::Action& action) {
  using namespace coordinator;  // NOLINT: the many kinds of action
  if (const auto* store = std::get_if<StoreRecord>(&action)) return Carry(*store);
  if (const auto* plan = std::get_if<ComputePlan>(&action)) return Carry(*plan);
  if (const auto* send = std::get_if<SendCommand>(&action)) return Carry(*send);
  if (const auto* publish = std::get_if<PublishJob>(&action)) return Carry(*publish);
  if (const auto* answer = std::get_if<AnswerJob>(&action)) return Carry(*answer);
  if (const auto* answer = std::get_if<AnswerNode>(&action)) return Carry(*answer);
  if (const auto* ended = std::get_if<DeleteEndedJob>(&action)) return Carry(*ended);
  if (const auto* refused = std::get_if<RefuseDelete>(&action)) {
    waiting_.erase(refused->token);
    return answers_.Answered(refused->token, false);
  }
  if (const auto* step = std::get_if<PublishStep>(&action))
    return ledger_.OnTold(step->job, step->step);
  if (const auto* archive = std::get_if<ArchiveJob>(&action)) return Archive(archive->job);
  if (const auto* log = std::get_if<LogLine>(&action))
    return timeline_.Note("coordinator: $4", 0, 0, 0, 0, log->text);
  if (const auto* welcome = std::get_if<SendWelcome>(&action)) {
    const auto stream = streams_.find(welcome->session);
    if (stream == streams_.end()) return;
    v1::OpenSessionResponse message;
    message.mutable_welcome()->mutable_heartbeat_interval()->set_seconds(1);
    message.mutable_welcome()->set_coordinator_incarnation(life_);
    message.mutable_welcome()->set_store(kStore);
    return deliver(stream->second, message);
  }
  if (const auto* close = std::get_if<CloseSession>(&action)) EndStream(*close);
}

// A message whose reading has begun is still fed, and then that the stream is over
// (coordinator/rpc/worker_service.cc).
void CoordinatorHost::EndStream(const coordinator::CloseSession& order) {
  const auto stream = streams_.find(order.session);
  if (stream == streams_.end()) return;
  const StreamPtr closed = stream->second;
  streams_.erase(stream);
  closed->coordinator_closed = closed->coordinator_reads = true;
  timeline_.After(network_.LocalDelay(), [this, closed, life = life_] {
    closed->coordinator_reads = false;
    if (life == life_) Feed(coordinator::SessionClosed{closed->session});
  });
  deliver_close(closed, order.status);
}

void CoordinatorHost::Carry(const coordinator::StoreRecord& order) {
  if (order.record_number != last_number_ + 1) ledger_.Violate("a record number is out of turn");
  last_number_ = order.record_number;
  log_.push_back({order.record_number, order.record});
  last_job_ = std::max(last_job_, order.record.job);
  const auto* event = std::get_if<coordinator::EventRecorded>(&order.record.body);
  if (event != nullptr && event->type == "DeviceLent") ++lent_;
  if (on_write) on_write(order.record);
  StartCommit();
}

void CoordinatorHost::StartCommit() {
  if (committing_ || stored_number_ == last_number_) return;
  committing_ = true;
  committing_since_ = std::min(committing_since_, timeline_.now());
  const absl::Duration time =
      commit_time_ *
      (timeline_.Chance(0.03) ? 40.0 : 0.2 + static_cast<double>(timeline_.Below(100)) / 50);
  timeline_.After(time, [this, life = life_, up_to = last_number_] {
    if (life != life_) return;
    if (disk_fails_) return OnCommitFailed(up_to);
    committing_ = false;
    committing_since_ = absl::InfiniteFuture();
    store_failure_ = absl::OkStatus();
    retry_delay_ = absl::ZeroDuration();
    while (stored_number_ < up_to) OnCommitted(stored_number_ + 1);
    StartCommit();
    Feed(coordinator::RecordStored{stored_number_});
    CheckReplay();
  });
}

void CoordinatorHost::OnCommitFailed(uint64_t up_to) {
  if (store_failure_.ok()) timeline_.Note("the store fails");
  store_failure_ = absl::UnavailableError("the store fails");
  if (timeline_.Chance(0.3)) written_number_ = std::max(written_number_, up_to);
  for (auto& [token, waiting] : std::exchange(waiting_, {})) {
    answers_.Forget(token);
    if (waiting.answer) waiting.answer(store_failure_);
  }
  retry_delay_ = std::min(std::max(2 * retry_delay_, absl::Milliseconds(100)), absl::Seconds(5));
  timeline_.After(retry_delay_, [this, life = life_] {
    if (life != life_) return;
    committing_ = false;
    StartCommit();
  });
}

absl::Status CoordinatorHost::Accepting() const {
  if (!up()) return absl::UnavailableError("connection refused");
  if (timeline_.now() - committing_since_ > absl::Seconds(10))
    return absl::UnavailableError("the store has not answered for long");
  return store_failure_;
}

void CoordinatorHost::CheckTorn(const StoredLine& line) {
  std::string bytes = coordinator::EncodeRecord(line.record, line.number);
  if (timeline_.Chance(0.5)) {
    bytes.resize(timeline_.Below(bytes.size()));
  } else {
    bytes[timeline_.Below(bytes.size())] ^= static_cast<char>(1 + timeline_.Below(255));
  }
  if (coordinator::DecodeRecord(bytes, line.number).ok())
    ledger_.Violate("a record that was written in part can be read");
}

void CoordinatorHost::OnCommitted(uint64_t number) {
  stored_number_ = number;
  const auto line = std::lower_bound(
      log_.begin(), log_.end(), number,
      [](const StoredLine& entry, uint64_t wanted) { return entry.number < wanted; });
  if (line == log_.end() || line->number != number) return ledger_.Violate("a record is missing");
  coordinator::JobState& state = replayed_[line->record.job];
  state.id = line->record.job;
  state.Apply(line->record);
  changed_.insert(line->record.job);
  if (const auto* submitted = std::get_if<coordinator::JobSubmitted>(&line->record.body);
      submitted != nullptr && !submitted->request_id.empty()) {
    const auto [known, is_new] = requests_.emplace(submitted->request_id, line->record.job);
    if (!is_new && known->second != line->record.job)
      ledger_.Violate(absl::StrCat("request ", submitted->request_id, " has become two jobs"));
  }
  const auto* began = std::get_if<coordinator::EpochBegan>(&line->record.body);
  const bool from_copies = began != nullptr && began->copies_epoch != Epoch{};
  ledger_.OnStored(line->record, from_copies && ReachesLastCopies(state, *began));
  if (std::holds_alternative<coordinator::EpochPlanned>(line->record.body)) CheckByChoice(state);
}

void CoordinatorHost::Carry(const coordinator::ComputePlan& order) {
  for (const plan::NodeDevices& entry : order.placement) {
    if (order.layout.has_value() || machine_->nodes().at(entry.node).TakesJobs()) continue;
    ledger_.Violate(
        absl::StrCat("a job of the queue gets devices of ", entry.node, ", which takes none"));
  }
  if (on_placement && !order.layout.has_value()) on_placement(order.placement);
  // The real planner, at once; its answer takes as long as it may take.
  const absl::Duration time =
      timeline_.Chance(0.1) ? timeline_.Between(absl::Milliseconds(10), absl::Seconds(3))
                            : timeline_.Between(absl::Microseconds(200), absl::Milliseconds(10));
  timeline_.After(time, [this, life = life_, order] {
    if (life != life_) return;
    Feed(coordinator::PlanComputed{order.number, planner_.Plan(order)});
  });
}

void CoordinatorHost::Carry(const coordinator::SendCommand& order) {
  CheckCommand(order.command);
  const auto stream = streams_.find(order.session);
  if (stream == streams_.end()) return;
  v1::OpenSessionResponse message;
  coordinator::ToProto(order.command_number, order.command, message.mutable_command());
  deliver(stream->second, message);
}

void CoordinatorHost::Carry(const coordinator::PublishJob& order) {
  const coordinator::JobView& job = *order.job;
  const auto [entry, is_new] = views_.try_emplace(job.id, job);
  coordinator::JobView& known = entry->second;
  if (!is_new) {
    if (job::IsTerminal(known.phase) && known.phase != job.phase)
      ledger_.Violate(absl::StrCat(ToString(job.id), " left a terminal phase"));
    if (job.epoch < known.epoch)
      ledger_.Violate(absl::StrCat(ToString(job.id), ": its epoch fell"));
  }
  const bool begins_anew = !is_new && job.epoch > known.epoch && ledger_.last_decided(job.id) > 0;
  if (breaks_alone_ && (begins_anew || job.failure.has_value()))
    ledger_.Violate(
        absl::StrCat(ToString(job.id), " lost ranks, and only coordinators died: ", job.reason));
  const bool ended = job::IsTerminal(job.phase) && (is_new || !job::IsTerminal(known.phase));
  known = job;
  if (job.last_step.has_value()) ledger_.OnTold(job.id, *job.last_step);
  if (!ended) return;
  ++ended_[job.phase];
  if (job.failure.has_value()) {
    ++failures_[std::string(job::ToString(job.failure->kind))];
    causes_.emplace(job.id, *job.failure);
  }
  timeline_.Note("job $0 has ended as $4", job.id.value, 0, 0, 0,
                 absl::StrCat(job::ToString(job.phase), ": ", job.reason));
  if (absl::StrContains(job.reason, "where training stands is not known"))
    ledger_.Violate(absl::StrCat(ToString(job.id), ": ", job.reason));
  CheckStateLost(job);
  if (job.reason.empty()) ledger_.Violate(absl::StrCat(ToString(job.id), " ends without a reason"));
  if (job.phase == job::JobPhase::kSucceeded) ledger_.OnSucceeded(job.id, job.request->steps);
}

// The store makes one entry of the job's records; the process need not live to hear of it.
void CoordinatorHost::Archive(JobId job) {
  const absl::Duration time = timeline_.Between(absl::Milliseconds(1), absl::Milliseconds(50));
  timeline_.After(time, [this, job, life = life_] {
    if (life != life_ || !archived_.insert(job).second) return;
    const std::string& request_id = machine_->jobs().at(job).state.request_id;
    if (!request_id.empty()) archived_requests_.emplace(request_id, job);
    std::erase_if(log_, [job](const StoredLine& line) { return line.record.job == job; });
    if (replayed_.contains(job) && !replayed_.at(job).IsTerminal())
      ledger_.Violate(absl::StrCat(ToString(job), " is archived and has not ended"));
    replayed_.erase(job);
    changed_.erase(job);
    views_.erase(job);
    answers_.Archived(job);
    ledger_.Forget(job);
    Feed(coordinator::JobArchived{job});
  });
}

bool CoordinatorHost::Accept(StreamPtr stream, coordinator::WorkerHello hello) {
  if (!up()) return false;
  stream->accepted = true;
  stream->coordinator_life = life_;
  streams_[stream->session] = stream;
  Feed(coordinator::SessionOpened{stream->session, std::move(hello)});
  return true;
}

bool CoordinatorHost::Receive(const StreamPtr& stream, const v1::OpenSessionRequest& message) {
  if (!up() || stream->coordinator_life != life_) return false;
  const bool reads = std::exchange(stream->coordinator_reads, false);
  if (stream->coordinator_closed && !reads) return false;
  std::optional<Event> event = coordinator::EventFromProto(stream->session, message);
  if (event.has_value()) Feed(*std::move(event));
  return true;
}

void CoordinatorHost::OnStreamClosed(const StreamPtr& stream) {
  if (!up() || stream->coordinator_closed || stream->coordinator_life != life_) return;
  stream->coordinator_closed = true;
  streams_.erase(stream->session);
  Feed(coordinator::SessionClosed{stream->session});
}

bool CoordinatorHost::HoldsDevices() const {
  return std::any_of(machine_->nodes().begin(), machine_->nodes().end(),
                     [](const auto& entry) { return !entry.second.Idle(); });
}

int64_t CoordinatorHost::live_jobs() const {
  return std::count_if(views_.begin(), views_.end(),
                       [](const auto& entry) { return !job::IsTerminal(entry.second.phase); });
}

}  // namespace phalanx::sim
