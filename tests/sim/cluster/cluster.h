// tests/sim/cluster/cluster.h: a whole cluster of one seed: a coordinator, nodes with their daemons
// and ranks, users who submit and cancel, and everything that breaks.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/prng.h"
#include "tests/sim/cluster/coordinator_host.h"
#include "tests/sim/cluster/fabric.h"
#include "tests/sim/cluster/faults.h"
#include "tests/sim/cluster/ledger.h"
#include "tests/sim/cluster/network.h"
#include "tests/sim/cluster/node_host.h"
#include "tests/sim/cluster/planner.h"
#include "tests/sim/cluster/rank_process.h"
#include "tests/sim/cluster/timeline.h"

namespace phalanx::sim {

struct ClusterOptions {
  uint64_t seed = 1;
  int32_t nodes = 0;  // 0: drawn, at most 5
  // On average, between faults of the whole cluster; zero: drawn, some to a minute.
  absl::Duration fault_interval;
  absl::Duration step_time;  // zero: drawn
  int64_t steps = 0;         // of a job, on average; 0: drawn
  // The one fault is that the coordinator dies, mostly while it writes: no rank may be lost.
  bool only_crashes = false;
  bool reserves = true;  // operators keep nodes in reserve now and then
  // Users suspend and resume jobs and delete what is left of them, operators cordon and drain nodes
  // and let them take jobs again.
  bool manages = true;
  // False: no daemon comes upon a coordinator that is behind, and no network breaks in the middle
  // of a write, so that a seed means what it did before there was either.
  bool behind = true;
  // False: no rank keeps copies of its state in host memory, and jobs are of the documents that
  // there were before any did, so that a seed means what it did then.
  bool copies = true;
  // Between messages of ranks that are lost without a word, on average; zero: none is.
  absl::Duration loss_interval;
  // Devices of each node; empty: drawn, as `nodes` says.
  std::vector<int32_t> devices;
  // False: nobody submits or cancels but the test, and no node is kept in reserve.
  bool users = true;
};

class Cluster {
 public:
  // `planner` outlives it; it may have planned for others.
  Cluster(Planner& planner, const ClusterOptions& options);

  // Faults, until that much time has gone by or something is violated.
  void Run(absl::Duration duration);
  // So much time without faults, or until something is violated.
  void RunQuietly(absl::Duration duration);
  // The coordinator dies; another one on its store takes its place.
  void StopCoordinator() { coordinator_.Crash(); }
  void StartCoordinator() { coordinator_.Start(); }
  // The next message that a rank sends another in a step is lost, and nobody hears of it.
  void LoseMessage() { fabric_.LoseNext(); }
  int64_t lost_messages() const { return fabric_.lost(); }
  const CoordinatorHost& coordinator() const { return coordinator_; }
  // A user submits the job, and asks again until there is an answer.
  void Submit(const coordinator::JobRequestPtr& request);
  // The process that runs the rank is killed. False: there is none.
  bool KillRank(JobId job, int32_t rank);
  // The daemon of the node dies, and its ranks with it; and is started again.
  void KillNode(size_t node) { nodes_[node]->Kill(); }
  void StartNode(size_t node) { nodes_[node]->Start(); }
  // No more faults; what was cut or stopped is healed, and no more jobs come. False, a violation:
  // something is stuck.
  bool Settle();

  const std::vector<std::string>& violations() const { return ledger_.violations(); }
  uint64_t hash() const { return timeline_.hash(); }
  // What violates, the state of all jobs, and the last lines of the trace.
  std::string Describe(size_t lines) const;

  struct Counts {
    int64_t events = 0, jobs = 0, succeeded = 0, failed = 0, cancelled = 0, faults = 0;
    int64_t steps = 0, steps_given_up = 0, epochs = 0, recovered = 0;
    int64_t from_copies = 0;      // epochs that went on from copies in host memory
    int64_t steps_of_copies = 0;  // steps that these do again
    int64_t standby = 0;          // ranks that took communicators made before a loss
    int64_t lent = 0;             // devices in reserve on which a lost rank went on
    int64_t refused = 0;          // ranks of epochs that were over, of metrics
    int64_t older = 0;  // assignments of epochs that were over, by coordinators that are behind
    int64_t lost_messages = 0;
    Answers::Counts acknowledged;
    CoordinatorHost::Crashes crashes;
    Counts& operator+=(const Counts& other);
    std::string ToString() const;
  };
  Counts counts() const;
  // Jobs that train, as far as users were told: their epoch, the last step that ranks have decided,
  // and the last one that users were told of.
  struct Training {
    Epoch epoch;
    int64_t decided = 0, told = 0;
  };
  std::map<JobId, Training> training() const;
  // Why jobs have failed, by kind of failure.
  const std::map<std::string, int64_t>& failures() const { return coordinator_.failures(); }

 private:
  void MaybeSubmit();
  // Asks until there is an answer, or nobody has patience any more; sometimes twice at once.
  void AskFor(const coordinator::JobRequestPtr& request, const std::string& request_id, int times);
  coordinator::JobRequestPtr WithDrawnRecovery(coordinator::JobRequest request);
  // cluster_people.cc
  // What operators do with the reserve, time and again.
  void KeepReserve();
  // One of what `manages` is of, time and again.
  void Manage();
  void UndoManaging();
  void SuspendSome();
  void MarkSome();
  void DeleteSome();

  void LoseMessages();
  void CheckProgress();
  void CheckTold();
  void RunUntil(Instant end);
  bool Settled() const;

  const ClusterOptions options_;
  Timeline timeline_;
  Network network_;
  Ledger ledger_;
  Planner& planner_;
  Fabric fabric_;
  Shared shared_;
  CoordinatorHost coordinator_;
  std::vector<std::unique_ptr<NodeHost>> nodes_;
  Faults faults_;
  Prng operators_;  // their chance is of their own: without them a seed is as it was
  Prng losses_;     // so is theirs
  Prng people_;     // and that of those who manage
  int64_t marks_ = 0;
  int64_t jobs_ = 0;
  int64_t jobs_max_ = 3;  // at a time
  absl::Duration submit_interval_ = absl::Seconds(20);
  bool settling_ = false;
  Instant checked_at_ = absl::InfinitePast();
};

}  // namespace phalanx::sim
