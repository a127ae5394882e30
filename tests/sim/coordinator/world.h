// tests/sim/coordinator/world.h: the coordinator's machine and the daemons' machines in a small
// world of one seed: nodes that die, streams that break, ranks that are killed, users who submit
// and cancel, a coordinator that crashes and replays its store, or does not run for a while.
//
// Both machines are the real ones. The world is their shell: streams whose messages are lost when
// they break, rank processes that do what they are told, a store that commits when it likes.
// Everything that the machines ask for is checked as it comes; see Check() for what must hold.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/machine/coordinator.h"
#include "core/base/prng.h"
#include "worker/agent/machine/machine.h"

namespace phalanx::coordinator {

// A job takes so much of a node's memory for each of its devices there, and a node has as much.
inline constexpr int64_t kHostBytesOfDevice = 30;

// One stream between a daemon and the coordinator. What was written and has not arrived is lost
// with it.
struct Stream {
  SessionId session;                 // as the coordinator knows it
  agent::SessionNumber number;       // as the daemon knows it
  std::deque<agent::Action> outbox;  // not written yet
  std::deque<Event> up;              // on their way to the coordinator
  std::deque<agent::Event> down;     // and to the daemon
  bool broken = false;               // the daemon has not noticed yet
};

// A rank process, as far as its daemon can tell.
struct FakeProcess {
  int32_t device = 0;
  JobId job;
  Epoch epoch;  // 0: it has none
  int32_t rank = 0;
  bool said_hello = false, ready = false, succeeded = false;
  std::optional<Epoch> to_stop;
  bool ending = false, killed = false;
  bool wished = false;                 // for the end of its epoch
  std::optional<int64_t> to_publish;   // a checkpoint of this step
  std::optional<std::string> to_make;  // standby communicators of this name
};

struct FakeNode {
  NodeName name;
  int32_t devices = 0;
  uint64_t incarnation = 0;
  std::optional<agent::Machine> daemon;  // none: it has ended
  std::optional<Stream> stream;
  std::map<agent::ProcessNumber, FakeProcess> processes;
  std::vector<agent::PrepareData> preparing;
  std::deque<agent::Event> answers;  // of orders that are answered at once
};

class World {
 public:
  explicit World(uint64_t seed);

  // One random thing happens.
  void Act();
  // No more faults: everything that can end ends. False: something is stuck.
  bool Heal();

  // What was violated; empty: nothing.
  const std::vector<std::string>& violations() const { return violations_; }
  // A fingerprint of everything that the machines have done.
  uint64_t fingerprint() const { return fingerprint_; }
  std::string Describe() const;
  int64_t crashes() const { return crashes_; }
  int64_t suspicions() const { return suspicions_; }  // of nodes, as they were published
  int64_t ended() const;
  int64_t succeeded() const;
  int64_t ended_early() const;  // with a checkpoint
  int64_t left() const;         // jobs that left their devices in order, each time that they did
  int64_t marked() const { return marked_; }  // nodes, each time that they were

 private:
  // world.cc: the coordinator, its store and its users.
  void Feed(const Event& event);
  void Take(std::vector<Action> actions);
  void Take(const Action& action);
  void CheckCommand(const Command& command);
  void Check();
  void CheckDeadlines();
  void CheckHostMemory(const ComputePlan& order);
  void CheckPlacement(const Coordinator::Job& job);
  void CheckCharges();
  void CheckReplay();
  void PlanOne();
  void Commit();
  void CrashCoordinator();
  void AdvanceTime(absl::Duration duration);
  void Stall();
  void Violate(std::string what);
  bool Chance(uint64_t in) { return prng_.Below(in) == 0; }

  // world_users.cc.
  void Submit();
  void OpenImpostor();
  void CloseOneSession();
  void CheckDevicesOf(const NodeName& name);
  void Operate();
  void PutAllInOrder();

  // world_nodes.cc: daemons, streams and ranks.
  void FeedDaemon(FakeNode& node, const agent::Event& event);
  void Carry(FakeNode& node, const agent::Action& action);
  void Order(FakeNode& node, const agent::StartProcess& order);
  void Order(FakeNode& node, const agent::SendRunEpoch& order);
  void Start(FakeNode& node);
  void Kill(FakeNode& node);
  void Break(FakeNode& node, bool told);
  void DropStream(FakeNode& node);
  bool PumpStream(FakeNode& node);
  bool PumpProcess(FakeNode& node, bool faults);
  void EndEpoch(FakeNode& node, agent::ProcessNumber number, bool faults);
  void Report(FakeNode& node, agent::ProcessNumber process, agent::ReportKind kind,
              decltype(RankReported::report) report);
  void EndProcess(FakeNode& node, agent::ProcessNumber process, int32_t signal);
  std::optional<Event> EventOf(FakeNode& node, const agent::Action& action);

  Prng prng_;
  CoordinatorOptions options_;
  Instant now_ = absl::FromUnixSeconds(1'700'000'000);
  std::optional<Coordinator> machine_;
  std::vector<FakeNode> nodes_;
  std::vector<ComputePlan> plans_;  // under way
  std::vector<JournalRecord> records_;
  size_t stored_ = 0;
  uint64_t token_ = 0, session_ = 0, coordinator_ = 1, incarnation_ = 0;
  // Sessions whose streams have ended and of which the coordinator has not heard yet.
  std::vector<SessionId> ended_sessions_;
  std::vector<SessionId> impostors_;
  std::vector<decltype(RankReported::report)> reports_;  // payloads are places in it
  // With which all ranks of an epoch end, once the first of them has.
  std::map<std::pair<JobId, Epoch>, int64_t> last_steps_;
  std::set<JobId> acknowledged_;
  std::map<JobId, JobView> published_;
  std::vector<std::string> violations_;
  uint64_t fingerprint_ = 0;
  int64_t crashes_ = 0, suspicions_ = 0, marked_ = 0;
};

}  // namespace phalanx::coordinator
