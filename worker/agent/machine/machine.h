// worker/agent/machine/machine.h: every decision of a node's daemon, and nothing else.
//
// A deterministic state machine of the same shape as the coordinator's. The shell around it feeds
// one Event at a time with the instant at which it was observed, carries out the returned Actions
// in order, and feeds DeadlineReached when NextDeadline() has come. The machine holds no thread,
// file, socket or clock; its only randomness is options.seed.
//
// Session. The daemon keeps one session to the coordinator and opens another, after a jittered and
// growing delay, when it breaks; ranks train on meanwhile and what they report is kept
// (report_buffer.h). It ends with an error when the coordinator says that another process has
// taken its place (ABORTED), that another live one has its name (ALREADY_EXISTS), or that it is not
// served (INVALID_ARGUMENT, FAILED_PRECONDITION).
//
// Commands. A number that was seen before is answered again if its answer exists, and otherwise
// left to the work that is under way. A coordinator process of which nothing is known starts
// afresh.
//
// Stores. Jobs are numbered within one store of a coordinator. At the welcome of a coordinator with
// another store the ranks of the one before are ended and everything known of its jobs is
// forgotten, logs included.
//
// Epochs. Of each job only the highest epoch seen is obeyed; older commands are refused with
// ABORTED. A stopped epoch is as good as an older one. An assignment of a newer epoch takes over
// the live processes of the job on its devices: they leave their epoch (SendStopEpoch) and run the
// next in whatever rank the plan gives them; processes that it does not want are ended.
//
// Deaths. A rank that ends before its work is done ends the epoch for all: those of its job on this
// node are told to leave it at once (SendStopEpoch) and wait for another. The death is reported
// when it is known (ProcessDied), the exit once the process is reaped.
//
// Stopped processes. One that does not run at all (ProcessRan) for longer than anything in its
// steps explains is killed and reported as hung: whatever it would wait for, it would run
// meanwhile. So is one that runs and whose training works at one and the same for as long, without
// waiting for anybody.
//
// Copies of state. A node without work in an epoch may have copies of state that its ranks need.
// Where the coordinator wants them, a process without a device gives them to ranks of other nodes,
// under the number of a place of this node. It is started with the assignment, told what ranks are
// told, and ends by itself; another assignment, or a stop, ends it. What becomes of it is no
// rank's.
//
// Ending a process: Quit, then SIGTERM, then SIGKILL to its process group at the end of the grace
// time. A device goes to another job's process only after the one before was reaped.
//
// Checks. A device that no process has and none waits for is checked when the node has joined, and
// again every options.check_interval while it is idle. A device that is wanted meanwhile ends the
// check at once, and its process starts when the check is gone. A check that does not even end when
// it is killed is left to itself: the device that it was at has failed and runs nothing until the
// check is gone, the others are free.
//
// Draining: the daemon ends on request, and says so first. Ranks whose job writes checkpoints then
// go on until the coordinator, which lets the job end with one, has them stopped, or until most of
// the grace time is over; other ranks are ended at once.
//
// Deadlines. Nobody is judged late before everything that came in by the deadline has been fed:
// only DeadlineReached says so, and every other event leaves them alone.
//
// Not thread-safe: one thread owns the machine.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/base/prng.h"
#include "core/base/step_times.h"
#include "core/base/time.h"
#include "worker/agent/machine/actions.h"
#include "worker/agent/machine/events.h"
#include "worker/agent/machine/figures.h"
#include "worker/agent/machine/report_buffer.h"
#include "worker/agent/machine/xid_history.h"

