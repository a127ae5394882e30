// tests/e2e/rank/rank_world.h: rank processes whose daemon is the test.
//
// Real phalanx-rank processes on CPU over Gloo, with the other end of their channels here: what one
// announces is passed on to all, and orders are what the test says. What goes wrong throws
// std::runtime_error, as does every wait past e2e::kPatience.
//
// Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/checkpoint_io/host_buffer.h"
#include "phalanx/v1/rank.pb.h"
#include "tests/e2e/jobs/job.h"
#include "worker/agent/host_memory.h"
#include "worker/agent/machine/events.h"

namespace phalanx::e2e {

class RankWorld {
 public:
  // What the ranks have said of the present epoch.
  struct Said {
    int64_t epoch = 0;              // the present one
    int64_t messages = 0;           // of all kinds
    std::map<int32_t, bool> ready;  // by rank, as everything below
    std::vector<v1::StepReport> steps;
    std::map<int32_t, v1::RankQuiet> quiet;
    std::map<int32_t, v1::RankError> errors;
    std::map<int32_t, bool> stopped, warmed;
    std::map<int32_t, v1::RankSucceeded> succeeded;
    std::vector<v1::JobEvent> events;
    std::map<int32_t, v1::RankStandby> standby;
    std::set<std::string> keys;  // that ranks have put into the rendezvous
    std::map<int64_t, std::map<int32_t, v1::RankCheckpointPart>> parts;  // by step and rank
    std::vector<v1::RankCheckpointPublished> published;
    std::map<int32_t, int64_t> host_bytes;  // of each of the rank's buffers
  };

  // Indexes the job's data and starts a process a rank.
  RankWorld(const DataFolder& data, const JobOptions& options);
  // Kills what is left.
  ~RankWorld();

  // Orders the next epoch; from the beginning, or from `begins`. `alter` changes what is ordered.
  void Begin(const std::optional<v1::EpochBegins>& begins,
             const std::function<void(v1::RunEpoch&)>& alter = nullptr);
  // Tells from where the present epoch goes on, which was begun without.
  void TellBegin(const v1::EpochBegins& begins);
  // Gives a rank the epoch behind the present one, for which it connects while it trains. `alter`
  // as of Begin.
  void OrderBeside(int32_t rank, const std::function<void(v1::RunEpoch&)>& alter = nullptr);
  // Has all ranks make communicators of that name for an epoch like the present one.
  void PrepareStandby(const std::string& set);
  // All have been given that one and have left the present one: it begins.
  void GoOver(const v1::EpochBegins& begins);
  // Tells a rank to make ready for an epoch like the present one.
  void WarmUp(int32_t rank);
  // Waits until what has been said of this epoch is enough, and returns it.
  Said Await(const std::function<bool(const Said&)>& enough);
  // Orders a rank to publish a checkpoint of which all parts have been told.
  void Publish(int32_t rank, int64_t step);
  // Tells one rank that the job is to end early.
  void Wish(int32_t rank);
  // Orders all ranks to leave the epoch, and waits until they have.
  Said Stop();

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  pid_t pid(int32_t rank) const;
  bool lives(int32_t rank) const;
  void Kill(int32_t rank);     // -9, and reaps
  void Restart(int32_t rank);  // a new process in the place of a killed one
  // Whole copies of the rank's state in the daemon's memory, whether it lives or not. `bytes`: of
  // a buffer, as the rank has asked for.
  std::vector<checkpoint::HostCopyHeader> HostCopies(int32_t rank, int64_t bytes);
  // From now on the daemon has no memory for copies of state.
  void RefuseHostMemory();
  // Tells it to end; its exit code.
  int Quit(int32_t rank);
  std::string Log(int32_t rank) const;
  // Waits until a line of it has the text.
  void AwaitLog(int32_t rank, const std::string& text) const;

  // Of the processes now, summed over ranks.
  struct Footprint {
    int64_t descriptors = 0, resident_bytes = 0, threads = 0;
  };
  Footprint Now() const;

 private:
  class Rank;
  // Whether each rank lives, and the end of its log.
  std::string Describe() const;
  void Take(int32_t rank, const v1::ToDaemon& message);
  v1::Assign MakeAssign(int64_t epoch) const;
  v1::RunEpoch MakeRun(int64_t epoch) const;
  void GiveHostMemory(int32_t rank, const v1::AskHostMemory& asked);

  const v1::JobDocument document_;
  agent::DataOutcome data_;
  int64_t epoch_ = 0;
  Mutex passing_;  // held while orders of one kind go to all ranks
  agent::HostMemory host_memory_ ABSL_GUARDED_BY(passing_);
  std::map<int64_t, v1::Rendezvous> announced_ ABSL_GUARDED_BY(passing_);  // by epoch
  Mutex mutex_;
  CondVar changed_;
  Said said_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Rank>> ranks_;  // last: its threads use what is above
};

}  // namespace phalanx::e2e
