// tests/oracle/training/epochs.h: ranks as threads of this process whose training state outlives
// epochs, and epochs that end at any moment.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/job/job_spec.h"
#include "tests/oracle/training/harness.h"
#include "worker/train/trainer.h"

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

  // The last step that some rank knows to be decided.
  int64_t step() const { return start_.decision.step; }
  // Counted over all epochs, twice an operation.
  int64_t operations() const { return operations_; }
  // Epochs after which some rank did not know of that step, or some home had not applied it.
  int32_t left_behind() const { return left_behind_; }
  // What rank `rank` told of each step, in order.
  const std::vector<train::StepSummary>& told(int32_t rank) const;
  int32_t world() const { return world_; }
  // Fails the test if holders of one element disagree.
  TrainedStep Held() const;

 private:
  struct RankOf;
  class Stopper;
  // What a coordinator does with what ranks say of themselves.
  void TakeStandings();

  const job::JobSpec spec_;
  const plan::RankList lost_;
  int32_t world_ = 0;
  int64_t epoch_ = 0, operations_ = 0;
  int32_t left_behind_ = 0;
  train::Start start_;
  std::vector<std::unique_ptr<RankOf>> ranks_;
};

}  // namespace phalanx::oracle