namespace phalanx::agent {

// For the log: code and message, whatever else the status carries, without line breaks.
std::string OneLine(const absl::Status& status);

struct MachineOptions {
  NodeName node;
  int32_t devices = 0;
  uint64_t seed = 0;
  // A session without a welcome for so long is given up.
  absl::Duration welcome_timeout = absl::Seconds(10);
  absl::Duration reconnect_delay_min = absl::Milliseconds(100);
  // A coordinator that restarts has the node, and what its ranks did, about as soon.
  absl::Duration reconnect_delay_max = absl::Seconds(1);
  // After as many failures in a row as a minute has: there is none, or it has more nodes than it
  // can greet at once.
  int32_t reconnect_failures_soon = 80;
  absl::Duration reconnect_delay_late = absl::Seconds(5);
  // Between Quit and SIGTERM, at most half of the grace time.
  absl::Duration quit_grace = absl::Seconds(2);
  // Of the ranks, when the daemon ends or a newer epoch leaves them out.
  absl::Duration shutdown_grace = absl::Seconds(30);
  // Of that, what remains for ranks that were to end with a checkpoint and have not; at most half.
  absl::Duration ending_grace = absl::Seconds(5);
  // A process that does not say hello, or does not leave its epoch, in so long is killed.
  absl::Duration hello_timeout = absl::Seconds(120);
  absl::Duration stop_epoch_timeout = absl::Seconds(20);
  // Of one that warms up beside training; it is killed, and its device counts as cold.
  absl::Duration warm_up_timeout = absl::Minutes(2);
  // A process that is dead, and still to be reaped, is killed once more.
  absl::Duration reap_timeout = absl::Seconds(30);
  // A process that has not run for so long is killed: the longer of these, 10 times as long as
  // nearly all of its steps took; before it has done steps, the second.
  absl::Duration hang_timeout_min = absl::Seconds(5);
  absl::Duration hang_timeout_start = absl::Seconds(30);
  // Of one that runs and trains and has done no step by which its work could be measured.
  absl::Duration standstill_timeout_start = absl::Minutes(10);
  // Of one that did steps in an earlier epoch, and none in this one.
  absl::Duration standstill_timeout_recovery = absl::Seconds(30);
  // A process whose training stands still while another is dead and still to be reaped has at least
  // so long: the driver takes the dead one's memory apart and makes others wait, for seconds where
  // much of the host's is pinned.
  absl::Duration teardown_timeout = absl::Seconds(60);
  // A process that has closed its channel has so long to end.
  absl::Duration channel_grace = absl::Seconds(5);
  // Between checks of an idle device; infinite: there are none.
  absl::Duration check_interval = absl::InfiniteDuration();
  // A device that its process left is idle after so long.
  absl::Duration check_delay = absl::Seconds(5);
  // Of each device in a check. What does not answer in so long has failed.
  absl::Duration check_timeout = absl::Minutes(2);
  // A check that has not ended in so long of its kill is left to itself.
  absl::Duration check_leave_delay = absl::Seconds(10);
  // Reports on their way to the coordinator at a time.
  int32_t reports_in_flight_max = 64;
};

class Machine {
 public:
  static constexpr size_t kResultsMax = 256;  // answers kept for a coordinator that asks again
  static constexpr size_t kJobsRememberedMax = 4096;  // jobs whose highest epoch is remembered
  // Jobs whose data is known to be prepared, beside those that are assigned.
  static constexpr size_t kOutcomesMax = 64;

  Machine(const MachineOptions& options, Instant start);

  // Applies `event`, observed at `now`, and returns what to do about it. `now` never decreases.
  // Total: an event that no longer applies changes nothing.
  [[nodiscard]] std::vector<Action> Step(Instant now, const Event& event);

  // The earliest instant at which DeadlineReached would change anything.
  Instant NextDeadline() const;

  // As of the last Step.
  MachineFigures Figures() const;

