#include "coordinator/wire/session_codec.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/wire/common_codec.h"
#include "core/base/cut_text.h"
#include "core/base/node_name.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/plan/derivation.h"
#include "core/wire/check_codec.h"
#include "core/wire/examination_codec.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kShortTextBytesMax = 1024;
constexpr size_t kDeviceNameBytesMax = 128;
constexpr int kLabelsMax = 64;
constexpr size_t kBytesShown = 64;  // of a text that is refused
constexpr int32_t kTemperatureMax = 1000;
constexpr int64_t kUsedMemoryMax = int64_t{1} << 46;
constexpr int64_t kJobNumberMax = int64_t{1} << 53;
constexpr int64_t kEpochSeenMax = int64_t{1} << 40;
// Of one rank: more than a plan's parts and mirrors of any rank.
constexpr int kHomesMax = 1 << 16;
// Of one rank: of all ranks of a node, in more epochs than are kept.
constexpr int kCopyPairsMax = 1 << 14;
constexpr int kCopiesOfPairMax = 2;
constexpr size_t kListensAtBytesMax = 64;  // an IPv6 address and a port have less

std::string Reported(const std::string& text) { return CutText(text, kReportedTextBytesMax); }

// 0 for what no duration can be.
double SecondsOf(double seconds) { return seconds >= 0 && seconds < 1e7 ? seconds : 0; }

// 0 for what no device can be.
std::vector<int32_t> Temperatures(const v1::Heartbeat& from) {
  std::vector<int32_t> temperatures;
  for (int i = 0; i < std::min(from.device_temperatures_size(), kDevicesMax); ++i) {
    const int32_t degrees = from.device_temperatures(i);
    temperatures.push_back(degrees > 0 && degrees <= kTemperatureMax ? degrees : 0);
  }
  return temperatures;
}

// -1 for what no device can have in use.
std::vector<int64_t> UsedMemory(const v1::Heartbeat& from) {
  std::vector<int64_t> used;
  for (int i = 0; i < std::min(from.device_used_memory_size(), kDevicesMax); ++i)
    used.push_back(from.device_used_memory(i) > kUsedMemoryMax
                       ? -1
                       : std::max<int64_t>(from.device_used_memory(i), -1));
  return used;
}

// What no rank can say is left out.
std::vector<RankWork> WorkOf(const v1::Heartbeat::Progress& from) {
  std::vector<RankWork> work;
  for (int i = 0; i < std::min(from.work_size(), kDevicesMax); ++i) {
    const v1::Heartbeat::Work& of_rank = from.work(i);
    const double seconds = SecondsOf(of_rank.seconds());
    if (of_rank.rank() < 0 || !(seconds > 0) || of_rank.equal() == 0) continue;
    RankWork& known = work.emplace_back(RankWork{of_rank.rank(), seconds, of_rank.equal()});
    const double per_gflop = SecondsOf(of_rank.seconds_per_gflop());
    if (!(per_gflop > 0) || of_rank.like() == 0) continue;
    known.seconds_per_gflop = per_gflop;
    known.like = of_rank.like();
  }
  return work;
}

EvaluationReport ReportedEvaluation(const v1::EvaluationReport& from) {
  EvaluationReport report = FromProto(from);
  if (report.captions.size() > kCaptionsMax) report.captions.resize(kCaptionsMax);
  for (auto& caption : report.captions) {
    for (std::string* text : {&caption.sample, &caption.truth, &caption.decoded}) {
      *text = Reported(*text);
    }
  }
  return report;
}

// nullopt: none that a rank can have meant.
std::optional<RankQuiet> QuietFromProto(const v1::RankQuiet& from) {
  v1::EpochBegins known;
  if (from.has_decision()) *known.mutable_decision() = from.decision();
  known.set_updates(from.updates());
  known.set_skipped_in_a_row(from.skipped_in_a_row());
  std::optional<EpochStart> start = FromProto(known);
  if (!start.has_value() || from.homes_size() > kHomesMax) return std::nullopt;
  RankQuiet quiet{.known = *std::move(start),
                  .context_ok = from.context_ok(),
                  .layout_epoch = Epoch{from.layout_epoch()},
                  .begun = std::max<int64_t>(from.begun(), 0)};
  for (const v1::RankQuiet::Home& home : from.homes()) {
    quiet.homes.push_back({.module = home.module(),
                           .chunk = home.chunk(),
                           .primary = home.primary(),
                           .applied = home.applied()});
  }
  if (from.has_copied()) quiet.copied = from.copied();
  return quiet;
}

