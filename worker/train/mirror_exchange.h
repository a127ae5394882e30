// worker/train/mirror_exchange.h: brings the reduced gradients of one bucket from the primary homes
// of its shares to their mirrors, in place (core/plan/reduction.h).
//
// Not thread-safe. On CUDA only enqueues, on the current stream and the communicator's.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/reduction.h"
#include "worker/comm/communicator.h"
#include "worker/train/packed_runs.h"
#include "worker/train/reduction_scratch.h"

namespace phalanx::train {

class MirrorExchange {
 public:
  // `scratch` outlives it. `type`: of the gradients.
  MirrorExchange(const plan::ReducedBucket& bucket, at::Device device, at::ScalarType type,
                 ReductionScratch& scratch);

  absl::Status Run(at::Tensor& gradients, comm::Communicator& data) const;
  // Where it packs nothing: its messages, for an exchange of several buckets.
  void Add(at::Tensor& gradients, std::vector<comm::Outgoing>& sends,
           std::vector<comm::Incoming>& receives) const;

 private:
  bool packs() const { return sent_packed_ + received_packed_ > 0; }
  // One run is sent and received where it stands; several are packed.
  struct Message {
    int32_t peer = 0;
    plan::UnitRange elements;  // in the buffer, or among the packed ones
    bool packed = false;
    PackedRuns runs;
  };
  static std::vector<Message> MessagesOf(const std::vector<plan::MirrorPeer>& peers,
                                         at::Device device, int64_t* packed);

  ReductionScratch& scratch_;
  int64_t sent_packed_ = 0, received_packed_ = 0;  // elements; filled with the messages
  std::vector<Message> sends_, receives_;
};

}  // namespace phalanx::train
