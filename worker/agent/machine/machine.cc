#include "worker/agent/machine/machine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/stall_watch.h"

namespace phalanx::agent {
namespace {

// Left for the last reports and the end of the stream, after the last process has ended.
constexpr absl::Duration kFarewell = absl::Seconds(3);

// Heartbeats of many nodes come together: clocks of nodes agree well enough, and what waits for the
// coordinator at once costs it far less than as many alone.
constexpr int kHeartbeatTimes = 10;  // in each interval

bool IsFatal(const absl::Status& status) {
  return status.code() == absl::StatusCode::kAborted ||
         status.code() == absl::StatusCode::kAlreadyExists ||
         status.code() == absl::StatusCode::kInvalidArgument ||
         status.code() == absl::StatusCode::kFailedPrecondition;
}

// Behind a session that could not be opened: what a person can do. It is tried again whatever the
// reason, since certificates and coordinators may be replaced under it.
absl::string_view NextStep(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return "tried again until it is let in: it needs a certificate of this node (--node) that is "
             "not revoked, from --tls-certificate and --tls-key or from --join-token-file";
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return "tried again: see that a coordinator listens at --coordinator, and that both use TLS, "
             "with authorities that know each other's certificates, or neither does";
    default:
      return "tried again";
  }
}

template <typename Map>
void ForgetLowest(Map& map, size_t size_max) {
  while (map.size() > size_max) map.erase(map.begin());
}

}  // namespace

std::string OneLine(const absl::Status& status) {
  return absl::StrReplaceAll(status.ToString(absl::StatusToStringMode::kWithNoExtraData),
                             {{"\n", "; "}});
}

Machine::Machine(const MachineOptions& options, Instant start)
    : options_(options),
      prng_(options.seed),
      now_(start),
      judged_(start),
      session_deadline_(start),
      check_due_(static_cast<size_t>(options.devices), start) {
  counted_.devices.resize(static_cast<size_t>(options.devices));
}

std::vector<Action> Machine::Step(Instant now, const Event& event) {
  now_ = std::max(now_, now);
  actions_.clear();
  if (exited_) return {};
  std::visit([this](const auto& body) { Apply(body); }, event);
  if (judged_ >= patience_until_) EndPatience();
  KeepProcesses();
  KeepCheck();
  KeepSession();
  return std::exchange(actions_, {});
}

Instant Machine::NextDeadline() const {
  if (exited_) return absl::InfiniteFuture();
  Instant next = std::min({exit_at_, patience_until_, CheckDeadline()});
  if (session_state_ == SessionState::kOpen) {
    if (!heartbeat_on_its_way_) next = std::min(next, heartbeat_at_);
  } else if (session_state_ == SessionState::kOpening ||
             (session_state_ == SessionState::kClosed && failure_.ok())) {
    next = std::min(next, session_deadline_);
  }
  for (const auto& [number, process] : processes_) {
    if (process.killed) continue;
    next = std::min({next, process.terminate_at, process.kill_at, process.hung_at});
  }
  return next;
}

void Machine::Apply(const SessionWelcomed& event) {
  if (event.session != session_ || session_state_ != SessionState::kOpening) return;
  session_state_ = SessionState::kOpen;
  failed_attempts_ = 0;
  closed_as_.clear();
  ++counted_.sessions;
  heartbeat_interval_ = std::max(event.heartbeat_interval, absl::Milliseconds(10));
  if (event.coordinator != coordinator_) {
    // It asks for what it needs; answers to the one before would be taken for answers to it.
    coordinator_ = event.coordinator;
    commands_.clear();
    last_received_ = 0;
    stops_.clear();
    for (auto& [job, assignment] : assignments_) assignment.to_answer.clear();
  }
  if (event.store != 0 && event.store != store_) {
    if (store_ != 0) LeaveStore();
    store_ = event.store;
    actions_.push_back(UseStore{store_});
  }
  Log(absl::StrCat("session=", session_.value, " welcome coordinator=",
                   absl::Hex(coordinator_.value), " reports_kept=", reports_.size()));
  SendHeartbeatNow();
  for (const auto& [number, result] : commands_) {
    if (result.has_value()) Send(*result);
  }
  SendQueuedReports();
}

