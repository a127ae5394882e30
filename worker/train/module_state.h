// worker/train/module_state.h: parameters, gradients and optimizer state of one pipeline part on
// one rank, and the collectives that keep replicas alike.
//
// Weights and gradients are flat buffers laid out by plan::ParametersOf. Replica r of n owns the
// r-th n-th of every bucket (a ZeRO-1 shard): it alone reduces, keeps optimizer state for it and
// updates it; then the buckets are gathered. Matrices that do not train have no optimizer state,
// and a part where none trains has no gradients.
//
// Not thread-safe. On CUDA only enqueues.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "worker/comm/communicator.h"
#include "worker/train/step_kernels.h"

namespace phalanx::train {

comm::DType CommDType(at::ScalarType type);
// max(fp32, compute).
at::ScalarType GradientType(at::ScalarType compute);
at::ScalarType ComputeType(job::Precision precision);

// The communicators that one module needs on one rank; nullptr: a group of one.
struct ModuleGroups {
  comm::Communicator* tensor = nullptr;
  comm::Communicator* data = nullptr;
  comm::Communicator* control = nullptr;  // for the two ends of a tied embedding
};

class ModuleState {
 public:
  ModuleState(const plan::Plan& plan, const plan::Place& place, int32_t chunk,
              const ModuleGroups& groups, at::Device device, at::ScalarType compute,
              int32_t init_threads);

  const plan::Place& place() const { return place_; }
  int32_t chunk() const { return chunk_; }
  const plan::StageParameters& parameters() const { return parameters_; }
  at::Tensor& weights() { return weights_; }
  at::Tensor& gradients() { return gradients_; }  // undefined where nothing trains
  ShardState& shard() { return shard_; }
  bool trains() const { return gradients_.defined(); }

  // The other end of a tied embedding, which trains: at a control rank (both ends call it), or a
  // part of this rank, which must outlive this one (one of the two calls it).
  void TieTo(int32_t control_rank);
  void TieTo(ModuleState& other);

  void ZeroGradients() {
    if (gradients_.defined()) gradients_.zero_();
  }
  // Sums gradients over everyone who has a summand. First the two ends of a tied embedding, in
  // every state of a rank before any Reduce: ends are different parts, so that the order of
  // reductions does not order them. Then tensor ranks that share a KV head, and replicas.
  // Afterwards this rank's shard holds the complete sum.
  absl::Status SumTiedEnds();
  absl::Status Reduce();
  // Every rank's weights from the shards.
  absl::Status Gather();

 private:
  void BuildShard(int32_t replica, at::ScalarType compute);
  void FindTiedGradient();
  void FindSharedPieces(const plan::Plan& plan);
  absl::Status ReduceSharedPieces();

  plan::Place place_;
  int32_t chunk_;
  ModuleGroups groups_;
  plan::StageParameters parameters_;
  at::Tensor weights_;
  at::Tensor gradients_;
  ShardState shard_;

  // Gradients of KV heads that several tensor ranks hold: views into the flat buffer and the place
  // of each in the buffer that the tensor group sums.
  struct SharedPiece {
    at::Tensor gradient, slot;
  };
  std::vector<SharedPiece> shared_pieces_;
  at::Tensor shared_buffer_;
  std::vector<plan::Bucket> buckets_;  // those that hold something that trains
  int32_t tied_rank_ = -1;             // control rank of the other end
  ModuleState* tied_state_ = nullptr;  // or its state, on this rank
  at::Tensor tied_gradient_, tied_received_;
};

}  // namespace phalanx::train
