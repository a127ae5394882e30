// worker/train/share_exchange.h: the reduction of a pipeline part whose replicas differ in width,
// for one epoch (core/plan/reduction.h).
//
// Bucket after bucket: what this rank leads goes, packed, to the homes of its shares, and what it
// is home of comes from those that lead it, in one exchange; the home sums in the order of the
// replicas. The way back brings the homes' weights.
//
// Not thread-safe. On CUDA only enqueues, on the current stream and the communicator's.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/reduction.h"
#include "worker/comm/communicator.h"
#include "worker/train/mirror_exchange.h"
#include "worker/train/packed_runs.h"
#include "worker/train/part_state.h"
#include "worker/train/reduction_scratch.h"

namespace phalanx::train {

// The integers as wide as the tensor's elements.
at::ScalarType BitsOf(const at::Tensor& tensor);

class ShareExchange {
 public:
  // `state`, `data` and `scratch` outlive it. `reduction` has buckets that are not even.
  ShareExchange(const plan::Reduction& reduction, PartState& state, comm::Communicator& data,
                ReductionScratch& scratch);

  // The sums of this rank's shares, and of those that it mirrors, stand in its gradients.
  absl::Status Reduce();
  // The weights of what this rank leads are those of their homes.
  absl::Status Gather();
  // Exchanges sums over the bits of what the two ends of each message hold of the weights: int64
  // [2, messages], the peers' and this rank's.
  absl::StatusOr<at::Tensor> BitSums();

 private:
  struct Message {
    int32_t peer = 0;
    plan::UnitRange given, taken;  // among the packed elements
  };
  struct Bucket {
    PackedRuns give, take;
    SummedRuns sums;
    std::vector<Message> messages;
    MirrorExchange mirrors;
  };
  absl::Status Exchange(const Bucket& bucket, const at::Tensor& packed,
                        plan::UnitRange Message::*sent, const at::Tensor& arriving,
                        plan::UnitRange Message::*received);

  PartState& state_;
  comm::Communicator& data_;
  ReductionScratch& scratch_;
  std::vector<Bucket> buckets_;
  std::vector<int32_t> peers_;  // of any bucket, ascending
};

}  // namespace phalanx::train
