#include "worker/model/tensor_group.h"

#include <ATen/ATen.h>

#include "core/base/status.h"
#include "core/plan/rows.h"

namespace phalanx::model {
namespace {

comm::DType DTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return comm::DType::kFp64;
    case at::kFloat:
      return comm::DType::kFp32;
    case at::kBFloat16:
      return comm::DType::kBf16;
    case at::kLong:
      return comm::DType::kInt64;
    default:
      TORCH_CHECK(false, "no collective for ", type);
  }
}

}  // namespace

absl::Status TensorGroup::AllReduce(const at::Tensor& tensor) const {
  if (communicator_ == nullptr || tensor.numel() == 0) return absl::OkStatus();
  TORCH_CHECK(tensor.is_contiguous(), "a collective needs contiguous memory");
  RETURN_IF_ERROR(communicator_->AllReduceSum(tensor.data_ptr(), tensor.numel(),
                                              DTypeOf(tensor.scalar_type())));
  return communicator_->Join();
}

absl::Status TensorGroup::AllGather(const at::Tensor& tensor, at::Tensor* gathered) const {
  if (communicator_ == nullptr) {
    *gathered = tensor.unsqueeze(0);
    return absl::OkStatus();
  }
  TORCH_CHECK(tensor.is_contiguous(), "a collective needs contiguous memory");
  std::vector<int64_t> shape = {communicator_->size()};
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  *gathered = at::empty(shape, tensor.options());
  RETURN_IF_ERROR(communicator_->AllGather(tensor.data_ptr(), gathered->data_ptr(), tensor.numel(),
                                           DTypeOf(tensor.scalar_type())));
  return communicator_->Join();
}

at::Tensor TensorGroup::Mine(const at::Tensor& whole) const {
  if (!slices_) return whole;
  const plan::UnitRange mine = plan::SliceOf(whole.size(0), width(), rank());
  return whole.narrow(0, mine.first, mine.count);
}

absl::Status TensorGroup::Whole(const at::Tensor& mine, int64_t rows, at::Tensor* whole) const {
  if (slices_ && mine.defined()) return GatherRows(mine, rows, whole);
  *whole = mine;
  return absl::OkStatus();
}

absl::Status TensorGroup::Sum(at::Tensor* rows) const {
  if (!slices_) return AllReduce(*rows);
  const int64_t count = rows->size(0), each = plan::SliceRows(count, width());
  at::Tensor blocks = *rows;
  if (width() * each > count) {
    blocks = at::empty({width() * each, rows->size(1)}, rows->options());
    blocks.narrow(0, 0, count).copy_(*rows);
  }
  TORCH_CHECK(blocks.is_contiguous(), "a collective needs contiguous memory");
  const at::Tensor sum = at::empty({each, rows->size(1)}, rows->options());
  RETURN_IF_ERROR(communicator_->ReduceScatterSum(blocks.const_data_ptr(), sum.mutable_data_ptr(),
                                                  sum.numel(), DTypeOf(rows->scalar_type())));
  RETURN_IF_ERROR(communicator_->Join());
  *rows = sum.narrow(0, 0, plan::SliceOf(count, width(), rank()).count);
  return absl::OkStatus();
}

absl::Status TensorGroup::GatherRows(const at::Tensor& slice, int64_t rows,
                                     at::Tensor* whole) const {
  if (communicator_ == nullptr) {
    *whole = slice;
    return absl::OkStatus();
  }
  // Equal blocks for the collective, which stand in the order of the rows.
  const int64_t each = plan::SliceRows(rows, width()), hidden = slice.size(1);
  const at::Tensor blocks = at::empty({width() * each, hidden}, slice.options());
  at::Tensor mine = slice;
  if (slice.size(0) < each) {
    mine = blocks.narrow(0, rank() * each, each);
    mine.narrow(0, 0, slice.size(0)).copy_(slice);
  }
  TORCH_CHECK(mine.is_contiguous(), "a collective needs contiguous memory");
  RETURN_IF_ERROR(communicator_->AllGather(mine.const_data_ptr(), blocks.mutable_data_ptr(),
                                           mine.numel(), DTypeOf(slice.scalar_type())));
  RETURN_IF_ERROR(communicator_->Join());
  *whole = blocks.narrow(0, 0, rows);
  return absl::OkStatus();
}

}  // namespace phalanx::model
