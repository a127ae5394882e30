// worker/model/tensor_group.h: collectives of one tensor group on tensors.
//
// A group of width 1 has no communicator and its collectives do nothing. On CUDA the caller's
// current stream waits for the result; the host does not.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"

namespace phalanx::model {

// Not thread-safe.
class TensorGroup {
 public:
  // `communicator` may be nullptr: width 1. It outlives the group.
  explicit TensorGroup(comm::Communicator* communicator) : communicator_(communicator) {}

  int32_t width() const { return communicator_ == nullptr ? 1 : communicator_->size(); }

  // `tensor` (contiguous) becomes its sum over the group.
  absl::Status AllReduce(const at::Tensor& tensor) const;
  // [width, ...]: every rank's `tensor` (contiguous, of equal shape).
  absl::Status AllGather(const at::Tensor& tensor, at::Tensor* gathered) const;
  // [rows, H], of which every rank has its slice (plan::SliceOf), contiguous.
  absl::Status GatherRows(const at::Tensor& slice, int64_t rows, at::Tensor* whole) const;

 private:
  comm::Communicator* communicator_;
};

}  // namespace phalanx::model
