// worker/train/mirror_fill.h: mirrors get their state behind a change of layout, while steps are
// done.
//
// What a step needs of the state is at its primary homes before the first one. Mirrors that lacked
// something get it from the new primaries at the ends of steps, bucket by bucket: between two
// updates state does not change, so a mirror that has been given its part then is exact from there
// on. Until then its updates run on whatever it has, and it counts as a home of nothing that it
// lacks (StateBlock::lacking).
//
// Of the thread that trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "core/plan/ruler.h"
#include "worker/train/training_state.h"
#include "worker/train/transfers.h"
#include "worker/train/verified_exchange.h"

namespace phalanx::train {

class MirrorFill {
 public:
  // `transfers`: Transfers::mirrors of the change that the state has come by, the same for all
  // ranks of the group. Everything given by reference outlives it.
  MirrorFill(const plan::Plan& plan, Rank rank, TrainingState& state,
             std::vector<BucketTransfers> transfers, BulkGroup group,
             std::function<bool()> stopped);
  MirrorFill(const MirrorFill&) = delete;
  MirrorFill& operator=(const MirrorFill&) = delete;

  bool done() const { return next_ == transfers_.size(); }
  // What this rank's mirrors did not get as it was sent, the first of it in words; empty: they have
  // all. No step needs a mirror: these lack it until the next change of layout.
  const std::string& damaged() const { return damaged_; }
  // Once done(): that of all ranks of the group, known to all of them alike. False also where they
  // do not tell each other (before kDerivationOfUpdatesEverywhere).
  bool whole() const { return whole_; }
  // So many buckets a call of Run that all mirrors have theirs within plan::kMirrorsWithin where
  // steps take `step`, or at the end of the next one where it takes longer
  // (core/plan/safe_again.h). Every rank of the group calls it before its first Run and says what
  // it has seen: the longest counts, so that all get the same number, of 1 at least. Under the
  // derivation before kDerivationOfAgreedMirrorSteps it is that of kMirrorStepsMax steps, and
  // nobody is asked. Errors: those of VerifiedExchange; the group is of no more use then.
  absl::StatusOr<size_t> AgreeOnShare(absl::Duration step);
  // The next so many buckets; what a mirror has been given before, it is given again. Every rank of
  // the group calls it with the same number behind the same step, when all of that has been
  // enqueued and decided. Behind the last one mirrors are checked (mirror_check.h). Errors: those
  // of the communicator and of CheckMirrors; Internal if something is still lacking that is not
  // damaged. The group is of no more use then.
  absl::Status Run(size_t buckets);

 private:
  PartState* PartOf(const plan::PartId& id);
  const std::vector<plan::BucketRulers>& RulersOf(PartState& part);
  absl::Status Fill(const BucketTransfers& bucket);
  at::Tensor Pack(const BucketTransfers& bucket, Rank to);
  // `whole`: nothing that was sent is missing.
  absl::Status Unpack(const BucketTransfers& bucket, const std::vector<Parcel>& received,
                      bool whole);

  const plan::Plan& plan_;
  const Rank rank_;
  TrainingState& state_;
  const std::vector<BucketTransfers> transfers_;
  const BulkGroup group_;
  VerifiedExchange exchange_;
  size_t next_ = 0;
  std::string damaged_;
  bool whole_ = false;
  std::map<plan::PartId, std::vector<plan::BucketRulers>> rulers_;
};

}  // namespace phalanx::train
