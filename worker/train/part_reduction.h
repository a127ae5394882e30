// worker/train/part_reduction.h: the collectives that keep the copies of one pipeline part alike,
// for one epoch.
//
// Replica r of n reduces its shard of every bucket (part_state.h) and, after the optimizer, gives
// it to the others.
//
// Not thread-safe. On CUDA only enqueues.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/plan.h"
#include "worker/comm/communicator.h"
#include "worker/train/part_state.h"

namespace phalanx::train {

// The communicators that one part needs on one rank; nullptr: a group of one.
struct PartGroups {
  comm::Communicator* tensor = nullptr;
  comm::Communicator* data = nullptr;
  comm::Communicator* control = nullptr;  // for the two ends of a tied embedding
};

class PartReduction {
 public:
  // `state` and the communicators outlive it.
  PartReduction(const plan::Plan& plan, PartState& state, const PartGroups& groups);

  // The other end of a tied embedding, which trains: at a control rank (both ends call it), or a
  // part of this rank, which must outlive this one (one of the two calls it).
  void TieTo(int32_t control_rank);
  void TieTo(PartReduction& other);

  // Sums gradients over everyone who has a summand. First the two ends of a tied embedding, in
  // every part of a rank before any Reduce: ends are different parts, so that the order of
  // reductions does not order them. Then tensor ranks that share a KV head, and replicas.
  // Afterwards this rank's shard holds the complete sum.
  absl::Status SumTiedEnds();
  absl::Status Reduce();
  // Every rank's weights from the shards.
  absl::Status Gather();
  // Whether replicas have the same weights, all of them. On CUDA waits for the device. Errors:
  // Internal if they differ.
  absl::Status VerifyCopies();

 private:
  void FindTiedGradient();
  void FindSharedPieces(const plan::Plan& plan);
  absl::Status ReduceSharedPieces();

  PartState& state_;
  const PartGroups groups_;

  // Gradients of KV heads that several tensor ranks hold: views into the flat buffer and the place
  // of each in the buffer that the tensor group sums.
  struct SharedPiece {
    at::Tensor gradient, slot;
  };
  std::vector<SharedPiece> shared_pieces_;
  at::Tensor shared_buffer_;
  int32_t tied_rank_ = -1;              // control rank of the other end
  PartReduction* tied_part_ = nullptr;  // or it, on this rank
  at::Tensor tied_gradient_, tied_received_;
};

}  // namespace phalanx::train