 private:
  enum class SessionState : uint8_t { kClosed, kOpening, kOpen, kClosing };
  enum class ProcessState : uint8_t {
    kStarting,  // no hello yet
    kIdle,      // waits for RunEpoch
    kRunning,   // in `epoch` as `rank`
    kStopping,  // told to leave its epoch
    kEnding,    // told to end
    kDead,      // and still to be reaped; nobody had told it to end
  };
  struct Process {
    JobId job;  // 0: of a store that is not served any more
    int32_t device = 0;
    ProcessState state = ProcessState::kStarting;
    Epoch epoch;
    int32_t rank = 0;
    int64_t step = 0;
    // kRunning, kStopping: it has been given this one too, and goes over once it has left `epoch`.
    std::optional<Epoch> next;
    bool succeeded = false;                        // in `epoch`
    StepTimes step_times;                          // in `epoch`
    double work_seconds = 0;                       // in `epoch`; 0: not known
    uint64_t equal_work = 0;                       // that of ranks which do the same
    double work_seconds_per_gflop = 0;             // as Heartbeat.Work; 0: not known
    uint64_t like_work = 0;                        // likewise
    Instant hung_at = absl::InfiniteFuture();      // if it has not run by then
    bool stands_still = false;                     // as it was said last
    Instant waits_since = absl::InfiniteFuture();  // in one wait for its device or other ranks
    absl::Duration waits = absl::ZeroDuration();   // so far, when it was last seen to run
    Instant ran_at = absl::InfinitePast();         // when that was
    // Since when it is known to be dead, or was killed, and has still to be reaped.
    Instant gone_at = absl::InfiniteFuture();
    // kStarting: no hello by then. kStopping: epoch not left. kEnding: end of the grace time. Else:
    // the channel failed.
    Instant kill_at = absl::InfiniteFuture();
    std::string fault;  // what the process has done or left undone by then; not of kEnding
    job::FailureKind fault_kind = job::FailureKind::kRankHung;
    std::string fault_next;  // what to do then; empty: what it says of its kind
    // What this daemon is to do once the rank has come there.
    std::optional<job::InjectedFault> awaited;
    Instant terminate_at = absl::InfiniteFuture();  // kEnding
    bool killed = false;
    // Started for an epoch that is still to come (warming.cc), and in none yet: what becomes of it
    // is no rank's.
    bool warms = false;
    // It is no rank, and has no device: it gives copies of state in `epoch` (keepers.cc).
    bool keeps = false;
    // Of one that warms: the highest epoch in which its place had had a process when it was
    // started. It runs later ones alone.
    Epoch warms_behind;
  };
  struct Assignment {
    std::shared_ptr<const AssignCommand> command;
    std::map<int32_t, int32_t> rank_of_device;  // on this node
    std::optional<DataOutcome> data;
    std::set<int32_t> to_start;           // devices without a process for this assignment yet
    int32_t starting = 0;                 // StartProcess orders not yet answered
    std::vector<uint64_t> to_answer;      // command numbers
    std::vector<std::string> rendezvous;  // payloads so far, in order
    std::string begin;                    // the payload of BeginEpoch; empty: none came
    // Of a job that trains: who cannot run here is lost alone.
    bool takes_over = false;
  };
  // Of a device that its job may have again: the last assignment in which it had a rank.
  struct LastWork {
    std::shared_ptr<const AssignCommand> command;
    int32_t rank = 0;
  };
  struct Warming {
    std::vector<std::pair<uint64_t, uint64_t>> to_answer;  // commands, each with its coordinator
    std::shared_ptr<const DataOutcome> data;
    std::set<int32_t> to_start;         // devices
    std::set<ProcessNumber> under_way;  // not yet warm
  };
  struct Check {
    CheckNumber number;
    std::set<int32_t> devices;
    Instant kill_at;
    Instant leave_at = absl::InfiniteFuture();  // once it is killed
    bool late = false;                          // it was killed for that
    bool killed = false;                        // for that, or as a device was wanted
  };
  struct Stopping {
    JobId job;
    uint64_t command_number = 0;
  };
  struct DataUse {
    JobId job;
    Document document;
    uint64_t command_number = 0;  // PrepareData; 0: an assignment waits
    uint64_t coordinator = 0;
    Epoch epoch;
  };

  // machine.cc: session and commands.
  void Apply(const SessionWelcomed& event);
  void Apply(const CommandReceived& event);
  void Apply(const MessageWritten& event);
  void Apply(const GoodbyeReceived& event);
  void Apply(const SessionClosed& event);
  void Apply(const DataPrepared& event);
  void Apply(const UploadStarted& event);
  void Apply(const PeerTried& event);
  void Apply(const TerminationRequested& event);
  void Apply(const DeadlineReached& event);
  void Apply(const Stalled& event);
  void Run(uint64_t number, const UnknownCommand& command);
  void Run(uint64_t number, const PrepareDataCommand& command);
  void Run(uint64_t number, const AssignCommand& command);
  void Run(uint64_t number, const BeginEpochCommand& command);
  void Run(uint64_t number, const RendezvousCommand& command);
  void Run(uint64_t number, const StopCommand& command);
  void Run(uint64_t number, const PublishCommand& command);
  void Run(uint64_t number, const WriteIncidentCommand& command);
  void Run(uint64_t number, const WishCommand& command);
  void Run(uint64_t number, const PrepareStandbyCommand& command);
  // For each process that runs the epoch: an order of this kind with the payload. Answers.
  template <typename Order>
  void TellAllIn(uint64_t number, JobId job, Epoch epoch, const std::string& payload);
  // Of the rank, if its process is in the epoch.
  std::optional<ProcessNumber> ProcessOf(JobId job, Epoch epoch, int32_t rank) const;
  void Run(uint64_t number, const FetchLogsCommand& command);
  void Run(uint64_t number, const InjectCommand& command);
  void Run(uint64_t number, const TryPeerCommand& command);
  void Answer(uint64_t number, absl::Status status,
              std::shared_ptr<const DataOutcome> data = nullptr);
  void Answer(SendCommandResult result);
  void Send(Action action);  // one of the Send orders to the session
  void SendQueuedReports();
  void SendHeartbeatNow();
  void KeepSession();
  // `failure`: what ends the daemon otherwise than in good order.
  void Drain(std::string reason, absl::Status failure, absl::Duration grace);
  // What remains of the grace time is for ranks to end in.
  void EndPatience();
  uint64_t LastCommandNumber() const;
  void RememberEpoch(JobId job, Epoch epoch);
  void RememberStopped(JobId job, Epoch epoch);
  void ForgetOutcomes();
  void LeaveStore();
  void CallOffData(JobId job);  // JobId{}: of all

