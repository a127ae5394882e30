// tests/sim/coordinator/world.h: the coordinator's machine in a small world of one seed: nodes that
// die, sessions that break, users who submit and cancel, a coordinator that crashes and replays its
// store.
//
// Everything that the machine asks for is checked as it comes; see Check() for what must hold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/machine/coordinator.h"
#include "core/base/prng.h"

namespace phalanx::coordinator {

// A worker daemon and the ranks under it, as far as the coordinator can tell.
struct FakeNode {
  NodeName name;
  int32_t devices = 0;
  uint64_t incarnation = 1;
  SessionId session;  // 0: broken
  uint64_t last_command_number = 0;
  uint64_t coordinator = 0;  // the one that numbered it
  std::vector<SendCommand> inbox;
  struct Ranks {
    Epoch epoch;
    std::map<int32_t, int32_t> device_of;  // live ranks
    std::set<int32_t> ready, succeeded;
  };
  std::map<JobId, Ranks> running;
  std::map<JobId, Epoch> stopped;  // and older epochs
  std::vector<RankReported> said;  // said again on each new session, until its epoch is over
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
  // A fingerprint of everything that the machine has done.
  uint64_t fingerprint() const { return fingerprint_; }
  std::string Describe() const;
  int64_t crashes() const { return crashes_; }
  int64_t ended() const;

 private:
  void Feed(const Event& event);
  void Take(std::vector<Action> actions);
  void Take(const Action& action);
  void CheckCommand(const Command& command);
  void Check();
  void CheckReplay();
  void Commit();
  void CrashCoordinator();
  void AdvanceTime(absl::Duration duration);
  void Connect(FakeNode& node);
  void Break(FakeNode& node);
  void Restart(FakeNode& node);
  void HandleCommand(FakeNode& node);
  void Carry(FakeNode& node, const SendCommand& sent, const Assign& assign);
  void Carry(FakeNode& node, const SendCommand& sent, const StopRanks& stop);
  void ActOnRank(FakeNode& node, bool faults);
  void Say(FakeNode& node, JobId job, Epoch epoch, int32_t rank,
           decltype(RankReported::report) report);
  void Finish(FakeNode& node, CommandFinished result);
  void Submit();
  void Violate(std::string what);

  Prng prng_;
  CoordinatorOptions options_;
  Instant now_ = absl::FromUnixSeconds(1'700'000'000);
  std::optional<Coordinator> machine_;
  std::vector<FakeNode> nodes_;
  std::vector<ComputePlan> plans_;  // under way
  std::vector<Record> records_;
  size_t stored_ = 0;
  uint64_t token_ = 0, session_ = 0, coordinator_ = 1, job_count_ = 0;
  std::map<uint64_t, JobRequestPtr> asked_;
  std::set<JobId> acknowledged_;
  std::map<JobId, JobView> published_;
  std::vector<std::string> violations_;
  uint64_t fingerprint_ = 0;
  int64_t crashes_ = 0;
};

}  // namespace phalanx::coordinator
