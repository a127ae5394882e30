// tests/oracle/training/epochs.h: ranks as threads of this process whose training state outlives
// epochs, and epochs that end at any moment; ranks that are lost and that return.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job_spec.h"
#include "core/plan/plan.h"
#include "tests/oracle/training/harness.h"
#include "worker/train/fault_points.h"
#include "worker/train/mirror_fill.h"
#include "worker/train/trainer.h"
#include "worker/train/transfers.h"

namespace phalanx::oracle {

// How an epoch ends before its last step.
struct Ending {
  enum class Kind : uint8_t {
    kStop,     // every rank is told to stop and its communicators are aborted
    kAbort,    // communicators fail, as when a peer dies
    kStopOne,  // one rank alone is told to stop: the others learn of it
  } kind = Kind::kStop;
  // When: the communicators of all ranks together count twice an operation, once before and once
  // after it.
  int64_t at = 0;
  int32_t rank = 0;  // kStopOne
};

class EpochsInProcess {
 public:
  // In the layout without the ranks `lost`.
  EpochsInProcess(const job::JobSpec& spec, const DataShape& data, plan::RankList lost = {});
  ~EpochsInProcess();

  // Runs an epoch from where the states stand to the last step, or to `ending`. Fails the test if
  // it ends in another way. Returns whether it reached the last step.
  bool Run(const std::optional<Ending>& ending);
  // Runs an epoch of so many steps.
  void RunSteps(int64_t steps);

  // Ranks die, with all that they had: the others come to lie in the layout that is left, unless
  // operation `stop_at` of that ends it. Returns whether it did not.
  bool Lose(const plan::RankList& ranks, std::optional<int64_t> stop_at = std::nullopt);
  // The same, but the ranks give away what they have before they go: as if their nodes had copies.
  bool Retire(const plan::RankList& ranks, std::optional<int64_t> stop_at = std::nullopt);
  // What was ended goes on: into the same layout.
  bool MoveOn(std::optional<int64_t> stop_at = std::nullopt) { return Enter(plan_, stop_at); }
  // All ranks are there again, those that were lost as new processes: the healthy layout.
  bool ReturnAll(std::optional<int64_t> stop_at = std::nullopt);

  // What rank `rank`'s process does wrong, from its next epoch on; it outlives this.
  void SetFaults(int32_t rank, train::FaultPoints& faults);

  // Mirrors get what they lack at the end of the first step of an epoch, as in a job; else they
  // have it before that.
  void LetMirrorsFollow() { mirrors_follow_ = true; }

  const plan::Plan& plan() const { return plan_; }
  // The last step that some rank knows to be decided.
  int64_t step() const { return start_.decision.step; }
  // Counted over all epochs, twice an operation; also of what moves between them.
  int64_t operations() const { return operations_; }
  // Epochs after which some rank did not know of that step, or some home had not applied it.
  int32_t left_behind() const { return left_behind_; }
  // What rank `rank` told of each step, in order, since its process is there.
  const std::vector<train::StepSummary>& told(int32_t rank) const;
  // What rank `rank`'s process has run before steps.
  const train::WarmPasses& warm(int32_t rank) const;
  int32_t world() const { return world_; }
  // Elements whose state was given to another rank, over all layouts.
  int64_t moved() const { return moved_; }
  // Fails the test if holders of one element disagree.
  TrainedStep Held() const;

 private:
  struct RankOf;
  class Stopper;
  // Runs an epoch of at most `steps` steps, or to the job's last one.
  bool RunEpoch(const std::optional<Ending>& ending, std::optional<int64_t> steps);
  absl::Status Train(int32_t number, train::Trainer& trainer, std::optional<int64_t> steps);
  bool Enter(plan::Plan after, std::optional<int64_t> stop_at);
  // Of what mirrors lack behind the last change of layout; absent: of nothing.
  std::optional<train::MirrorFill> FillOf(int32_t number, comm::Communicators& communicators);
  bool MoveAll(const plan::RankList& live, const train::Transfers& transfers,
               std::optional<int64_t> stop_at);
  // Every rank that lives goes on from the start and leaves its layout.
  void LeaveLayouts();
  // What a coordinator does with what ranks say of themselves.
  void TakeStandings();

  const job::JobSpec spec_;
  bool mirrors_follow_ = false;
  plan::Plan plan_;                          // of the next epoch
  std::map<std::string, plan::Plan> plans_;  // in which states may lie, by digest
  plan::Plan healthy_;
  int32_t world_ = 0;
  int64_t epoch_ = 0, operations_ = 0, moved_ = 0;
  int32_t left_behind_ = 0;
  train::Start start_;
  std::vector<std::unique_ptr<RankOf>> ranks_;
};

}  // namespace phalanx::oracle
