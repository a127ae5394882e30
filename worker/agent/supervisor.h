// worker/agent/supervisor.h: the rank processes of this node, and the one that checks its devices.
//
// Carries out the machine's orders about processes and turns what they do into events: frames on
// their channels, their death, their end. What they print goes to their log (log_spool.h). A
// process that ended takes its process group with it, and nothing of it stays: no zombie, no
// descriptor.
//
// Owned by the agent's thread, which must live as long as the daemon (spawn.h).
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
#include "core/posix/unique_fd.h"
#include "google/protobuf/message_lite.h"
#include "phalanx/v1/rank.pb.h"
#include "worker/agent/check_output.h"
#include "worker/agent/death_watch.h"
#include "worker/agent/host_memory.h"
#include "worker/agent/job_folders.h"
#include "worker/agent/log_budget.h"
#include "worker/agent/log_spool.h"
#include "worker/agent/machine/actions.h"
#include "worker/agent/machine/events.h"
#include "worker/agent/spawn.h"
#include "worker/channel/frame_socket.h"

namespace phalanx::v1 {
class RunEpoch;
}

namespace phalanx::agent {

struct SupervisorOptions {
  std::string program;                        // of a rank
  std::string state;                          // folder
  std::string device_kind;                    // "cpu" or "gpu"
  std::string address;                        // at which other nodes reach the ranks
  JobFolders folders;                         // of jobs
  std::string check_faults;                   // file, for tests (worker/rank/node_check.h)
  int32_t threads = 1;                        // of a rank on CPU
  int64_t log_bytes_max = int64_t{64} << 20;  // of one rank in one epoch
  int64_t log_rate = int64_t{4} << 20;        // bytes a second of one rank; 0: no limit
  // This process is the reaper of its descendants and has no children but ranks: what a rank leaves
  // behind outside its process group becomes our child, and is killed when a rank ends.
  bool end_orphans = false;
};

class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, LogActivity& activity);
  // Kills and reaps what is left.
  ~Supervisor();

  // Nothing starts where jobs may read in some folders and write in none: a rank would take that
  // for leave to write anywhere.
  ProcessStarted Carry(const StartProcess& order);
  void Carry(const SendRunEpoch& order);
  void Carry(const SendWarmUp& order);
  void Carry(const SendBeginEpoch& order);
  void Carry(const SendRendezvous& order);
  void Carry(const SendPublish& order);
  void Carry(const SendWriteIncident& order);
  void Carry(const SendWish& order);
  void Carry(const SendPrepareStandby& order);
  void Carry(const SendFault& order);
  void Carry(const SendStopEpoch& order);
  void Carry(const SendQuit& order);
  void Carry(const TerminateProcess& order);
  void Carry(const KillProcess& order);
  // nullopt: it runs; else it does not.
  std::optional<CheckEnded> Carry(const StartCheck& order);
  void Carry(const KillCheck& order);
  // nullopt: it has ended by itself.
  std::optional<CheckEnded> Carry(const LeaveCheck& order);
  void Carry(const FreeHostMemory& order) { host_memory_.Free(order.job); }

  // Adds the descriptors to wait for.
  void AddTo(std::vector<pollfd>& fds) const;
  // Deals with those that are ready; events in the order in which they happened, per process.
  std::vector<Event> HandleReady(const std::vector<pollfd>& fds);

  // Those that have run since this was asked before.
  std::vector<Event> LookAtBeats();

  size_t size() const { return processes_.size(); }
  // Of logs of ranks, since the start: written to disk, and dropped as they came too fast.
  int64_t log_bytes() const { return log_bytes_; }
  int64_t log_bytes_dropped() const { return log_bytes_dropped_; }
  // Connections that ranks refused, since the start.
  int64_t strangers() const { return strangers_; }
  // Resident memory of the ranks of each device, [devices]: of a slot without one 0.
  std::vector<int64_t> ResidentBytes(int32_t devices) const;

 private:
  struct Process {
    Spawned spawned;
    std::unique_ptr<DeathWatch> watch;
    bool died = false;  // and it was told
    uint64_t beats = 0, work = 0;
    JobId job;
    JobFolders folders;             // of its owner
    std::unique_ptr<LogSpool> log;  // null: the disk did not let us
    std::optional<LogBudget> budget;
    int64_t dropped = 0;         // bytes of its log that it was not told of there
    int64_t dropped_untold = 0;  // and that the coordinator was not told of
    // Where a disk that took no more was among why: an errno, or 0 where `log` is null.
    std::optional<int> write_error;
    LogBudget::SteadyTime told_at;  // when it was
    channel::FrameDecoder decoder;
    int32_t device = -1;    // that it was given
    int32_t rank = 0;       // in the epoch that it is for, or was last told to run
    Epoch epoch;            // that one
    bool assigned = false;  // it was told
    std::string outgoing;   // frames that the socket has not taken yet
    struct Attachment {
      size_t at = 0;  // in `outgoing`: the first byte of its frame
      std::vector<UniqueFd> descriptors;
    };
    std::deque<Attachment> attachments;
    bool channel_failed = false;
  };

  struct Check {
    CheckNumber number;
    Spawned spawned;
    CheckOutput output;
    absl::Duration delay_then;  // its RunDelay when it said something last
    absl::Duration starved;     // from then until it was killed
    bool killed = false;
  };

  // Of a SendRunEpoch or a SendWarmUp. False: the order cannot be read; its channel has failed.
  template <typename Order>
  bool Fill(const Order& order, Process& process, v1::RunEpoch& run);
  void OpenLog(Process& process, uint64_t store, Epoch epoch, int32_t rank);
  void Send(ProcessNumber number, const google::protobuf::MessageLite& message,
            std::vector<UniqueFd> descriptors = {});
  void GiveHostMemory(ProcessNumber number, const Process& process, const v1::AskHostMemory& asked);
  void GiveHostCopies(ProcessNumber number, const Process& process, const v1::AskHostCopies& asked);
  void Flush(ProcessNumber number, Process& process);
  void FailChannel(ProcessNumber number, Process& process, std::string reason);
  // Reads at most `bytes_max`; false: there may be more.
  bool ReadChannel(ProcessNumber number, Process& process, size_t bytes_max);
  bool ReadOutput(ProcessNumber number, Process& process, size_t bytes_max);
  // To its log, as far as that may grow now.
  void Spool(ProcessNumber number, Process& process, absl::string_view text);
  // An event of its job, now and then and (`last`) at its end.
  void TellDropped(ProcessNumber number, Process& process, bool last);
  void Deliver(ProcessNumber number, Process& process, const std::string& frame);
  void TellDeath(ProcessNumber number, Process& process);
  void EndOrphans() const;
  void ReadCheck();
  void ReapCheck();
  void ReapLeft(size_t index);
  // Drains, reaps, reports and forgets it.
  void Reap(ProcessNumber number);

  const SupervisorOptions options_;
  LogActivity& activity_;
  HostMemory host_memory_;
  std::map<ProcessNumber, Process> processes_;
  std::optional<Check> check_;
  std::vector<Check> left_;  // killed, and they do not end
  std::vector<Event> events_;
  int64_t strangers_ = 0;
  int64_t log_bytes_ = 0, log_bytes_dropped_ = 0;
};

}  // namespace phalanx::agent