void Machine::Apply(const CommandReceived& event) {
  if (event.session != session_ || session_state_ != SessionState::kOpen) return;
  if (event.command_number <= last_received_) {
    const auto known = commands_.find(event.command_number);
    if (known == commands_.end()) {
      // Its answer was the oldest of kResultsMax: it was carried out.
      Send(SendCommandResult{.command_number = event.command_number});
    } else if (known->second.has_value()) {
      Send(*known->second);
    }
    return;
  }
  last_received_ = event.command_number;
  commands_[event.command_number] = std::nullopt;
  std::visit([&](const auto& command) { Run(event.command_number, command); }, event.command);
}

void Machine::Apply(const MessageWritten& event) {
  if (event.session != session_ || on_their_way_.empty()) return;
  const Sent sent = on_their_way_.front();
  on_their_way_.pop_front();
  if (sent == Sent::kHeartbeat) heartbeat_on_its_way_ = false;
  if (sent == Sent::kReport) {
    --reports_in_flight_;
    reports_.ConfirmWritten();
    SendQueuedReports();
  }
}

void Machine::Apply(const GoodbyeReceived& event) {
  if (event.session != session_) return;
  patience_until_ = absl::InfiniteFuture();
  Drain(absl::StrCat("the coordinator let the node go: ", event.reason), absl::OkStatus(),
        options_.shutdown_grace);
}

void Machine::Apply(const SessionClosed& event) {
  if (event.session != session_ || session_state_ == SessionState::kClosed) return;
  const bool was_open = session_state_ == SessionState::kOpen;
  if (was_open) ++counted_.session_breaks;
  if (session_state_ == SessionState::kOpening) ++counted_.session_failures;
  session_state_ = SessionState::kClosed;
  on_their_way_.clear();
  heartbeat_on_its_way_ = false;
  heartbeat_at_ = absl::InfiniteFuture();
  reports_in_flight_ = 0;
  reports_.Rewind();
  if (IsFatal(event.status)) {
    // Another process has this node's name, or no coordinator will ever serve this one: its ranks
    // have no master any more.
    Drain(absl::StrCat("the coordinator refused the session: ", OneLine(event.status)),
          event.status, absl::ZeroDuration());
    return;
  }
  const double doubled = static_cast<double>(uint64_t{1} << std::min(failed_attempts_, 20));
  const absl::Duration delay =
      std::min(options_.reconnect_delay_min * doubled,
               failed_attempts_ < options_.reconnect_failures_soon ? options_.reconnect_delay_max
                                                                   : options_.reconnect_delay_late);
  ++failed_attempts_;
  session_deadline_ = now_ + delay * (0.5 + 0.5 * prng_.Uniform());
  // Each reason once, whichever of several coordinators is asked in turn.
  const bool untold = closed_as_.insert(event.status.code()).second;
  if (was_open || untold) {
    Log(absl::StrCat("session=", session_.value, " closed status=\"", OneLine(event.status),
                     "\" processes=", processes_.size(),
                     was_open ? "" : absl::StrCat(": ", NextStep(event.status))));
  }
}

void Machine::Apply(const DataPrepared& event) {
  const auto found = data_requests_.find(event.request);
  if (found == data_requests_.end()) return;
  const DataUse use = std::move(found->second);
  data_requests_.erase(found);
  const DataOutcome& outcome = event.outcome;
  if (outcome.status.ok()) {
    outcomes_[use.job] = {use.document, outcome};
    ForgetOutcomes();
  }
  if (use.command_number != 0) {
    if (use.coordinator != coordinator_.value) return;
    const auto data = std::make_shared<const DataOutcome>(outcome);
    if (outcome.status.ok() && WarmsUpFor(use.job, use.command_number, data)) return StartWarming();
    Answer(use.command_number, outcome.status, data);
    return;
  }
  const auto assigned = assignments_.find(use.job);
  if (assigned == assignments_.end() || assigned->second.command->epoch != use.epoch) return;
  if (!outcome.status.ok()) return FailAssignment(use.job, outcome.status);
  assigned->second.data = outcome;
  Adopt(use.job, assigned->second);
}

void Machine::Apply(const UploadStarted& event) { Answer(event.command_number, event.status); }

void Machine::Apply(const PeerTried& event) {
  if (event.of != coordinator_) return;
  Answer({.command_number = event.command_number,
          .status = event.status,
          .listens_at = event.listens_at});
}

