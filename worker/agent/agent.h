// worker/agent/agent.h: the node daemon: the machine, and the world around it.
//
// One thread, the one that calls Run, feeds the machine and carries out its orders; it forks the
// ranks, so it must live as long as they may. The session's reactions, the data check and the log
// uploads run on threads of their own and leave events in the inbox.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/health.h"
#include "core/base/stall_watch.h"
#include "core/plan/derivation.h"
#include "core/wire/session_terms.h"
#include "grpcpp/channel.h"
#include "transport/tls.h"
#include "worker/agent/data_check.h"
#include "worker/agent/device_events.h"
#include "worker/agent/examiner.h"
#include "worker/agent/inbox.h"
#include "worker/agent/job_folders.h"
#include "worker/agent/log_upload.h"
#include "worker/agent/machine/machine.h"
#include "worker/agent/metrics_port.h"
#include "worker/agent/node_metrics.h"
#include "worker/agent/peer_trials.h"
#include "worker/agent/session.h"
#include "worker/agent/supervisor.h"

namespace phalanx::agent {

inline constexpr int32_t kDevicesMax = wire::kNodeDevicesMax;
inline constexpr uint32_t kProtocolVersion = wire::kProtocolVersion;

struct AgentOptions {
  std::string coordinator;          // HOST:PORT[,HOST:PORT...], of which one leads
  transport::TlsFiles tls;          // none: plaintext
  NodeName node;                    // at most 253 bytes of [A-Za-z0-9._-]
  std::string device_kind = "cpu";  // "cpu" or "gpu"
  int32_t devices = 1;
  std::vector<int64_t> device_memory;     // bytes of each device, 0: unknown; empty: of every one
  std::vector<std::string> device_names;  // as the driver calls them; empty: unknown of every one
  int64_t host_memory = 0;                // bytes that jobs may use beside devices; 0: unknown
  std::string state;                      // folder for logs and indexes; of one daemon at a time
  std::string rank_program;
  std::string address = "127.0.0.1";  // at which other nodes reach this one's ranks
  std::map<std::string, std::string> labels;
  JobFolders folders;      // of jobs
  std::string ready_file;  // is there while a session is open; empty: none
  std::string version;
  uint32_t protocol_version = kProtocolVersion;
  int32_t derivation = plan::kDerivation;  // that its ranks carry out; 0: it does not say
  int32_t threads = 1;                     // of a rank on CPU
  int64_t log_bytes_max = int64_t{64} << 20;
  int64_t log_rate = int64_t{4} << 20;  // bytes a second of the log of one rank; 0: no limit
  bool end_orphans = false;             // supervisor.h; for a process of its own
  std::string
      device_events;  // file that stands in for the driver; empty: NVML, where there are GPUs
  MetricsPortOptions metrics;
  // A daemon whose thread has not come round for so long is dead, as far as /livez says.
  absl::Duration silence_max = absl::Seconds(30);
  std::string check_faults;  // file that stands in for what checks find; empty: none
  // What an examination of the machine finds; nullptr: what core/examine does, with the folders.
  Examiner::Examine examine;
  MachineOptions machine;  // node, devices and seed are set from the above
};

// Errors: InvalidArgument naming the option.
absl::Status ValidateOptions(const AgentOptions& options);

class Agent {
 public:
  // Takes the state folder. Errors: InvalidArgument, AlreadyExists (another daemon has it),
  // Unavailable (also of the port for metrics).
  static absl::StatusOr<std::unique_ptr<Agent>> Create(const AgentOptions& options,
                                                       DataPreparer::Check check);

  // Serves until told to end: by Terminate, by SIGTERM or SIGINT where `signal_fd` (a signalfd) is
  // given, by the coordinator. OK: in good order. Errors: with which the coordinator refused it.
  absl::Status Run(int signal_fd = -1);

  // Asks Run to end in good order; the second time, at once. Thread-safe.
  void Terminate() { inbox_.Post(TerminationRequested{}); }
  // A data check, an examination of the machine or a trial with another node is under way, which a
  // destructor would wait for.
  bool busy() const {
    return preparer_.busy() || (examiner_.has_value() && examiner_->busy()) || peer_trials_.busy();
  }
  // HOST:PORT of the port for metrics; empty: there is none.
  std::string metrics_address() const;

 private:
  Agent(const AgentOptions& options, UniqueFd lock, DataPreparer::Check check);

  void Feed(const Event& event);
  void Wait(int signal_fd);
  void FeedWhatCame(int signal_fd, const std::vector<pollfd>& fds);
  // Leaves figures for whoever asks for metrics, now and then.
  // Of each device, -1: unknown; empty: of every one.
  std::vector<int64_t> UsedMemory() const;
  void LookAtDeviceWatch();
  void PutFigures();
  // Errors: as OpenMetricsPort.
  absl::Status OpenMetrics();
  void WriteReadyFile();
  void RemoveReadyFile();
  // What an examination found that this session has not been told of; nullopt: nothing.
  std::optional<v1::MachineExamination> NextExamination();
  // In the log, once, what keeps the coordinator from accepting our own.
  void TellOfCertificate();

  void Carry(const std::vector<Action>& actions);
  void Carry(const OpenSession& action);
  void Carry(const CloseSession& action) { session_.Close(action); }
  void Carry(const SendHeartbeat& action);
  void Carry(const SendCommandResult& action);
  void Carry(const SendReport& action);
  void Carry(const PrepareData& action) { preparer_.Carry(action); }
  void Carry(const CancelData& action) { preparer_.Carry(action); }
  void Carry(const UseStore& action);
  void Carry(const StartProcess& action);
  void Carry(const StartCheck& action) { CarryCheck(action); }
  void Carry(const LeaveCheck& action) { CarryCheck(action); }
  template <typename CheckOrder>
  void CarryCheck(const CheckOrder& action) {
    if (std::optional<CheckEnded> ended = supervisor_.Carry(action); ended.has_value())
      events_.push_back(*std::move(ended));
  }
  template <typename ProcessOrder>
  void Carry(const ProcessOrder& action) {
    supervisor_.Carry(action);
  }
  void Carry(const UploadLogs& action);
  void Carry(const TryPeer& action) { peer_trials_.Start(action); }
  void Carry(const Exit& action);
  void Carry(const LogLine& action);

  const AgentOptions options_;
  const UniqueFd lock_;  // of the state folder
  Inbox inbox_;
  LogActivity activity_;
  Machine machine_;
  StallWatch watch_;
  std::deque<Event> events_;  // to be fed, in order
  std::optional<Exit> exit_;
  std::string told_of_certificate_;  // what is wrong with our own, as the log has it
  SessionClient session_;
  Supervisor supervisor_;
  LogUploader uploader_;
  DataPreparer preparer_;
  PeerTrials peer_trials_;
  std::unique_ptr<DeviceEvents> device_events_;  // nullptr: there are none
  bool watches_devices_ = true;                  // as it was told
  std::optional<Examiner> examiner_;             // while it runs
  Examiner::Findings told_examination_;          // in this session; nullptr: none
  Instant session_asked_;                        // when the stream of the session was opened
  absl::Duration session_round_trip_;            // from then to its welcome
  Pulse pulse_;
  NodeBoard figures_;
  Instant figures_at_ = absl::InfinitePast();
  std::unique_ptr<transport::HttpServer> metrics_;  // nullptr: there is none. Ends before the above
};

}  // namespace phalanx::agent
