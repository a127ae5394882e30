// worker/agent/machine/events.h: what the world tells the node daemon's machine, one struct a fact.
//
// Words: a *session* is one stream to the coordinator; the daemon opens another when it breaks. A
// *process* is one rank process, numbered by the machine from 1 and never again; it may serve
// several epochs of its job, as a different rank in each. Payloads are encoded messages of
// proto/phalanx/v1 that the machine passes on without reading them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/base/time.h"
#include "core/base/violation.h"
#include "core/job/data_shape.h"
#include "core/job/injected_fault.h"
#include "core/job/node_check.h"
#include "worker/agent/machine/xid.h"

namespace phalanx::agent {

using SessionNumber = StrongId<struct SessionTag, uint64_t>;  // from 1; 0: none
using ProcessNumber = StrongId<struct ProcessTag, int64_t>;   // from 1; 0: none
using CheckNumber = StrongId<struct CheckTag, uint64_t>;      // from 1; 0: none
using RequestNumber = StrongId<struct RequestTag, uint64_t>;  // of work on another thread

struct Document {
  std::string text;
  std::string directory;
  std::string owner;  // of the job; empty: not known
  friend bool operator==(const Document&, const Document&) = default;
};
struct NodeDevices {
  NodeName node;
  std::vector<int32_t> devices;
};

struct PrepareDataCommand {
  JobId job;
  Document document;
  bool choose_checkpoint = false;
};
struct AssignCommand {
  JobId job;
  Epoch epoch;
  Document document;
  // Ranks are numbered through the nodes in order.
  std::vector<NodeDevices> placement;
  // Those whose device is gone or has no work in this epoch: no process is started for them.
  std::set<int32_t> without_work;
  bool writes_checkpoints = false;  // at an early end too
  bool goes_on = false;             // from the state of an earlier epoch: until it begins, what the
                                    // ranks of that one have said may be asked for again
  bool beside = false;              // processes leave that one by themselves, once connected
  std::set<int32_t> keepers;  // places without work whose nodes give copies of state to others
  std::string payload;        // Assign
};
struct BeginEpochCommand {
  JobId job;
  Epoch epoch;
  std::string payload;  // BeginEpoch
};
struct RendezvousCommand {
  JobId job;
  Epoch epoch;
  std::string payload;  // Rendezvous
};
struct StopCommand {
  JobId job;
  Epoch epoch;  // and older
  absl::Duration grace;
  std::string reason;
};
struct FetchLogsCommand {
  std::string fetch_id;
  JobId job;
  std::vector<int32_t> ranks;  // empty: all
  bool follow = false;
  bool ended = false;  // the job has; its processes may still be ending
  int32_t tail = 0;    // lines of each rank; 0: all that is kept
  // LogReader::place() of before, by rank: after it to go on, whatever `tail` says.
  std::map<int32_t, std::string> after;
};
struct PublishCommand {
  JobId job;
  Epoch epoch;
  int32_t rank = 0;
  std::string payload;  // PublishCheckpoint
};
struct WriteIncidentCommand {
  JobId job;
  Epoch epoch;
  int32_t rank = 0;
  std::string payload;  // WriteIncident
};
struct WishCommand {
  JobId job;
  Epoch epoch;
  std::string payload;  // Wish
};
struct PrepareStandbyCommand {
  JobId job;
  Epoch epoch;
  std::string payload;  // PrepareStandby
};
struct InjectCommand {
  JobId job;
  Epoch epoch;
  job::InjectedFault fault;
};
struct TryPeerCommand {
  std::string word;
  std::string peer;  // HOST:PORT of the other one, in numbers; empty: this one listens
};
struct UnknownCommand {};  // of a newer coordinator
using Command = std::variant<UnknownCommand, PrepareDataCommand, AssignCommand, BeginEpochCommand,
                             RendezvousCommand, StopCommand, FetchLogsCommand, PublishCommand,
                             WriteIncidentCommand, WishCommand, PrepareStandbyCommand,
                             InjectCommand, TryPeerCommand>;

struct SessionWelcomed {
  SessionNumber session;
  absl::Duration heartbeat_interval;
  Incarnation coordinator;
  uint64_t store = 0;  // identity of its store; 0: it has none
};
struct CommandReceived {
  SessionNumber session;
  uint64_t command_number = 0;
  Command command;
};
// The oldest message that the machine sent and that was not yet confirmed has left this process.
struct MessageWritten {
  SessionNumber session;
};
struct GoodbyeReceived {
  SessionNumber session;
  std::string reason;
};
struct SessionClosed {
  SessionNumber session;
  absl::Status status;
};

// The answer to StartProcess: the process runs, or why it does not.
struct ProcessStarted {
  ProcessNumber process;
  absl::Status status;
};
struct RankHelloReceived {
  ProcessNumber process;
};
// It has made ready what it was told to, or has given up.
struct RankWarmed {
  ProcessNumber process;
};
enum class ReportKind : uint8_t {
  kStep,   // the newest are kept
  kEvent,  // sent once
  // Of an epoch that its process may have left meanwhile; else as kOther.
  kPublished,
  kOther,  // repeating it is harmless: sent again to a coordinator that may have missed it
};
enum class RankOutcome : uint8_t {
  kNone,       // it goes on
  kSucceeded,  // it has done its last step
  kFailed,     // for a reason of its own
};
struct RankReported {
  ProcessNumber process;
  Epoch epoch;  // as the rank wrote it; a report of an epoch that the rank has left is dropped
  ReportKind kind = ReportKind::kOther;
  std::string payload;  // RankReport
  RankOutcome outcome = RankOutcome::kNone;
};
struct RankProgressed {
  ProcessNumber process;
  Epoch epoch;
  int64_t step = 0;
  absl::Duration took = absl::ZeroDuration();  // the step; zero: not known
  double work_seconds = 0;                     // that its device works for one; 0: not known
  uint64_t equal_work = 0;                     // that of ranks which do the same; 0: not known
  double work_seconds_per_gflop = 0;           // as Heartbeat.Work; 0: not known
  uint64_t like_work = 0;                      // likewise
};
// The process has come to where the fault that it keeps is to come about.
struct FaultReached {
  ProcessNumber process;
};
struct EpochStopped {
  ProcessNumber process;
  Epoch epoch;
};
// Nothing more can be read from or written to the process: it closed its channel or broke its
// rules.
struct ChannelFailed {
  ProcessNumber process;
  std::string reason;
};
// The process is not stopped: it has run since it was last looked at.
struct ProcessRan {
  ProcessNumber process;
  bool stands_still = false;  // its training works at what it worked at then
  // Its training waits for its device or other ranks, and has all the time since.
  bool waits = false;
};
// Its exit is still to come: it holds its device until then. Comes after everything that the
// process sent, and not of every process.
struct ProcessDied {
  ProcessNumber process;
};
// Reaped, and its process group ended with it. Comes after everything that the process sent.
struct ProcessExited {
  ProcessNumber process;
  int32_t exit_code = 0;
  int32_t signal = 0;  // 0: it ended by itself
  std::string log_tail;
};

// The driver of a device reported an error, by its number (xid.h).
struct DeviceFaulted {
  int32_t device = 0;
  int32_t xid = 0;
  RecoveryAction action = RecoveryAction::kUnknown;  // of kRecoveryActionChanged
};

// The process of a check has said what it found: it is not at the device any more at which it was.
struct CheckProgressed {
  CheckNumber check;
};
// The answer to StartCheck: its process is gone, or never was there; or to LeaveCheck.
struct CheckEnded {
  CheckNumber check;
  std::vector<job::DeviceCheck> devices;  // those that it had done with, in order; without a time
  std::optional<job::LoopbackCheck> loopback;
  absl::Status status;  // OK: it has done all
  bool left = false;    // its process is still there
  // Since it said something last, of the time until it was killed: it could run and others did.
  absl::Duration starved;
};

// The checkpoint that a job is to go on from.
struct CheckpointChoice {
  std::string path;  // absolute; empty: there is none
  std::string manifest_digest;
  int64_t step = 0;
  std::vector<std::string> passed_over;  // newer ones that are not sound, each with its reason
};
// What a job's shards are, or what is wrong with them.
struct DataOutcome {
  absl::Status status;
  std::string digest;  // of the indexes of both sets
  std::vector<Violation> violations;
  int64_t corrupt_samples = 0, corrupt_max = 0;  // found while indexing; what the job allows
  std::vector<std::string> corrupt_messages;
  std::string index_path, validation_index_path;  // empty: there is none
  std::optional<CheckpointChoice> checkpoint;     // where it was asked for and the job resumes
  std::optional<job::DataShape> shape;            // of the training set, where its index is good
};
struct DataPrepared {
  RequestNumber request;
  DataOutcome outcome;
};

// A data set that is being prepared, or is to be.
struct Preparing {
  JobId job;
  // Read of it so far; while it waits, of those that it waits for. Stands still where storage does.
  int64_t bytes_read = 0;
  JobId behind;  // 0: it does not wait
};

// The answer to UploadLogs: the upload is under way, or why it is not.
struct UploadStarted {
  uint64_t command_number = 0;
  absl::Status status;
};

// The answer to TryPeer.
struct PeerTried {
  uint64_t command_number = 0;
  Incarnation of;  // that of the order
  absl::Status status;
  std::string listens_at;  // HOST:PORT in numbers; empty: it does not
};

// The user wants the daemon to end; the second time, at once.
struct TerminationRequested {};
// Deadlines are judged as of `read_until`: all that came in before it has been fed, and what came
// later may be waiting still.
struct DeadlineReached {
  Instant read_until = absl::InfiniteFuture();
};
// This process did not run for so long. Comes before anything that waited meanwhile.
struct Stalled {
  absl::Duration duration;
};

using Event =
    std::variant<SessionWelcomed, CommandReceived, MessageWritten, GoodbyeReceived, SessionClosed,
                 ProcessStarted, RankHelloReceived, RankWarmed, RankReported, RankProgressed,
                 FaultReached, EpochStopped, ChannelFailed, ProcessRan, ProcessDied, ProcessExited,
                 DeviceFaulted, CheckProgressed, CheckEnded, DataPrepared, UploadStarted, PeerTried,
                 TerminationRequested, DeadlineReached, Stalled>;

}  // namespace phalanx::agent