  // faults.cc: faults on demand.
  void Apply(const FaultReached& event);
  void Inject(ProcessNumber number, Process& process, const job::InjectedFault& fault);
  void BringAbout(ProcessNumber number, Process& process, const job::InjectedFault& fault);
  // Nothing is said to the coordinator, nor heard of it, nor of the ranks of other nodes.
  void Partition(job::InjectedFault fault);

  // devices.cc: errors of devices.
  void Apply(const DeviceFaulted& event);
  absl::Status LostDevice(int32_t device) const;  // OK: it is neither lost nor in a check's hands
  // Assignments that wait for it fail, or do without it.
  void FailWaiting(int32_t device);

  // checks.cc: checks of idle devices.
  void Apply(const CheckProgressed& event);
  void Apply(const CheckEnded& event);
  bool IsWanted(int32_t device) const;  // an assignment waits for it, or a process is to warm there
  bool IsIdle(int32_t device) const;
  bool IsChecked(int32_t device) const;  // now
  void CallOffCheck();
  void NoteChecked(job::DeviceCheck found);
  // The device that the check was at has failed, unless that cannot be known. Its name; -1: none.
  int32_t BlameDevice(Check& check, const CheckEnded& event);
  void KeepCheck();
  // When the next one is to begin, or the one under way is to be over.
  Instant CheckDeadline() const;

  // warming.cc: processes that make ready beside training.
  void Apply(const RankWarmed& event);
  void RememberWork(const Assignment& assignment);
  // nullptr: its job does not have the device, or not any more.
  const LastWork* LastWorkOn(JobId job, int32_t device) const;
  bool HasLiveProcess(JobId job, int32_t device) const;
  // The highest epoch in which the device has had a process, or is to have none.
  Epoch EpochOfProcessesOn(JobId job, int32_t device) const;
  // Whether processes of the job warm up, are warm, or may have to be once its data is there.
  bool MakesReady(JobId job) const;
  // Whether the command is answered later, when the processes are warm that this calls for.
  bool WarmsUpFor(JobId job, uint64_t command_number,
                  const std::shared_ptr<const DataOutcome>& data);
  void StartWarming();
  void WarmUpIn(ProcessNumber number, Process& process);
  void EndWarming(ProcessNumber number);  // it is warm, runs an epoch, or is gone
  void AnswerWarmed();
  void CallOffWarming(JobId job);

  // going_over.cc: processes that leave an epoch for the next by themselves.
  void RunBeside(ProcessNumber number, Process& process, const Assignment& assignment);
  void GoOver(ProcessNumber number, Process& process, const Assignment& assignment);
  // Of a process with a next epoch: the rank that it is there.
  int32_t RankInNext(const Process& process) const;
  // Whether what is said to ranks of the epoch is for this process.
  static bool IsIn(const Process& process, JobId job, Epoch epoch);