void Machine::Apply(const DeadlineReached& event) {
  judged_ = std::max(judged_, std::min(now_, event.read_until));
}

void Machine::Apply(const TerminationRequested&) {
  const bool again = draining_;
  // Without a coordinator nobody says when a checkpoint is published.
  if (!again && session_state_ == SessionState::kOpen) {
    patience_until_ = now_ + options_.shutdown_grace -
                      std::min(options_.ending_grace, options_.shutdown_grace / 2);
  }
  Drain("asked to end", absl::OkStatus(), again ? absl::ZeroDuration() : options_.shutdown_grace);
}

// Whoever is late has had no chance to be heard.
void Machine::Apply(const Stalled& event) {
  const absl::Duration excuse = ExcuseFor(event.duration);
  counted_.stalled += event.duration;
  if (session_state_ == SessionState::kOpening) session_deadline_ += excuse;
  exit_at_ += excuse;
  patience_until_ += excuse;
  for (auto& [number, process] : processes_) {
    process.kill_at += excuse;
    process.terminate_at += excuse;
    process.hung_at += excuse;
    LeaveOutOfWait(process, event.duration);
    process.ran_at = std::min(process.ran_at + event.duration, now_);
  }
  if (check_.has_value()) {
    check_->kill_at += excuse;
    check_->leave_at += excuse;
  }
  if (event.duration >= absl::Seconds(1)) {
    Log(absl::StrCat("stalled for ", absl::FormatDuration(event.duration),
                     "; deadlines are moved by ", absl::FormatDuration(excuse)));
  }
}

void Machine::Answer(uint64_t number, absl::Status status,
                     std::shared_ptr<const DataOutcome> data) {
  Answer({number, std::move(status), std::move(data)});
}

void Machine::Answer(SendCommandResult result) {
  commands_[result.command_number] = result;
  while (commands_.size() > kResultsMax && commands_.begin()->second.has_value()) {
    commands_.erase(commands_.begin());
  }
  Send(std::move(result));
}

void Machine::Send(Action action) {
  if (session_state_ != SessionState::kOpen) return;
  on_their_way_.push_back(std::holds_alternative<SendReport>(action)      ? Sent::kReport
                          : std::holds_alternative<SendHeartbeat>(action) ? Sent::kHeartbeat
                                                                          : Sent::kResult);
  actions_.push_back(std::move(action));
}

void Machine::SendQueuedReports() {
  if (session_state_ != SessionState::kOpen) return;
  while (reports_in_flight_ < options_.reports_in_flight_max) {
    std::optional<SendReport> report = reports_.Next();
    if (!report.has_value()) return;
    ++reports_in_flight_;
    Send(*std::move(report));
  }
}

void Machine::SendHeartbeatNow() {
  ++counted_.heartbeats;
  if (now_ - heartbeat_at_ > heartbeat_interval_) ++counted_.heartbeats_late;
  const absl::Duration next = now_ + heartbeat_interval_ - absl::UnixEpoch();
  heartbeat_at_ = absl::UnixEpoch() + absl::Floor(next, heartbeat_interval_ / kHeartbeatTimes);
  heartbeat_on_its_way_ = true;
  SendHeartbeat heartbeat{.progress = ProgressOf(), .draining = draining_};
  if (std::exchange(check_untold_, false))
    heartbeat.check = std::make_shared<const job::NodeCheck>(checked_);
  Send(std::move(heartbeat));
}

void Machine::KeepSession() {
  if (draining_) {
    const bool silent = processes_.empty() && reports_.unwritten() == 0;
    if (session_state_ == SessionState::kOpen && silent) {
      actions_.push_back(CloseSession{session_});
      session_state_ = SessionState::kClosing;
    }
    const bool unreachable =
        session_state_ == SessionState::kClosed || session_state_ == SessionState::kOpening;
    if ((processes_.empty() && unreachable) || judged_ >= exit_at_) {
      exited_ = true;
      actions_.push_back(Exit{failure_, exit_reason_});
      return;
    }
  }
  switch (session_state_) {
    case SessionState::kClosed:
      if (now_ < session_deadline_ || !failure_.ok()) return;
      session_ = SessionNumber{session_.value + 1};
      session_state_ = SessionState::kOpening;
      session_deadline_ = now_ + options_.welcome_timeout;
      actions_.push_back(OpenSession{
          session_, LastCommandNumber(), Running(), store_, last_job_,
          checked_.number == 0 ? nullptr : std::make_shared<const job::NodeCheck>(checked_)});
      return;
    case SessionState::kOpening:
      if (judged_ < session_deadline_) return;
      actions_.push_back(CloseSession{session_});
      Apply(SessionClosed{session_, absl::DeadlineExceededError("no welcome")});
      return;
    case SessionState::kOpen:
      if (now_ >= heartbeat_at_ && !heartbeat_on_its_way_) SendHeartbeatNow();
      return;
    case SessionState::kClosing:
      return;
  }
}

