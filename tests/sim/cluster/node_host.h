// tests/sim/cluster/node_host.h: a node: its daemon's process with the real machine, and the rank
// processes that it starts.
//
// Messages of the session pass through the real codec. Checked as it comes: of a job only the
// highest epoch that was seen is obeyed, and none that was stopped; a device has one process at a
// time, and none once it is lost; a rank that waits is told from where its epoch goes on.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "phalanx/v1/worker_service.pb.h"
#include "tests/sim/cluster/coordinator_host.h"
#include "tests/sim/cluster/host_copies.h"
#include "tests/sim/cluster/network.h"
#include "tests/sim/cluster/rank_process.h"
#include "worker/agent/machine/machine.h"

namespace phalanx::sim {

class NodeHost {
 public:
  NodeHost(Shared& shared, CoordinatorHost& coordinator, size_t index, int32_t devices);

  void Start();
  // The daemon's process ends, and its ranks with it. `silent`: with the whole machine.
  void Kill(bool silent = false);
  // The daemon does not run for so long; its ranks do.
  void Pause(absl::Duration duration);
  // The stream to the coordinator breaks: each end hears of it, at its own time, or one of them.
  void BreakStream(bool tell_daemon, bool tell_coordinator);
  // The daemon, or else the coordinator, gives the stream up. What that end had sent arrives so
  // much later, and then the other one hears of it.
  void DelayStream(bool by_daemon, absl::Duration late);
  // The stream breaks, and the next one leads for a moment to a coordinator that is behind
  // (older_coordinator.cc).
  void MeetOlderCoordinator();
  // The driver of a device reports an error.
  void FaultDevice(int32_t device, int32_t xid);

  const NodeName& name() const { return name_; }
  size_t index() const { return index_; }
  int32_t devices() const { return devices_; }
  bool up() const { return machine_.has_value(); }
  std::vector<RankProcess*> processes() const;

  // Each second: ranks are told from where their epoch goes on, soon after nothing hinders it.
  void CheckTold();
  // They are taken for free: no process is there that nobody has told to end, whether it trains,
  // waits or only warms up.
  void CheckFree(const std::vector<int32_t>& devices) const;

  // No job is given a device on which a process of another works.
  void CheckResult(const agent::SendCommandResult& result) const;

  // What the coordinator sends.
  void Receive(const StreamPtr& stream, const v1::OpenSessionResponse& message);
  void OnStreamClosed(const StreamPtr& stream, const absl::Status& status);

  double start_failure = 0;  // how often a process cannot be started

 private:
  void Feed(agent::Event event);
  void StepMachine(const agent::Event& event);
  void Arm();
  void Carry(const agent::Action& action);
  void Carry(const agent::OpenSession& order);
  void Carry(const agent::CloseSession& order);
  void Carry(const agent::StartProcess& order);
  void Carry(const agent::SendRunEpoch& order);
  bool CarryToProcess(const agent::Action& action);
  void SendUp(const v1::OpenSessionRequest& message);
  void OnProcessEnded(agent::ProcessNumber number, int32_t exit_code, int32_t signal);
  // In order: what a process says arrives before its end.
  void FromProcess(agent::ProcessNumber number, agent::Event event, absl::Duration delay);
  void ToProcess(agent::ProcessNumber number, std::function<void(RankProcess&)> order);
  // A process asks for something of the daemon's memory.
  void Ask(agent::ProcessNumber number, std::function<void(CopyMemory&)> question,
           std::function<void()> answered);
  void Carry(const agent::FreeHostMemory& order);
  void NoteEpoch(const agent::Event& event);
  void NoteEnding(agent::ProcessNumber number);
  void RememberAssignment(const v1::OpenSessionResponse& message);
  // Of epochs that this daemon may not obey any more.
  std::vector<v1::Command> OlderAssignments() const;
  void GreetFromOlder(const StreamPtr& stream);
  // The coordinator and the daemon run, and each has the stream to the other.
  bool IsServed() const;

  Shared& shared_;
  CoordinatorHost& coordinator_;
  const size_t index_;
  const NodeName name_;
  const int32_t devices_;

  std::optional<agent::Machine> machine_;
  uint64_t life_ = 0;
  bool stepping_ = false;
  std::deque<agent::Event> inbox_;
  std::optional<Instant> paused_since_;
  int32_t pauses_ = 0;
  std::deque<std::function<void()>> asked_;  // while it does not run
  CopyMemory memory_;
  Instant armed_ = absl::InfiniteFuture();
  Instant deadline_fed_ = absl::InfinitePast();
  int idle_deadlines_ = 0;
  StreamPtr stream_;

  struct Slot {
    std::unique_ptr<RankProcess> process;
    Instant to_daemon, to_process;  // when the last message arrives
    Epoch epoch;                    // that it was told to run
    bool told_to_end = false;
    // Since when it waits for what it could be told, and by which session.
    std::pair<Instant, coordinator::SessionId> untold{absl::InfiniteFuture(), {}};
  };
  std::map<agent::ProcessNumber, Slot> processes_;
  agent::SessionNumber welcomed_;                           // on which commands count; 0: none
  std::map<JobId, Epoch> lowest_;                           // that this daemon may obey
  std::map<JobId, Epoch> stopped_;                          // the last one that it was to end
  std::map<JobId, std::map<Epoch, v1::Command>> assigned_;  // to it, the last ones
  bool meets_older_ = false;
  std::set<int32_t> lost_devices_;  // as it has been told
};

}  // namespace phalanx::sim
