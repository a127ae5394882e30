// tests/sim/cluster/rank_process.h: a rank process: what it keeps from epoch to epoch, and the
// order in which it runs them (worker/rank/rank_process.h).
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "phalanx/v1/worker_service.pb.h"
#include "tests/sim/cluster/fabric.h"
#include "tests/sim/cluster/host_copies.h"
#include "tests/sim/cluster/ledger.h"
#include "tests/sim/cluster/network.h"
#include "tests/sim/cluster/planner.h"
#include "tests/sim/cluster/rank_state.h"
#include "tests/sim/cluster/timeline.h"
#include "worker/agent/machine/events.h"

namespace phalanx::sim {

class EpochRun;

// What everything in the simulated cluster shares.
struct Shared {
  Timeline& timeline;
  Network& network;
  Ledger& ledger;
  Planner& planner;
  Fabric& fabric;
  absl::Duration step_time = absl::Milliseconds(500);  // on average
  double bad_context = 0;  // how often a device does not do what it was given, when asked to stop
  std::set<size_t> bad_nodes;  // that have such a device
  // How often a process dies when it has received state of a round of moves, and before it applies
  // a step to one of its homes.
  double dies_moving = 0, dies_applying = 0;
  bool copies = true;      // ranks keep copies of their state where their layout says so
  double slow_stream = 0;  // how often the hello of a stream is late, maybe behind that of the next
  uint64_t last_process = 0, last_session = 0;
  int64_t older_assignments = 0;  // of epochs that were over where they came
};

class RankProcess {
 public:
  // How it reaches its daemon: in order, and what it said before its end arrives before its end.
  struct Daemon {
    std::function<void(agent::Event)> tell;
    std::function<void(int32_t exit_code, int32_t signal)> ended;
    // What it does with its memory once it runs, and what the process does then.
    std::function<void(std::function<void(CopyMemory&)> question, std::function<void()> answered)>
        ask;
  };

  RankProcess(Shared& shared, size_t node, int32_t device, JobId job, agent::ProcessNumber number,
              Daemon daemon);
  ~RankProcess();

  // Orders of the daemon. A process that is stopped takes them when it runs again.
  // `keeps`: it gives copies of state, and is no rank.
  void RunEpoch(const v1::Assign& assign, int32_t rank, bool beside, bool keeps);
  // It makes communicators beside training, or fails to.
  void PrepareStandby(const v1::PrepareStandby& order);
  void Stop(Epoch epoch);
  void Deliver(const v1::Rendezvous& message);
  void Deliver(const v1::BeginEpoch& message);
  void Quit();

  // What happens to it.
  void Die(int32_t exit_code, int32_t signal, bool silent = false);
  void Suspend();
  void Resume();
  // It runs, and what it works at does not go on until GoOn: its daemon sees that.
  void Hang();
  void GoOn();
  // By SIGABRT.
  void EndWithin(absl::Duration time);
  // Whether it dies, with that probability.
  bool Breaks(double probability);
  bool dead() const { return dead_; }
  bool suspended() const { return suspended_ > 0; }

  int32_t device() const { return device_; }
  JobId job() const { return job_; }
  agent::ProcessNumber number() const { return number_; }
  uint64_t key() const { return key_; }
  size_t node() const { return node_; }
  Shared& shared() { return shared_; }
  std::optional<RankState>& state() { return state_; }
  const EpochRun* current() const { return current_.get(); }

  // For its epochs. What a process that is stopped should do it does when it runs again.
  void Do(std::function<void()> what);
  void After(absl::Duration delay, std::function<void()> what);
  void Report(Epoch epoch, int32_t rank, agent::ReportKind kind, v1::RankReport report,
              agent::RankOutcome outcome = agent::RankOutcome::kNone);
  void ReportProgress(Epoch epoch, int64_t step);
  void Ask(std::function<void(CopyMemory&)> question, std::function<void()> answered) {
    daemon_.ask(std::move(question), std::move(answered));
  }
  // All ranks of an epoch that connects beside the current one are connected, or it has failed.
  void OnConnected(const EpochRun& run);
  // Whether it has the set, which must have been made by all of these ranks and nobody else.
  bool TakeStandby(const std::string& set, const std::set<int32_t>& ranks, int32_t rank);
  // `collateral`: the process goes on with the next epoch.
  void OnRunEnded(bool ok, bool collateral, bool told_to_stop);

 private:
  void StartNext();
  // Again and again: its daemon sees that it runs.
  void ShowThatItRuns();
  void TellStopped(Epoch epoch);

  Shared& shared_;
  const size_t node_;
  const int32_t device_;
  const JobId job_;
  const agent::ProcessNumber number_;
  const uint64_t key_;
  const Daemon daemon_;

  std::optional<RankState> state_;
  std::set<std::string> standby_;  // sets of communicators
  std::shared_ptr<EpochRun> current_, next_, last_;
  Epoch last_epoch_;  // that was run here
  bool quit_ = false, dead_ = false;
  int32_t suspended_ = 0;  // times
  int32_t hanging_ = 0;    // of these, in which it runs
  uint64_t wait_ = 0;      // as its daemon saw it last
  std::deque<std::function<void()>> deferred_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace phalanx::sim
