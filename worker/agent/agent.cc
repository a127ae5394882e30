#include "worker/agent/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/host_port.h"
#include "core/base/node_name.h"
#include "core/base/random_word.h"
#include "core/base/status.h"
#include "core/examine/examination.h"
#include "core/posix/whole_file.h"
#include "spdlog/spdlog.h"
#include "worker/agent/driver_deadline.h"
#include "worker/agent/job_folders.h"
#include "worker/agent/nvml.h"
#include "worker/agent/translate.h"

namespace phalanx::agent {
namespace {

// Wall time at the start of the process plus monotonic time since: deadlines survive a clock that
// is set.
Instant Now() {
  using std::chrono::steady_clock;
  static const absl::Time start = absl::Now();
  static const steady_clock::time_point begin = steady_clock::now();
  return start + absl::FromChrono(steady_clock::now() - begin);
}

MachineOptions MachineOptionsOf(const AgentOptions& options) {
  MachineOptions machine = options.machine;
  machine.node = options.node;
  machine.devices = options.devices;
  machine.seed = RandomWord();
  if (absl::StrContains(options.coordinator, ',')) {
    // While one coordinator follows another each is asked in turn, and one that hangs is left soon.
    machine.reconnect_delay_max = machine.reconnect_delay_late = absl::Milliseconds(500);
    machine.welcome_timeout = absl::Seconds(3);
  }
  return machine;
}

v1::WorkerHello HelloOf(const AgentOptions& options) {
  v1::WorkerHello hello;
  hello.set_node(options.node);
  hello.set_incarnation(RandomWord());
  hello.set_protocol_version(options.protocol_version);
  hello.set_device_kind(options.device_kind);
  hello.set_devices(options.devices);
  hello.mutable_device_memory()->Assign(options.device_memory.begin(), options.device_memory.end());
  hello.mutable_device_names()->Assign(options.device_names.begin(), options.device_names.end());
  hello.set_host_memory(options.host_memory);
  hello.set_gives_copies(true);
  hello.set_derivation(options.derivation);
  for (const auto& [key, value] : options.labels) (*hello.mutable_labels())[key] = value;
  hello.set_version(options.version);
  hello.set_address(options.address);
  return hello;
}

SupervisorOptions SupervisorOptionsOf(const AgentOptions& options) {
  return {.program = options.rank_program,
          .state = options.state,
          .device_kind = options.device_kind,
          .address = options.address,
          .folders = options.folders,
          .check_faults = options.check_faults,
          .threads = options.threads,
          .log_bytes_max = options.log_bytes_max,
          .log_rate = options.log_rate,
          .end_orphans = options.end_orphans};
}

Examiner::Examine ExamineOf(const AgentOptions& options) {
  if (options.examine != nullptr) return options.examine;
  examine::WorkerFacts worker{.has_address = options.address != "127.0.0.1"};
  if (options.device_kind == "gpu") {
    worker.gpus = options.devices;
    if (const auto names = GpusOfEnvironment(options.devices).VisibleNames())
      worker.visible_gpus = static_cast<int32_t>(names->size());
  }
  const auto common = [](const std::vector<std::string>& folders) {
    std::vector<std::string> parts;
    for (const std::string& folder : folders) parts.push_back(CommonPart(folder));
    return parts;
  };
  return [folders = examine::Folders{.read = common(options.folders.read),
                                     .write = common(options.folders.write),
                                     .state = options.state,
                                     .marked = true},
          worker] { return examine::ExamineNode(examine::ReadMachine(folders), worker); };
}

std::unique_ptr<DeviceEvents> DeviceEventsOf(const AgentOptions& options, Inbox& inbox) {
  if (!options.device_events.empty())
    return FollowDeviceFile(options.device_events, options.devices, inbox);
  if (options.device_kind != "gpu") return nullptr;
  const DriverDeadline deadline;
  auto events = FollowNvml(GpusOfEnvironment(options.devices), inbox);
  if (events.ok()) return *std::move(events);
  spdlog::warn("errors of the GPUs will not be seen: {}", std::string(events.status().message()));
  return nullptr;
}

}  // namespace

absl::Status ValidateOptions(const AgentOptions& options) {
  const auto invalid = [](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (options.coordinator.empty()) return invalid("--coordinator is needed: HOST:PORT");
  if (const absl::Status address = ParseHostPorts(options.coordinator, 1).status(); !address.ok()) {
    return invalid("--coordinator: ", address.message());
  }
  RETURN_IF_ERROR(transport::CheckTlsFiles(options.tls, "--tls-"));
  RETURN_IF_ERROR(CheckJobFolders(options.folders));
  RETURN_IF_ERROR(CheckMetricsPort(options.metrics));
  if (!IsHost(options.address)) {
    return invalid("--address is \"", absl::Utf8SafeCHexEscape(options.address),
                   "\"; it must be a name, an IPv4 address or an IPv6 address without brackets");
  }
  if (!IsNodeName(options.node)) {
    return invalid("--node is \"", absl::Utf8SafeCHexEscape(options.node), "\"; it must be 1 to ",
                   kNodeNameBytesMax, " of A-Z a-z 0-9 . _ -");
  }
  if (options.device_kind != "cpu" && options.device_kind != "gpu") {
    return invalid("--device is \"", absl::Utf8SafeCHexEscape(options.device_kind),
                   "\"; it must be cpu or gpu");
  }
  if (options.devices < 1 || options.devices > kDevicesMax) {
    return invalid("--devices is ", options.devices, "; it must be 1 to ", kDevicesMax);
  }
  if (options.state.empty()) return invalid("--state is needed: a folder");
  if (options.threads < 1)
    return invalid("--threads is ", options.threads, "; it must be at least 1");
  if (access(options.rank_program.c_str(), X_OK) != 0) {
    return invalid("--rank-program is ", options.rank_program,
                   "; it cannot be executed: ", strerror(errno));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(const AgentOptions& options,
                                                     DataPreparer::Check check) {
  RETURN_IF_ERROR(ValidateOptions(options));
  std::error_code error;
  std::filesystem::create_directories(options.state, error);
  const std::string path = absl::StrCat(options.state, "/lock");
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640));
  if (!lock.is_open()) {
    return absl::UnavailableError(
        absl::StrCat("cannot write to --state: ", path, ": ", strerror(errno)));
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("another worker uses --state ", options.state));
  }
  std::unique_ptr<Agent> agent(new Agent(options, std::move(lock), std::move(check)));
  RETURN_IF_ERROR(agent->OpenMetrics());
  return agent;
}

Agent::Agent(const AgentOptions& options, UniqueFd lock, DataPreparer::Check check)
    : options_(options),
      lock_(std::move(lock)),
      machine_(MachineOptionsOf(options), Now()),
      watch_(Now()),
      session_([coordinator = options.coordinator,
                tls = options.tls] { return ConnectTo(coordinator, tls); },
               HelloOf(options), inbox_),
      supervisor_(SupervisorOptionsOf(options), activity_),
      uploader_(options.state, activity_),
      preparer_(std::move(check), inbox_),
      peer_trials_({.address = options.address}, inbox_),
      device_events_(DeviceEventsOf(options, inbox_)),
      pulse_("the daemon", options.silence_max, Now()) {}

absl::Status Agent::OpenMetrics() {
  if (options_.metrics.address.empty()) return absl::OkStatus();
  PutFigures();
  const auto metrics = [this] {
    NodeFigures figures = figures_.Get();
    figures.certificates = transport::ExpiriesOf(
        {{"tls", options_.tls.certificate}, {"metrics", options_.metrics.tls.certificate}});
    return MetricsText(figures, UsageOfThisProcess(), Now());
  };
  const auto live = [this] { return Health{{"daemon", pulse_.Alive(Now())}}; };
  const auto ready = [this] {
    const MachineFigures machine = figures_.Get().machine;
    const absl::Status away = absl::UnavailableError("the coordinator has not let the node in");
    const absl::Status ends = absl::UnavailableError("the daemon is to end");
    return Health{{"daemon", pulse_.Alive(Now())},
                  {"session", machine.session_open ? absl::OkStatus() : away},
                  {"drain", machine.draining ? ends : absl::OkStatus()}};
  };
  ASSIGN_OR_RETURN(metrics_, OpenMetricsPort(options_.metrics, metrics, live, ready));
  spdlog::info("node={} metrics at {}", options_.node, metrics_address());
  return absl::OkStatus();
}

std::string Agent::metrics_address() const {
  if (metrics_ == nullptr) return "";
  return absl::StrCat(ParseHostPort(options_.metrics.address, 0)->host, ":", metrics_->port());
}

std::vector<int64_t> Agent::UsedMemory() const {
  if (options_.device_kind == "cpu") return supervisor_.ResidentBytes(options_.devices);
  return device_events_ == nullptr ? std::vector<int64_t>() : device_events_->UsedMemory();
}

void Agent::LookAtDeviceWatch() {
  const bool answers = device_events_ != nullptr && device_events_->Answers();
  if (options_.device_kind != "gpu" || answers == watches_devices_) return;
  watches_devices_ = answers;
  if (answers) {
    spdlog::info("the driver of the GPUs answers again");
  } else if (device_events_ != nullptr) {
    spdlog::warn("the driver of the GPUs has not answered for {}: their errors are not seen",
                 absl::FormatDuration(kDriverSilence));
  }
}

void Agent::PutFigures() {
  const Instant now = Now();
  if (options_.metrics.address.empty() || now - figures_at_ < StallWatch::kTick) return;
  figures_at_ = now;
  NodeFigures figures{.machine = machine_.Figures(),
                      .log_bytes = supervisor_.log_bytes(),
                      .log_bytes_dropped = supervisor_.log_bytes_dropped(),
                      .log_bytes_sent = uploader_.bytes_sent(),
                      .strangers = supervisor_.strangers(),
                      .memory_bytes = options_.device_memory};
  figures.memory_used_bytes = UsedMemory();
  if (options_.device_kind == "gpu") figures.device_watch = watches_devices_;
  if (device_events_ != nullptr) figures.celsius = device_events_->Temperatures();
  figures_.Put(std::move(figures));
}

absl::Status Agent::Run(int signal_fd) {
  RemoveReadyFile();  // of a daemon before this one
  examiner_.emplace(ExamineOf(options_));
  while (!exit_.has_value()) {
    Wait(signal_fd);
    activity_.Tick();
  }
  activity_.Close();
  RemoveReadyFile();
  spdlog::info("node={} exits reason=\"{}\"", options_.node, exit_->reason);
  if (exit_->status.ok()) return absl::OkStatus();
  return absl::Status(exit_->status.code(), exit_->reason);
}

// Returns when something happened that was fed, or a deadline has come. What has come in when the
// wait begins is fed before anybody is judged as of then.
void Agent::Wait(int signal_fd) {
  const Instant read_until = Now();
  pulse_.Beat(read_until);
  LookAtDeviceWatch();
  PutFigures();
  std::vector<pollfd> fds = {{signal_fd, POLLIN, 0}, {inbox_.fd(), POLLIN, 0}};
  supervisor_.AddTo(fds);
  // Rounded up: a deadline that has not quite come would be waited for again and again.
  const absl::Duration left =
      std::clamp(machine_.NextDeadline() - Now(), absl::ZeroDuration(), StallWatch::kTick);
  const int ready =
      poll(fds.data(), fds.size(), static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  if (ready > 0) FeedWhatCame(signal_fd, fds);
  for (const Event& event : supervisor_.LookAtBeats()) Feed(event);
  Feed(DeadlineReached{read_until});
}

void Agent::FeedWhatCame(int signal_fd, const std::vector<pollfd>& fds) {
  if (fds[0].revents != 0) {
    signalfd_siginfo info;
    if (read(signal_fd, &info, sizeof(info)) == sizeof(info)) Feed(TerminationRequested{});
  }
  if (fds[1].revents != 0) {
    for (const Event& event : inbox_.TakeAll()) Feed(event);
  }
  for (const Event& event : supervisor_.HandleReady(fds)) Feed(event);
}

void Agent::Feed(const Event& event) {
  if (std::holds_alternative<SessionWelcomed>(event)) {
    WriteReadyFile();
    session_round_trip_ = Now() - session_asked_;
    told_examination_.reset();
    if (examiner_.has_value()) examiner_->Ask();
  }
  if (std::holds_alternative<SessionClosed>(event)) {
    RemoveReadyFile();
    TellOfCertificate();
  }
  // The machine may be why.
  const auto* prepared = std::get_if<DataPrepared>(&event);
  if (prepared != nullptr && !prepared->outcome.status.ok() && examiner_.has_value())
    examiner_->Ask();
  events_.push_back(event);
  while (!events_.empty()) {
    const Event next = std::move(events_.front());
    events_.pop_front();
    const Instant now = Now();
    const absl::Duration stall = watch_.Look(now);
    if (stall > absl::ZeroDuration()) Carry(machine_.Step(now, Stalled{stall}));
    Carry(machine_.Step(now, next));
  }
}

// A coordinator turns away whoever shows such a certificate, and says no more than that.
void Agent::TellOfCertificate() {
  const absl::Status holds = transport::CheckHolds(options_.tls, "--tls-", absl::Now());
  const std::string fault(holds.message());
  if (!fault.empty() && fault != told_of_certificate_)
    spdlog::warn("node={} {}", options_.node, fault);
  told_of_certificate_ = fault;
}

void Agent::Carry(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    std::visit([this](const auto& body) { Carry(body); }, action);
  }
}

void Agent::Carry(const OpenSession& action) {
  session_asked_ = Now();
  session_.Open(action);
}

void Agent::Carry(const SendHeartbeat& action) {
  const std::vector<int32_t> temperatures =
      device_events_ == nullptr ? std::vector<int32_t>() : device_events_->Temperatures();
  v1::OpenSessionRequest message =
      MessageOf(action, preparer_.UnderWay(), temperatures, UsedMemory());
  if (std::optional<v1::MachineExamination> examination = NextExamination())
    *message.mutable_heartbeat()->mutable_examination() = *std::move(examination);
  session_.Send(std::move(message));
}

// What breaks with the stream before it is written is told again in the next session.
std::optional<v1::MachineExamination> Agent::NextExamination() {
  Examiner::Findings last = examiner_.has_value() ? examiner_->Last() : nullptr;
  if (last == told_examination_) return std::nullopt;
  told_examination_ = std::move(last);
  // Not the clock of deadlines, which goes on where the system's is set.
  return MessageOf(*told_examination_, absl::Now(), session_round_trip_);
}

void Agent::Carry(const SendCommandResult& action) { session_.Send(MessageOf(action)); }
void Agent::Carry(const SendReport& action) { session_.Send(MessageOf(action)); }

void Agent::Carry(const UseStore& action) {
  RemoveOtherStores(options_.state, action.store);
  RemoveOldLogs(StoreFolder(options_.state, action.store), activity_.LiveJobs());
}

void Agent::Carry(const StartProcess& action) {
  std::vector<JobId> keep = activity_.LiveJobs();
  keep.push_back(action.job);
  RemoveOldLogs(StoreFolder(options_.state, action.store), keep);
  events_.push_back(supervisor_.Carry(action));
}

void Agent::Carry(const UploadLogs& action) {
  events_.push_back(UploadStarted{action.command_number,
                                  uploader_.Start(session_.Aside(), action.store, action.fetch)});
}

void Agent::Carry(const Exit& action) { exit_ = action; }

void Agent::Carry(const LogLine& action) { spdlog::info("node={} {}", options_.node, action.text); }

void Agent::RemoveReadyFile() {
  std::error_code ignored;  // most often there is none
  if (!options_.ready_file.empty()) std::filesystem::remove(options_.ready_file, ignored);
}

void Agent::WriteReadyFile() {
  if (options_.ready_file.empty()) return;
  const absl::Status written = WriteWholeFile(
      options_.ready_file,
      absl::StrCat(
          "{\"pid\": ", getpid(), ", \"node\": \"", options_.node, "\"",
          metrics_ == nullptr ? "" : absl::StrCat(", \"metrics\": \"", metrics_address(), "\""),
          "}\n"));
  if (!written.ok()) spdlog::error("--ready-file: {}", std::string(written.message()));
}

}  // namespace phalanx::agent
