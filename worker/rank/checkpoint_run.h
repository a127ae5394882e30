// worker/rank/checkpoint_run.h: the checkpoints of one epoch on one rank: when they are begun, what
// is told of them.
//
// Thread-safe but for OnSettled and WriteLast, which belong to the thread that trains.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "core/checkpoint/manifest.h"
#include "core/plan/plan.h"
#include "phalanx/v1/worker_service.pb.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/checkpoint/writer.h"
#include "worker/train/training_state.h"

namespace phalanx::rank {

struct CheckpointOptions {
  std::string directory;  // checkpoint.directory, absolute
  std::string store;      // as manifests name it
  int64_t job = 0;
  Rank rank;
  std::string in_use;                // the checkpoint that the epoch began with; may be empty
  std::vector<std::string> folders;  // below one of which the directory lies; none: anywhere
  bool reporter = false;             // tells what is so on all ranks
  train::FaultPoints* faults = &train::FaultPoints::None();  // outlives it
};

class CheckpointRun {
 public:
  // Plan and state are there until Leave(), the snapshot until it is destroyed; `report` may be
  // called from any thread, and until then.
  CheckpointRun(const plan::Plan& plan, const train::TrainingState& state,
                checkpoint::Snapshot& snapshot, CheckpointOptions options,
                std::function<void(v1::RankReport)> report);

  // A step is decided, not the job's last. Begins its checkpoint if it is due, on all ranks or on
  // none: not where some rank still wrote the one before, as the decision says.
  void OnSettled();
  // For the rank's next record (train::Record::writing).
  bool writing() const { return writer_.writing(); }
  // The job ends, at its last step or before, and nothing of it is enqueued any more: begins the
  // checkpoint of its last step, whether one is due or not. The one before has been written or
  // given up.
  void WriteLast() { Begin(); }
  // Whether everything that was begun has been written or given up by then.
  bool AwaitWritten(std::chrono::steady_clock::time_point deadline) {
    return writer_.AwaitWritten(deadline);
  }
  void Publish(const v1::PublishCheckpoint& order);
  // The epoch ends early: plan and state may go, and nothing is called any more but what follows.
  void Leave() { writer_.Leave(); }
  // Whether its thread, which may be at the disk for long, has ended.
  bool ended() const { return writer_.ended(); }

 private:
  // Of the last decided step.
  void Begin();
  void OnWritten(const checkpoint::Written& written);
  void OnPublished(const checkpoint::CheckpointName& name,
                   const absl::StatusOr<checkpoint::Published>& published);
  void TellSkipped(int64_t step);
  void TellEvent(const char* type, std::string message);

  // Constant after construction.
  const plan::Plan& plan_;
  const train::TrainingState& state_;
  const CheckpointOptions options_;
  const std::function<void(v1::RankReport)> report_;
  // Of the thread that trains: the last step whose checkpoint was begun, on all ranks alike.
  int64_t begun_step_ = -1;
  Mutex mu_;
  // Of the last checkpoints that were begun, without parts; at most kBegunMax.
  static constexpr size_t kBegunMax = 8;
  std::deque<checkpoint::Manifest> begun_ ABSL_GUARDED_BY(mu_);
  // Last: its thread uses what is above.
  checkpoint::Writer writer_;
};

}  // namespace phalanx::rank
