#include "worker/agent/translate.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/base/utf8.h"
#include "core/job/failure.h"
#include "core/job/injected_fault.h"
#include "core/wire/check_codec.h"
#include "core/wire/examination_codec.h"
#include "core/wire/fault_codec.h"

namespace phalanx::agent {
namespace {

// Of a Stop that names none.
constexpr absl::Duration kGraceDefault = absl::Seconds(10);
constexpr absl::Duration kHeartbeatDefault = absl::Seconds(1);
// Of each text in an answer: an answer must stay far below the size of a message.
constexpr size_t kTextBytesMax = 4 << 10;
constexpr int kViolationsMax = 1000;

absl::Duration DurationOf(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

template <typename Body>  // PrepareData, Assign
Document DocumentOf(const Body& body) {
  return {body.document().text(), body.document().directory(), body.owner()};
}

Command CommandOf(const v1::Command& command) {
  switch (command.command_case()) {
    case v1::Command::kPrepareData: {
      const v1::PrepareData& body = command.prepare_data();
      return PrepareDataCommand{JobId{body.job()}, DocumentOf(body), body.choose_checkpoint()};
    }
    case v1::Command::kAssign: {
      const v1::Assign& body = command.assign();
      AssignCommand assign{
          .job = JobId{body.job()}, .epoch = Epoch{body.epoch()}, .document = DocumentOf(body)};
      for (const v1::NodeDevices& node : body.layout().placement().nodes()) {
        assign.placement.push_back({node.node(), {node.devices().begin(), node.devices().end()}});
      }
      for (const auto& ranks : {body.layout().lost(), body.layout().idle()}) {
        assign.without_work.insert(ranks.begin(), ranks.end());
      }
      assign.writes_checkpoints = body.writes_checkpoints();
      assign.goes_on = body.goes_on();
      assign.beside = body.beside();
      assign.keepers.insert(body.keepers().begin(), body.keepers().end());
      assign.payload = body.SerializeAsString();
      return assign;
    }
    case v1::Command::kBeginEpoch: {
      const v1::BeginEpoch& body = command.begin_epoch();
      return BeginEpochCommand{JobId{body.job()}, Epoch{body.epoch()}, body.SerializeAsString()};
    }
    case v1::Command::kRendezvous: {
      const v1::Rendezvous& body = command.rendezvous();
      return RendezvousCommand{JobId{body.job()}, Epoch{body.epoch()}, body.SerializeAsString()};
    }
    case v1::Command::kStop: {
      const v1::Stop& body = command.stop();
      return StopCommand{JobId{body.job()}, Epoch{body.epoch()},
                         body.has_grace() ? DurationOf(body.grace()) : kGraceDefault,
                         body.reason()};
    }
    case v1::Command::kFetchLogs: {
      const v1::FetchLogs& body = command.fetch_logs();
      return FetchLogsCommand{.fetch_id = body.fetch_id(),
                              .job = JobId{body.job()},
                              .ranks = {body.ranks().begin(), body.ranks().end()},
                              .follow = body.follow(),
                              .ended = body.ended(),
                              .tail = body.tail(),
                              .after = {body.after().begin(), body.after().end()}};
    }
    case v1::Command::kPublishCheckpoint: {
      const v1::PublishCheckpoint& body = command.publish_checkpoint();
      return PublishCommand{JobId{body.job()}, Epoch{body.epoch()}, body.rank(),
                            body.SerializeAsString()};
    }
    case v1::Command::kWriteIncident: {
      const v1::WriteIncident& body = command.write_incident();
      return WriteIncidentCommand{JobId{body.job()}, Epoch{body.epoch()}, body.rank(),
                                  body.SerializeAsString()};
    }
    case v1::Command::kWish: {
      const v1::Wish& body = command.wish();
      return WishCommand{JobId{body.job()}, Epoch{body.epoch()}, body.SerializeAsString()};
    }
    case v1::Command::kPrepareStandby: {
      const v1::PrepareStandby& body = command.prepare_standby();
      return PrepareStandbyCommand{JobId{body.job()}, Epoch{body.epoch()},
                                   body.SerializeAsString()};
    }
    case v1::Command::kInjectFault: {
      const v1::InjectFault& body = command.inject_fault();
      return InjectCommand{JobId{body.job()}, Epoch{body.epoch()}, wire::FromProto(body.fault())};
    }
    case v1::Command::kTryPeer:
      return TryPeerCommand{command.try_peer().word(), command.try_peer().peer()};
    case v1::Command::COMMAND_NOT_SET:
      break;
  }
  return UnknownCommand{};
}

ReportKind KindOf(const v1::RankReport& report) {
  if (report.has_step()) return ReportKind::kStep;
  if (report.has_checkpoint_published()) return ReportKind::kPublished;
  return report.has_event() ? ReportKind::kEvent : ReportKind::kOther;
}

RankOutcome OutcomeOf(const v1::RankReport& report) {
  if (report.has_succeeded()) return RankOutcome::kSucceeded;
  const bool failed = report.has_error() && report.error().kind() != v1::FAILURE_KIND_PEER_LOST;
  return failed ? RankOutcome::kFailed : RankOutcome::kNone;
}

std::vector<Event> EventsOfReport(ProcessNumber process, const v1::RankReport& report) {
  // Only the daemon knows how a process ended.
  if (report.has_exited() || report.has_died()) return {};
  std::vector<Event> events = {RankReported{process, Epoch{report.epoch()}, KindOf(report),
                                            report.SerializeAsString(), OutcomeOf(report)}};
  if (report.event().type() == job::kFaultReached) events.push_back(FaultReached{process});
  return events;
}

}  // namespace

std::string Utf8Of(absl::string_view text, size_t bytes_max) {
  text = text.substr(0, bytes_max);
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    uint32_t character = 0;
    const size_t bytes = Utf8Bytes(text, character);
    if (bytes == 0) {
      clean.push_back('?');
      text.remove_prefix(1);
    } else {
      clean.append(text.data(), bytes);
      text.remove_prefix(bytes);
    }
  }
  return clean;
}

std::optional<Event> EventOf(SessionNumber session, const v1::OpenSessionResponse& response) {
  switch (response.message_case()) {
    case v1::OpenSessionResponse::kWelcome: {
      const v1::Welcome& welcome = response.welcome();
      return SessionWelcomed{session,
                             welcome.has_heartbeat_interval()
                                 ? DurationOf(welcome.heartbeat_interval())
                                 : kHeartbeatDefault,
                             Incarnation{welcome.coordinator_incarnation()}, welcome.store()};
    }
    case v1::OpenSessionResponse::kCommand:
      return CommandReceived{session, response.command().command_number(),
                             CommandOf(response.command())};
    case v1::OpenSessionResponse::kGoodbye:
      return GoodbyeReceived{session, response.goodbye().reason()};
    case v1::OpenSessionResponse::MESSAGE_NOT_SET:
      break;
  }
  return std::nullopt;
}

std::vector<Event> EventsOf(ProcessNumber process, const v1::ToDaemon& message) {
  switch (message.message_case()) {
    case v1::ToDaemon::kHello:
      return {RankHelloReceived{process}};
    case v1::ToDaemon::kReport:
      return EventsOfReport(process, message.report());
    case v1::ToDaemon::kProgress:
      return {RankProgressed{process, Epoch{message.progress().epoch()}, message.progress().step(),
                             absl::Seconds(message.progress().step_seconds()),
                             message.progress().work_seconds(), message.progress().equal_work(),
                             message.progress().work_seconds_per_gflop(),
                             message.progress().like_work()}};
    case v1::ToDaemon::kStopped:
      return {EpochStopped{process, Epoch{message.stopped().epoch()}}};
    case v1::ToDaemon::kWarmed:
      return {RankWarmed{process}};
    case v1::ToDaemon::kAskHostMemory:
    case v1::ToDaemon::kAskHostCopies:
    case v1::ToDaemon::kHostCopiesWhole:
    case v1::ToDaemon::kStrangers:
    case v1::ToDaemon::MESSAGE_NOT_SET:
      break;
  }
  return {};
}

v1::OpenSessionRequest MessageOf(const SendHeartbeat& action, absl::Span<const Preparing> preparing,
                                 absl::Span<const int32_t> temperatures,
                                 absl::Span<const int64_t> used_memory) {
  v1::OpenSessionRequest message;
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_draining(action.draining);
  heartbeat.mutable_device_temperatures()->Assign(temperatures.begin(), temperatures.end());
  heartbeat.mutable_device_used_memory()->Assign(used_memory.begin(), used_memory.end());
  for (const Preparing& one : preparing) {
    v1::Heartbeat::Preparing& entry = *heartbeat.add_preparing();
    entry.set_job(one.job.value);
    entry.set_bytes_read(one.bytes_read);
    entry.set_behind(one.behind.value);
  }
  if (action.check != nullptr) wire::ToProto(*action.check, heartbeat.mutable_check());
  for (const Progress& progress : action.progress) {
    v1::Heartbeat::Progress& entry = *heartbeat.add_progress();
    entry.set_job(progress.job.value);
    entry.set_epoch(progress.epoch.value);
    entry.set_step(progress.step);
    entry.set_waits_seconds(absl::ToDoubleSeconds(progress.waits));
    for (const RankWork& work : progress.work) {
      v1::Heartbeat::Work& of_rank = *entry.add_work();
      of_rank.set_rank(work.rank);
      of_rank.set_seconds(work.seconds);
      of_rank.set_equal(work.equal);
      of_rank.set_seconds_per_gflop(work.seconds_per_gflop);
      of_rank.set_like(work.like);
    }
  }
  return message;
}

v1::MachineExamination MessageOf(const std::vector<job::Finding>& findings, absl::Time sent,
                                 absl::Duration round_trip) {
  std::vector<job::Finding> texts = findings;  // names of folders need not be text
  for (job::Finding& finding : texts) {
    finding.found = Utf8Of(finding.found, kTextBytesMax);
    finding.next = Utf8Of(finding.next, kTextBytesMax);
  }
  v1::MachineExamination message;
  wire::ToProto(texts, message.mutable_findings());
  const int64_t nanos = absl::ToUnixNanos(sent);
  message.mutable_sent()->set_seconds(nanos / 1'000'000'000);
  message.mutable_sent()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  message.set_round_trip_seconds(absl::ToDoubleSeconds(round_trip));
  return message;
}

v1::OpenSessionRequest MessageOf(const SendCommandResult& action) {
  v1::OpenSessionRequest message;
  v1::CommandResult& result = *message.mutable_command_result();
  result.set_command_number(action.command_number);
  result.set_code(static_cast<int32_t>(action.status.code()));
  result.set_message(Utf8Of(action.status.message(), 16 * kTextBytesMax));
  result.set_epoch_seen(action.epoch_seen.value);
  result.set_listens_at(action.listens_at);
  if (action.data == nullptr) return message;
  const DataOutcome& data = *action.data;
  result.set_data_digest(data.digest);
  for (const Violation& violation : data.violations) {
    if (result.data_violations_size() == kViolationsMax) break;
    v1::DataViolation& entry = *result.add_data_violations();
    entry.set_field(Utf8Of(violation.field, kTextBytesMax));
    entry.set_value(Utf8Of(violation.value, kTextBytesMax));
    entry.set_rule(Utf8Of(violation.rule, kTextBytesMax));
  }
  result.set_corrupt_samples(data.corrupt_samples);
  for (const std::string& text : data.corrupt_messages) {
    result.add_corrupt_messages(Utf8Of(text, kTextBytesMax));
  }
  if (const std::optional<job::FailureKind> kind = job::KindIn(action.status)) {
    result.set_failure_kind(static_cast<v1::FailureKind>(*kind));
  }
  if (data.shape.has_value()) {
    result.mutable_data_shape()->set_items(data.shape->items);
    result.mutable_data_shape()->set_labelled_share(data.shape->labelled_share);
  }
  if (!data.checkpoint.has_value()) return message;
  v1::CheckpointChoice& choice = *result.mutable_checkpoint();
  for (const std::string& text : data.checkpoint->passed_over) {
    choice.add_passed_over(Utf8Of(text, kTextBytesMax));
  }
  if (data.checkpoint->path.empty()) return message;
  choice.mutable_source()->set_path(data.checkpoint->path);
  choice.mutable_source()->set_manifest_digest(data.checkpoint->manifest_digest);
  choice.mutable_source()->set_step(data.checkpoint->step);
  return message;
}

v1::OpenSessionRequest MessageOf(const SendReport& action) {
  v1::OpenSessionRequest message;
  v1::RankReport& report = *message.mutable_rank_report();
  if (const auto* payload = std::get_if<std::string>(&action.report)) {
    report.ParseFromString(*payload);
  } else if (const auto* fault = std::get_if<RankFault>(&action.report)) {
    report.mutable_error()->set_message(Utf8Of(fault->message, kTextBytesMax));
    report.mutable_error()->set_kind(static_cast<v1::FailureKind>(fault->kind));
  } else if (const auto* note = std::get_if<RankNote>(&action.report)) {
    report.mutable_event()->set_type(note->type);
    report.mutable_event()->set_message(Utf8Of(note->message, kTextBytesMax));
  } else if (std::holds_alternative<RankDeath>(action.report)) {
    report.mutable_died();
  } else if (std::holds_alternative<RankNeverRan>(action.report)) {
    report.mutable_quiet()->set_context_ok(true);
  } else {
    const RankExit& exit = std::get<RankExit>(action.report);
    v1::RankExited& exited = *report.mutable_exited();
    exited.set_exit_code(exit.exit_code);
    exited.set_signal(exit.signal);
    exited.set_expected(exit.expected);
    exited.set_log_tail(Utf8Of(exit.log_tail, kTextBytesMax));
  }
  report.set_job(action.job.value);
  report.set_epoch(action.epoch.value);
  report.set_rank(action.rank);
  return message;
}

}  // namespace phalanx::agent