  // keepers.cc: processes that give copies of state to ranks of other nodes.
  void StartKeeper(const std::shared_ptr<const AssignCommand>& command);
  // The assignment has come again, and names a place of this node that it did not name before.
  void AddKeeper(Assignment& assignment, const AssignCommand& again);
  void RunKeeper(ProcessNumber number, Process& process);
  // The coordinator need not wait for it any more.
  void TellNoKeeper(const Process& process, absl::string_view why);
  // processes.cc: assignments and the processes that serve them.
  void Apply(const ProcessStarted& event);
  void Apply(const RankHelloReceived& event);
  void Apply(const RankReported& event);
  void Apply(const RankProgressed& event);
  void Apply(const EpochStopped& event);
  void Apply(const ChannelFailed& event);
  void Apply(const ProcessRan& event);
  // For how long it may not run, or stand still.
  absl::Duration PatienceWith(const Process& process) const;
  // Whether one is dead, or was killed, that is still to be reaped.
  bool HasDead() const;
  // One more is dead, or reaped: those that stand still get the time that this gives them.
  void ExcuseStandstills();
  void Apply(const ProcessDied& event);
  void Apply(const ProcessExited& event);
  absl::Status CheckPlacement(const AssignCommand& command, bool takes_over,
                              std::map<int32_t, int32_t>* ranks) const;
  void Adopt(JobId job, Assignment& assignment);
  void TellNeverRan(const Assignment& assignment);
  void StartProcesses();
  void StopEpochIn(ProcessNumber number, Process& process);
  // `process` has ended, or will, before its work was done: so has its epoch on this node.
  void StopEpochWith(const Process& process);
  // Its device gets another process for the newer epoch that it was to run.
  void ReplaceLost(const Process& process);
  void RunEpochIn(ProcessNumber number, Process& process, const Assignment& assignment);
  void AnswerAssign(Assignment& assignment, const absl::Status& status);
  // All of its processes are started, or their starts have failed.
  void AnswerIfStarted(Assignment& assignment);
  // The rank of `device` cannot run here.
  void GoWithout(Assignment& assignment, int32_t device, job::FailureKind kind,
                 const absl::Status& why);
  void FailAssignment(JobId job, const absl::Status& status);
  void End(ProcessNumber number, Process& process, absl::Duration grace, absl::string_view reason);
  void EndAll(JobId job, absl::Duration grace, absl::string_view reason);
  void Kill(ProcessNumber number, Process& process);
  void KeepProcesses();
  void AnswerStops();
  bool HasProcess(JobId job) const;
  // Its job ends with a checkpoint if the coordinator lets it.
  bool MayEndWithCheckpoint(const Process& process) const;
  // Of a process that is gone.
  static std::string CauseOfEnd(const Process& process, int32_t exit_code, int32_t signal);
  std::vector<RunningAssignment> Running() const;
  std::vector<Progress> ProgressOf() const;
  // standstill.cc: how long each rank of the epoch here has stood in one wait (Progress::waits).
  static void NoteWait(Process& process, bool waits, Instant now);
  // Of the time up to now, in which it may not have run.
  void LeaveOutOfWait(Process& process, absl::Duration time) const;
  absl::Duration WaitOf(JobId job, Epoch epoch) const;

  void Log(std::string text) { actions_.push_back(LogLine{std::move(text)}); }

  const MachineOptions options_;
  Prng prng_;
  Instant now_;
  Instant judged_;  // deadlines up to it have come: what could have met them has been fed
  std::vector<Action> actions_;  // of the present Step

  SessionState session_state_ = SessionState::kClosed;
  SessionNumber session_;
  Instant session_deadline_;  // kClosed: open it then; kOpening: give it up then
  int32_t failed_attempts_ = 0;
  std::set<absl::StatusCode> closed_as_;  // since the last welcome: it was told of these
  absl::Duration heartbeat_interval_ = absl::Seconds(1);
  Instant heartbeat_at_ = absl::InfiniteFuture();
  bool heartbeat_on_its_way_ = false;
  enum class Sent : uint8_t { kHeartbeat, kResult, kReport };
  std::deque<Sent> on_their_way_;  // not yet confirmed, oldest first
  int32_t reports_in_flight_ = 0;

  Incarnation coordinator_;
  uint64_t store_ = 0;          // 0: none is known
  JobId last_job_;              // the highest of that store that was assigned or stopped here
  uint64_t last_received_ = 0;  // command number of the present coordinator
  std::map<uint64_t, std::optional<SendCommandResult>> commands_;  // nullopt: under way

  std::map<JobId, Epoch> highest_epoch_;
  std::map<JobId, Epoch> stopped_epoch_;
  std::map<JobId, Assignment> assignments_;
  std::map<ProcessNumber, Process> processes_;
  std::vector<Stopping> stops_;
  std::map<JobId, std::map<int32_t, LastWork>> last_work_;  // by device
  std::map<JobId, Warming> warmings_;
  std::map<JobId, std::pair<Document, DataOutcome>> outcomes_;
  std::map<RequestNumber, DataUse> data_requests_;
  std::map<int32_t, std::string> lost_devices_;  // and what they reported
  XidHistory xid_history_;
  std::vector<Instant> check_due_;              // of each device
  std::optional<Check> check_;                  // under way
  std::map<CheckNumber, int32_t> left_checks_;  // and the device that each was at; -1: none
  CheckNumber last_check_;
  job::NodeCheck checked_;     // number 0: nothing yet
  bool check_untold_ = false;  // of it
  ReportBuffer reports_;
  ProcessNumber last_process_;
  RequestNumber last_request_;

  MachineFigures counted_;  // what grows; the rest is filled in by Figures

  bool draining_ = false;
  absl::Status failure_;  // that ends it
  bool exited_ = false;
  std::string exit_reason_;
  Instant exit_at_ = absl::InfiniteFuture();
  // While it drains: ranks that have not been stopped are then ended.
  Instant patience_until_ = absl::InfiniteFuture();
};

}  // namespace phalanx::agent
