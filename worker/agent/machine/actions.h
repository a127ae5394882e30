// worker/agent/machine/actions.h: what the node daemon's machine asks of the world, one struct an
// order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "core/base/ids.h"
#include "core/job/failure.h"
#include "core/job/node_check.h"
#include "worker/agent/machine/events.h"

namespace phalanx::agent {

struct RunningAssignment {
  JobId job;
  Epoch epoch;
  friend bool operator==(const RunningAssignment&, const RunningAssignment&) = default;
};
// How long a rank's device works for a step, as the rank said last.
struct RankWork {
  int32_t rank = 0;
  double seconds = 0;
  uint64_t equal = 0;            // that of ranks which do the same
  double seconds_per_gflop = 0;  // as Heartbeat.Work
  uint64_t like = 0;             // likewise
  friend bool operator==(const RankWork&, const RankWork&) = default;
};
struct Progress {
  JobId job;
  Epoch epoch;
  int64_t step = 0;
  std::vector<RankWork> work;  // of ranks of which it is known
  // For so long at least each rank here that is not done has stood in one and the same wait for
  // its device or for other ranks; zero: some does not.
  absl::Duration waits = absl::ZeroDuration();
  friend bool operator==(const Progress&, const Progress&) = default;
};

// Connect and say hello. Answered with SessionWelcomed or SessionClosed.
struct OpenSession {
  SessionNumber session;
  uint64_t last_command_number = 0;
  std::vector<RunningAssignment> running;
  uint64_t store = 0;                           // that these are of; 0: none is known
  JobId last_job;                               // the highest number seen
  std::shared_ptr<const job::NodeCheck> check;  // nullptr: none was made
};
// Write what was sent before, then end the stream. Answered with SessionClosed.
struct CloseSession {
  SessionNumber session;
};
// The Send orders are each confirmed with one MessageWritten, in order.
struct SendHeartbeat {
  std::vector<Progress> progress;
  bool draining = false;
  std::shared_ptr<const job::NodeCheck> check;  // nullptr: nothing new
};
struct SendCommandResult {
  uint64_t command_number = 0;
  absl::Status status;
  // Set for PrepareData.
  std::shared_ptr<const DataOutcome> data;
  // Of an Assign that is refused for it: the last epoch of the job that was seen here.
  Epoch epoch_seen;
  std::string listens_at = "";  // of a TryPeer that listens
};
// The process is dead; how it ended is told by its RankExit.
struct RankDeath {};
struct RankExit {
  int32_t exit_code = 0;
  int32_t signal = 0;
  bool expected = false;
  std::string log_tail;
};
// Why the daemon kills a process that nobody had asked to end.
struct RankFault {
  std::string message;
  job::FailureKind kind = job::FailureKind::kRankError;
};
// An event of the job.
struct RankNote {
  std::string type;
  std::string message;
};
// A rank without a process that has run the epoch, or ever will: it keeps nothing of it.
struct RankNeverRan {};
struct SendReport {
  JobId job;
  Epoch epoch;
  int32_t rank = 0;
  // A RankReport whose job, epoch and rank are to be replaced by these, what is wrong with its
  // process or its device, that it has none, or the end of it.
  std::variant<std::string, RankFault, RankNote, RankNeverRan, RankDeath, RankExit> report;
};

// From now on all jobs are of this store; nothing is kept for others.
struct UseStore {
  uint64_t store = 0;
};
struct PrepareData {
  RequestNumber request;
  JobId job;
  Document document;
  bool choose_checkpoint = false;
};
// Nobody wants it any more; DataPrepared may come all the same.
struct CancelData {
  RequestNumber request;
};
inline constexpr int32_t kNoDevice = -1;
// Answered with ProcessStarted; after a good start comes exactly one ProcessExited.
struct StartProcess {
  ProcessNumber process;
  JobId job;
  Epoch epoch;
  int32_t rank = 0;
  int32_t device = 0;                           // kNoDevice: it is to have none
  uint64_t store = 0;                           // that the job is of
  std::shared_ptr<const AssignCommand> assign;  // never empty: of it the document
};
struct SendRunEpoch {
  ProcessNumber process;
  std::shared_ptr<const AssignCommand> assign;
  int32_t rank = 0;
  int32_t device = 0;
  std::string index_path, validation_index_path;
  uint64_t store = 0;
  bool beside = false;  // it runs an epoch, which it leaves once it is connected for this one
  bool keeps = false;   // it is no rank: it gives copies of state to those of other nodes, and ends
};
// As SendRunEpoch, of an epoch that is over: the process makes ready what it would need for it.
// Answered with RankWarmed.
struct SendWarmUp {
  ProcessNumber process;
  std::shared_ptr<const AssignCommand> assign;
  int32_t rank = 0;
  int32_t device = 0;
  std::string index_path, validation_index_path;
  uint64_t store = 0;
};
struct SendBeginEpoch {
  ProcessNumber process;
  std::string payload;
};
struct SendRendezvous {
  ProcessNumber process;
  std::string payload;
};
struct SendPublish {
  ProcessNumber process;
  std::string payload;
};
struct SendWriteIncident {
  ProcessNumber process;
  std::string payload;
};
struct SendWish {
  ProcessNumber process;
  std::string payload;
};
struct SendPrepareStandby {
  ProcessNumber process;
  std::string payload;
};
struct SendFault {
  ProcessNumber process;
  job::InjectedFault fault;
};
struct SendStopEpoch {
  ProcessNumber process;
  Epoch epoch;
};
struct SendQuit {
  ProcessNumber process;
  std::string reason;
};
struct TerminateProcess {  // SIGTERM
  ProcessNumber process;
};
struct KillProcess {  // SIGKILL, to the whole process group
  ProcessNumber process;
};
// A process that checks these devices one after the other. Answered with CheckEnded.
struct StartCheck {
  CheckNumber check;
  std::vector<int32_t> devices;
};
struct KillCheck {
  CheckNumber check;
};
// It was killed and does not end: do not wait for it. Answered with CheckEnded, and once more when
// it has ended after all.
struct LeaveCheck {
  CheckNumber check;
};
// Nothing of the job runs here any more: neither do its ranks need their copies of state.
struct FreeHostMemory {
  JobId job;  // 0: of all
};
// Answered with UploadStarted.
struct UploadLogs {
  uint64_t command_number = 0;
  FetchLogsCommand fetch;
  uint64_t store = 0;  // that the job is of
};
// Answered with PeerTried.
struct TryPeer {
  uint64_t command_number = 0;
  Incarnation of;  // the coordinator that asks
  std::string word;
  std::string peer;  // as TryPeerCommand's
};
// The daemon is done. Nothing follows.
struct Exit {
  absl::Status status;  // OK: in good order
  std::string reason;
};
// A decision in one line, for the log.
struct LogLine {
  std::string text;
};

using Action =
    std::variant<OpenSession, CloseSession, SendHeartbeat, SendCommandResult, SendReport, UseStore,
                 PrepareData, CancelData, StartProcess, SendRunEpoch, SendWarmUp, SendBeginEpoch,
                 SendRendezvous, SendPublish, SendWriteIncident, SendWish, SendPrepareStandby,
                 SendFault, SendStopEpoch, SendQuit, TerminateProcess, KillProcess, StartCheck,
                 KillCheck, LeaveCheck, FreeHostMemory, UploadLogs, TryPeer, Exit, LogLine>;

}  // namespace phalanx::agent
