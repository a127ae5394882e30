// worker/train/part_reduction.h: the collectives that keep the copies of one pipeline part alike,
// for one epoch.
//
// Replica r of n reduces its share of every bucket (part_state.h) and, after the optimizer, gives
// it to the others.
//
// Not thread-safe. On CUDA only enqueues.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/reduction.h"
#include "worker/comm/communicator.h"
#include "worker/train/copy_exchange.h"
#include "worker/train/part_state.h"

namespace phalanx::train {

// The communicators that one part needs on one rank; nullptr: a group of one.
struct PartGroups {
  comm::Communicator* tensor = nullptr;
  comm::Communicator* data = nullptr;
};

class PartReduction {
 public:
  // `state` and the communicators outlive it.
  PartReduction(plan::Reduction reduction, PartState& state, const PartGroups& groups);

  // Folds the copies of the tensor group, then sums over the replicas: once Await() has returned,
  // this rank's shares hold the complete sum.
  absl::Status Reduce();
  // Every rank's weights from the shares, then the copies of the tensor group from their leaders:
  // complete once Await() has returned.
  absl::Status Gather();
  // Makes the current stream wait for what Reduce() or Gather() has begun, and for no other part's.
  absl::Status Await();
  bool pending() const { return begun_ != nullptr || spreads_; }
  // Whether replicas have the same weights, all of them. On CUDA waits for the device. Errors:
  // Internal if they differ; those of AwaitDevice().
  absl::Status VerifyCopies();

 private:
  // What this rank is the home of. Ranks of the data communicator are positions in the group.
  plan::UnitRange ShareOf(const plan::ReducedBucket& bucket) const {
    return bucket.shares[static_cast<size_t>(reduction_.self)].elements;
  }

  const plan::Reduction reduction_;
  PartState& state_;
  const PartGroups groups_;
  CopyExchange copies_;              // of the tensor group
  comm::Communicator::Point begun_;  // behind what is to be waited for; else empty
  bool spreads_ = false;
};

}  // namespace phalanx::train
