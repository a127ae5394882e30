// tests/e2e/matrix/scene.h: a job that trains on three nodes, and hands that hurt it.
//
// Not thread-safe. What does not come about within support::kPatience throws std::runtime_error.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/matrix/row.h"

namespace phalanx::e2e {

class Scene {
 public:
  // The job has done its first steps when this returns, and no fault is asked for yet.
  Scene(const DataFolder& data, const Row& row);

  Cluster& cluster() { return cluster_; }
  int64_t job() const { return job_; }
  // When the first fault came about that was not asked for at a step or a phase.
  std::optional<absl::Time> hit() const { return hit_; }

  void Inject(const Injection& injection);
  // A fault comes about now, if it is the first one.
  void NoteHit();
  // To the processes that the ranks had in the first epoch.
  void Signal(const std::vector<int32_t>& ranks, int number);
  // To the daemon of a node, or to its ranks first, too.
  void SignalDaemon(const std::string& node, int number);
  void SignalNode(const std::string& node, int number);
  void RestartDaemon(const std::string& node);
  void RestartCoordinator();

  // `phalanx` with these arguments, which succeeds.
  void Phalanx(std::vector<std::string> arguments);

  // So many faults have come to where they were asked for.
  void AwaitReached(size_t count);
  // A step of an epoch from this one on is decided.
  void AwaitStepOf(int64_t epoch);
  // Its layout is stored.
  void AwaitEpoch(int64_t epoch);
  void AwaitEvent(const std::string& type);
  void AwaitEndOf(const std::vector<int32_t>& ranks);
  // Time passes.
  void Pass(absl::Duration duration);

  pid_t PidOf(int32_t rank) const { return ranks_.at(rank).pid(); }

 private:
  support::Process& Daemon(const std::string& node);
  void Await(const std::function<bool()>& enough, const std::string& what);

  Cluster cluster_;
  int64_t job_ = 0;
  std::map<std::string, support::Process*> daemons_;  // but of the first node
  std::map<int32_t, support::ProcessWatch> ranks_;
  std::optional<absl::Time> hit_;
};

}  // namespace phalanx::e2e