void Machine::Drain(std::string reason, absl::Status failure, absl::Duration grace) {
  Log(absl::StrCat("draining reason=\"", reason, "\" processes=", processes_.size()));
  if (!draining_) {
    draining_ = true;
    exit_reason_ = std::move(reason);
    if (session_state_ == SessionState::kOpen) SendHeartbeatNow();
  } else if (!failure.ok()) {
    exit_reason_ = std::move(reason);
  }
  failure_.Update(failure);
  CallOffCheck();
  exit_at_ = std::min(exit_at_, now_ + grace + kFarewell);
  if (grace <= absl::ZeroDuration()) patience_until_ = absl::InfiniteFuture();
  const bool patient = patience_until_ < absl::InfiniteFuture();
  for (auto& [number, process] : processes_) {
    if (patient && MayEndWithCheckpoint(process)) continue;
    End(number, process, grace, exit_reason_);
  }
}

void Machine::EndPatience() {
  patience_until_ = absl::InfiniteFuture();
  for (auto& [number, process] : processes_) {
    const absl::Duration left = exit_at_ - kFarewell - now_;
    End(number, process, std::max(left, absl::ZeroDuration()), exit_reason_);
  }
}

void Machine::LeaveStore() {
  Log(absl::StrCat("the coordinator has another store: processes=", processes_.size(),
                   " of the one before are ended"));
  for (auto& [number, process] : processes_) {
    process.job = JobId{};
    End(number, process, options_.shutdown_grace, "the coordinator has another store");
  }
  highest_epoch_.clear();
  stopped_epoch_.clear();
  assignments_.clear();
  outcomes_.clear();
  CallOffData(JobId{});
  stops_.clear();
  last_work_.clear();
  warmings_.clear();
  reports_ = ReportBuffer();
  last_job_ = JobId{};
  actions_.push_back(FreeHostMemory{});
}

void Machine::CallOffData(JobId job) {
  for (auto request = data_requests_.begin(); request != data_requests_.end();) {
    const DataUse use = request->second;
    if (job != JobId{} && use.job != job) {
      ++request;
      continue;
    }
    actions_.push_back(CancelData{request->first});
    request = data_requests_.erase(request);
    if (use.command_number != 0 && use.coordinator == coordinator_.value) {
      Answer(use.command_number, absl::AbortedError("stopped"));
    }
  }
}

// Of jobs that run here it is known, however old they are: their next epoch does not wait.
void Machine::ForgetOutcomes() {
  for (auto outcome = outcomes_.begin();
       outcome != outcomes_.end() && outcomes_.size() > kOutcomesMax;) {
    outcome = assignments_.contains(outcome->first) ? std::next(outcome) : outcomes_.erase(outcome);
  }
}

// The newest command of which all up to it are carried out: what comes after may be sent again.
uint64_t Machine::LastCommandNumber() const {
  for (const auto& [number, result] : commands_) {
    if (!result.has_value()) return number - 1;
  }
  return last_received_;
}

void Machine::RememberEpoch(JobId job, Epoch epoch) {
  Epoch& highest = highest_epoch_[job];
  highest = std::max(highest, epoch);
  last_job_ = std::max(last_job_, job);
  ForgetLowest(highest_epoch_, kJobsRememberedMax);
}

void Machine::RememberStopped(JobId job, Epoch epoch) {
  RememberEpoch(job, epoch);
  stopped_epoch_[job] = epoch;
  ForgetLowest(stopped_epoch_, kJobsRememberedMax);
}

}  // namespace phalanx::agent