// nullopt: likewise.
std::optional<RankCopies> CopiesFromProto(const v1::RankCopies& from) {
  if (from.pairs_size() > kCopyPairsMax) return std::nullopt;
  RankCopies found;
  for (const v1::RankCopies::Pair& pair : from.pairs()) {
    if (pair.copies_size() > kCopiesOfPairMax) return std::nullopt;
    RankCopies::Pair& to = found.pairs.emplace_back();
    to.rank = pair.rank();
    to.epoch = Epoch{pair.epoch()};
    for (const v1::RankCopies::Copy& copy : pair.copies()) {
      std::optional<EpochStart> start = FromProto(copy.start());
      if (!start.has_value()) return std::nullopt;
      to.copies.push_back({.start = *std::move(start), .plan = copy.plan()});
    }
  }
  return found;
}

std::optional<Event> ReportFromProto(SessionId session, const v1::RankReport& from) {
  RankReported event{.session = session,
                     .job = JobId{from.job()},
                     .epoch = Epoch{from.epoch()},
                     .rank = from.rank()};
  switch (from.report_case()) {
    case v1::RankReport::kRendezvous:
      event.report = RendezvousEntry{from.rendezvous().key(), from.rendezvous().value()};
      return event;
    case v1::RankReport::kReady:
      event.report = RankReady{.connected = SecondsOf(from.ready().connected()),
                               .state = SecondsOf(from.ready().state()),
                               .ready = SecondsOf(from.ready().ready())};
      return event;
    case v1::RankReport::kStep:
      event.report = FromProto(from.step());
      if (from.has_decided()) event.decided = FromProto(from.decided());
      return event;
    case v1::RankReport::kSucceeded:
      event.report =
          RankSucceeded{.step = from.succeeded().step(), .early = from.succeeded().early()};
      return event;
    case v1::RankReport::kError:
      event.report = RankError{
          .kind = job::FailureKindOf(from.error().kind()).value_or(job::FailureKind::kRankError),
          .accused = from.error().has_accused_rank() ? from.error().accused_rank() : -1,
          .message = Reported(from.error().message())};
      return event;
    case v1::RankReport::kDied:
      event.report = RankDied{};
      return event;
    case v1::RankReport::kExited:
      event.report = RankExited{.exit_code = from.exited().exit_code(),
                                .signal = from.exited().signal(),
                                .expected = from.exited().expected(),
                                .log_tail = Reported(from.exited().log_tail())};
      return event;
    case v1::RankReport::kEvent:
      event.report = RankEvent{.type = Reported(from.event().type()),
                               .message = Reported(from.event().message())};
      return event;
    case v1::RankReport::kEvaluation:
      event.report = ReportedEvaluation(from.evaluation());
      return event;
    case v1::RankReport::kCheckpointPart: {
      const v1::RankCheckpointPart& part = from.checkpoint_part();
      event.report = RankCheckpointPart{.step = part.step(),
                                        .part = {.file = Reported(part.file()),
                                                 .bytes = part.bytes(),
                                                 .header_bytes = part.header_bytes(),
                                                 .entries = part.entries(),
                                                 .digest = Reported(part.digest())},
                                        .seconds = part.seconds()};
      return event;
    }
    case v1::RankReport::kCheckpointPublished:
      event.report =
          RankCheckpointPublished{.step = from.checkpoint_published().step(),
                                  .path = Reported(from.checkpoint_published().path()),
                                  .error = Reported(from.checkpoint_published().error())};
      return event;
    case v1::RankReport::kQuiet: {
      std::optional<RankQuiet> quiet = QuietFromProto(from.quiet());
      if (!quiet.has_value()) break;
      event.report = *std::move(quiet);
      return event;
    }
    case v1::RankReport::kCopies: {
      std::optional<RankCopies> copies = CopiesFromProto(from.copies());
      if (!copies.has_value()) break;
      event.report = *std::move(copies);
      return event;
    }
    case v1::RankReport::kSafe:
      event.report = RankSafe{Reported(from.safe().why_not())};
      return event;
    case v1::RankReport::kStandby:
      event.report = RankStandby{.set = Reported(from.standby().set()),
                                 .error = Reported(from.standby().error())};
      return event;
    case v1::RankReport::REPORT_NOT_SET:
      break;
  }
  return std::nullopt;
}

// Nothing of figures that no set has.
std::optional<job::DataShape> ShapeFromProto(const v1::DataShape& from) {
  constexpr double kItemsMax = 65536;  // as batch.items
  const bool good = from.items() >= 0 && from.items() <= kItemsMax && from.labelled_share() >= 0 &&
                    from.labelled_share() <= 1;
  if (!good) return std::nullopt;
  return job::DataShape{.items = from.items(), .labelled_share = from.labelled_share()};
}

