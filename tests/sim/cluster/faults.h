// tests/sim/cluster/faults.h: what breaks, when, and when it is whole again.
//
// Faults come at random times; after one another often follows while its recovery is under way.
// Others come in the middle of a write: of the coordinator's decision on a recovery, of state that
// moves, of a step that is applied.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/sim/cluster/coordinator_host.h"
#include "tests/sim/cluster/network.h"
#include "tests/sim/cluster/node_host.h"
#include "tests/sim/cluster/rank_process.h"
#include "tests/sim/cluster/timeline.h"

namespace phalanx::sim {

class Faults {
 public:
  Faults(Shared& shared, CoordinatorHost& coordinator,
         const std::vector<std::unique_ptr<NodeHost>>& nodes)
      : shared_(shared), timeline_(shared.timeline), coordinator_(coordinator), nodes_(nodes) {}

  // As in ClusterOptions.
  struct Kinds {
    bool only_crashes = false, behind = true;
    bool managing = true;  // what people decide is being written when something breaks
  };
  // One comes every `interval` on average, until Stop.
  void Start(absl::Duration interval, const Kinds& kinds);
  // No new ones; those under way end by themselves.
  void Stop();
  int64_t count() const { return count_; }
  // Of those that last: none is under way since.
  bool quiet() const { return under_way_ == 0; }
  Instant quiet_since() const { return quiet_since_; }

 private:
  void Next();
  void Break();
  void BreakRank();
  void BreakNode();
  void BreakNetwork();
  void BreakDevice();
  void BreakCoordinator();
  // The store fails, or is slow, for a while.
  void BreakDisk();
  // A decision is being written: of one by which a recovery goes on, or of people, something may
  // die now.
  void OnWrite(const coordinator::JournalRecord& record);
  void CrashCoordinator();
  // Something lasts: `undo` puts an end to it.
  void Lasts(absl::Duration duration, std::function<void()> undo);
  NodeHost& SomeNode() { return *nodes_[timeline_.Below(nodes_.size())]; }
  RankProcess* SomeProcess();

  Shared& shared_;
  Timeline& timeline_;
  CoordinatorHost& coordinator_;
  const std::vector<std::unique_ptr<NodeHost>>& nodes_;
  absl::Duration interval_ = absl::ZeroDuration();
  uint64_t generation_ = 0;
  bool on_ = false, only_crashes_ = false, behind_ = true, managing_ = true;
  int64_t count_ = 0, under_way_ = 0;
  Instant quiet_since_ = absl::InfinitePast();
};

}  // namespace phalanx::sim
