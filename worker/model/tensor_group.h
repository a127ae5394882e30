// worker/model/tensor_group.h: collectives of one tensor group on tensors.
//
// A group of width 1 has no communicator and its collectives do nothing. On CUDA the caller's
// current stream waits for the result; the host does not.
//
// Between products of matrices that are cut over the group, rows of tokens [rows, H] either lie
// whole on every rank, or, under sequence parallelism, each rank has its slice of them
// (plan::SliceOf): then what is done row by row is done once, and what is kept is kept once.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"

namespace phalanx::model {

// Rows on their way among the ranks of a group, from the call that begins it to Await(). On CUDA
// the caller's work in between runs beside it. Holds the memory that it reads and writes, which
// LibTorch would otherwise give to that work.
struct Transfer {
  at::Tensor source, result;
  comm::Communicator::Point end;  // none: nothing travels
};
// `rows` is what has come, once the caller's current stream has waited for it.
absl::Status Await(Transfer* transfer, at::Tensor* rows);

// Not thread-safe.
class TensorGroup {
 public:
  // `communicator` may be nullptr: width 1. It outlives the group. `slices`: sequence parallelism.
  explicit TensorGroup(comm::Communicator* communicator, bool slices = false)
      : communicator_(communicator), slices_(slices && communicator != nullptr) {}
  TensorGroup WithSlices(bool slices) const { return TensorGroup(communicator_, slices); }

  int32_t width() const { return communicator_ == nullptr ? 1 : communicator_->size(); }
  int32_t rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  bool slices() const { return slices_; }

  // What this rank has of rows between products: of `whole`, which every rank has; a view.
  at::Tensor Mine(const at::Tensor& whole) const;
  // All `rows`, of which every rank has what is its; undefined for what is undefined.
  absl::Status BeginWhole(const at::Tensor& mine, int64_t rows, Transfer* transfer) const;
  absl::Status Whole(const at::Tensor& mine, int64_t rows, at::Tensor* whole) const;
  // `rows` (contiguous), a summand of all rows on each rank, become what this rank has of the sum.
  absl::Status BeginSum(const at::Tensor& rows, Transfer* transfer) const;
  absl::Status Sum(at::Tensor* rows) const;

  // [width, ...]: every rank's `tensor` (contiguous, of equal shape).
  absl::Status AllGather(const at::Tensor& tensor, at::Tensor* gathered) const;
  // [rows, H], of which every rank has its slice (plan::SliceOf), contiguous.
  absl::Status GatherRows(const at::Tensor& slice, int64_t rows, at::Tensor* whole) const;

 private:
  absl::Status BeginGather(const at::Tensor& slice, int64_t rows, Transfer* transfer) const;
  // What was enqueued last is the transfer's.
  absl::Status Begun(Transfer* transfer) const;

  comm::Communicator* communicator_;
  bool slices_;
};

}  // namespace phalanx::model