CommandFinished ResultFromProto(SessionId session, const v1::CommandResult& from) {
  CommandFinished event{
      .session = session,
      .command_number = from.command_number(),
      .code = from.code(),
      .message = Reported(from.message()),
      .data_digest = from.data_digest(),
      .corrupt_samples = from.corrupt_samples(),
      .epoch_seen = Epoch{std::clamp<int64_t>(from.epoch_seen(), 0, kEpochSeenMax)}};
  for (int i = 0; i < std::min(from.data_violations_size(), kViolationsMax); ++i) {
    const v1::DataViolation& violation = from.data_violations(i);
    event.data_violations.push_back(
        {Reported(violation.field()), Reported(violation.value()), Reported(violation.rule())});
  }
  for (int i = 0; i < std::min(from.corrupt_messages_size(), kCorruptNamedMax); ++i) {
    event.corrupt_messages.push_back(Reported(from.corrupt_messages(i)));
  }
  event.failure_kind = job::FailureKindOf(from.failure_kind());
  event.listens_at = from.listens_at().substr(0, kListensAtBytesMax);
  if (from.has_data_shape()) event.data_shape = ShapeFromProto(from.data_shape());
  if (!from.has_checkpoint()) return event;
  CommandFinished::Choice& choice = event.choice.emplace();
  if (from.checkpoint().has_source()) choice.checkpoint = FromProto(from.checkpoint().source());
  for (int i = 0; i < std::min(from.checkpoint().passed_over_size(), kPassedOverMax); ++i) {
    choice.passed_over.push_back(Reported(from.checkpoint().passed_over(i)));
  }
  return event;
}

bool HasControl(absl::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

// Of labels, names of devices, version and address, which are shown to people as they are.
absl::Status CheckTexts(const v1::WorkerHello& from) {
  const auto too_long = [](const auto& label) {
    return label.first.size() > kShortTextBytesMax || label.second.size() > kShortTextBytesMax;
  };
  if (from.labels_size() > kLabelsMax ||
      std::any_of(from.labels().begin(), from.labels().end(), too_long) ||
      from.version().size() > kShortTextBytesMax || from.address().size() > kShortTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello has ", from.labels_size(), " labels, a version of ",
                     from.version().size(), " bytes and an address of ", from.address().size(),
                     "; at most ", kLabelsMax, " labels, and ", kShortTextBytesMax,
                     " bytes in each key, each value, the version and the address"));
  }
  const auto refused = [](absl::string_view field, const std::string& value) {
    return absl::InvalidArgumentError(absl::StrCat("hello.", field, ": ",
                                                   LineText(CutText(value, kBytesShown)),
                                                   ": must have no control characters"));
  };
  for (const auto& [key, value] : from.labels()) {
    if (HasControl(key)) return refused("labels", key);
    if (HasControl(value)) return refused("labels", value);
  }
  if (from.device_names_size() != from.devices() && !from.device_names().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("hello has ", from.device_names_size(),
                                                   " device_names; it must have one for each of ",
                                                   "hello.devices, or none"));
  }
  for (const std::string& name : from.device_names()) {
    if (name.size() > kDeviceNameBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("hello.device_names: one has ", name.size(),
                                                     " bytes; at most ", kDeviceNameBytesMax));
    }
    if (HasControl(name)) return refused("device_names", name);
  }
  if (HasControl(from.version())) return refused("version", from.version());
  if (HasControl(from.address())) return refused("address", from.address());
  return absl::OkStatus();
}

int32_t DerivationOf(const v1::WorkerHello& hello) {
  if (hello.derivation() != 0) return hello.derivation();
  return hello.protocol_version() >= kUnsaidDerivationProtocolVersion ? kUnsaidDerivation
                                                                      : kUnsaidDerivationBefore;
}

}  // namespace

