// worker/train/copy_exchange.h: keeps the copies of a replica alike (core/plan/copies.h), for one
// epoch.
//
// A set of copies that are exchanged together, on one communicator. Fold() brings the followers'
// summands to the leaders, which add them in the order of the copies; Spread() brings the leaders'
// parameters to the followers.
//
// Not thread-safe. On CUDA only enqueues.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/copies.h"
#include "worker/comm/communicator.h"
#include "worker/train/part_state.h"

namespace phalanx::train {

class CopyExchange {
 public:
  // nullptr: only parts of this rank are at the ends.
  explicit CopyExchange(comm::Communicator* communicator) : communicator_(communicator) {}

  // `lead`, `follower`: the part of this rank at that end, nullptr where it is at `peer`, a rank of
  // the communicator. Both ends add their copies in the same order.
  void Add(const plan::Copy& copy, PartState* lead, PartState* follower, int32_t peer);

  absl::Status Fold();
  absl::Status Spread();

 private:
  struct Link {
    PartState* lead = nullptr;
    PartState* follower = nullptr;
    int32_t peer = -1;
    std::vector<plan::CopyRun> runs, folded;
    at::Tensor gradients, weights;  // what travels, run after run; undefined inside a rank
  };
  absl::Status Exchange(at::Tensor Link::*packed, PartState* Link::*sender);

  comm::Communicator* const communicator_;
  std::vector<Link> links_;
};

}  // namespace phalanx::train