absl::StatusOr<WorkerHello> HelloFromProto(const v1::WorkerHello& from) {
  const bool newer = from.protocol_version() > kProtocolVersion;
  if (newer || from.protocol_version() < kOldestProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "hello.protocol_version: ", from.protocol_version(), ": must be ", kOldestProtocolVersion,
        " or ", kProtocolVersion, " for this coordinator; upgrade ",
        newer ? "it before its workers" : "phalanx-worker on that node"));
  }
  if (!IsNodeName(from.node())) {
    return absl::InvalidArgumentError(absl::StrCat("hello.node must be 1 to ", kNodeNameBytesMax,
                                                   " bytes of letters, digits, '.', '_' and '-'"));
  }
  if (from.incarnation() == 0)
    return absl::InvalidArgumentError(
        "hello.incarnation: 0: must be a number other than 0, drawn when the process starts");
  if (from.device_kind() != "cpu" && from.device_kind() != "gpu") {
    return absl::InvalidArgumentError("hello.device_kind must be \"cpu\" or \"gpu\"");
  }
  if (from.devices() < 0 || from.devices() > kDevicesMax) {
    return absl::InvalidArgumentError(absl::StrCat("hello.devices is ", from.devices(),
                                                   "; it must be in [0, ", kDevicesMax, "]"));
  }
  const bool each = from.device_memory_size() == from.devices();
  if ((!each && !from.device_memory().empty()) ||
      std::any_of(from.device_memory().begin(), from.device_memory().end(),
                  [](int64_t bytes) { return bytes < 0; })) {
    return absl::InvalidArgumentError(
        "hello.device_memory must be a number of bytes for each of hello.devices, or empty");
  }
  if (from.host_memory() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hello.host_memory is ", from.host_memory(),
        "; it must be the number of bytes that jobs may use, or 0 where it is not known"));
  }
  if (from.last_job() < 0 || from.last_job() > kJobNumberMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello.last_job is ", from.last_job(), "; it must be in [0, 2^53]"));
  }
  if (DerivationOf(from) < plan::kOldestDerivation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "hello.derivation: ", DerivationOf(from), ": must be at least ", plan::kOldestDerivation,
        " for this coordinator; upgrade phalanx-worker on that node"));
  }
  RETURN_IF_ERROR(CheckTexts(from));
  WorkerHello hello{
      .node = from.node(),
      .incarnation = Incarnation{from.incarnation()},
      .last_command_number = from.last_command_number(),
      .device_kind = from.device_kind() == "gpu" ? job::DeviceKind::kGpu : job::DeviceKind::kCpu,
      .devices = from.devices(),
      .device_memory = {from.device_memory().begin(), from.device_memory().end()},
      .device_names = {from.device_names().begin(), from.device_names().end()},
      .host_memory = from.host_memory(),
      .labels = {from.labels().begin(), from.labels().end()},
      .derivation = DerivationOf(from),
      .gives_copies = from.gives_copies(),
      .version = from.version(),
      .address = from.address(),
      .store = from.store(),
      .last_job = JobId{from.last_job()}};
  if (from.has_check())
    hello.check =
        std::make_shared<const job::NodeCheck>(wire::FromProto(from.check(), kDevicesMax));
  for (const v1::RunningAssignment& running : from.running()) {
    hello.running.push_back({.job = JobId{running.job()}, .epoch = Epoch{running.epoch()}});
  }
  return hello;
}

std::optional<Event> EventFromProto(SessionId session, const v1::OpenSessionRequest& message,
                                    absl::Time received) {
  switch (message.message_case()) {
    case v1::OpenSessionRequest::kHeartbeat: {
      HeartbeatReceived event{.session = session, .draining = message.heartbeat().draining()};
      event.device_temperatures = Temperatures(message.heartbeat());
      event.device_used_memory = UsedMemory(message.heartbeat());
      if (message.heartbeat().has_check()) {
        event.check = std::make_shared<const job::NodeCheck>(
            wire::FromProto(message.heartbeat().check(), kDevicesMax));
      }
      if (message.heartbeat().has_examination())
        event.examination = std::make_shared<const job::NodeExamination>(
            wire::FromProto(message.heartbeat().examination(), received));
      for (const auto& preparing : message.heartbeat().preparing()) {
        event.preparing.push_back({.job = JobId{preparing.job()},
                                   .bytes_read = preparing.bytes_read(),
                                   .behind = JobId{preparing.behind()}});
      }
      for (const auto& progress : message.heartbeat().progress()) {
        event.progress.push_back({.job = JobId{progress.job()},
                                  .epoch = Epoch{progress.epoch()},
                                  .step = progress.step(),
                                  .work = WorkOf(progress),
                                  .waits = absl::Seconds(SecondsOf(progress.waits_seconds()))});
      }
      return event;
    }
    case v1::OpenSessionRequest::kCommandResult:
      return ResultFromProto(session, message.command_result());
    case v1::OpenSessionRequest::kRankReport:
      return ReportFromProto(session, message.rank_report());
    case v1::OpenSessionRequest::kHello:
    case v1::OpenSessionRequest::MESSAGE_NOT_SET:
      break;
  }
  return std::nullopt;
}

}  // namespace phalanx::coordinator
