#include "worker/model/tensor_group.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

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

absl::Status TensorGroup::Begun(Transfer* transfer) const {
  ASSIGN_OR_RETURN(transfer->end, communicator_->Mark());
  return communicator_->Lead();
}

absl::Status Await(Transfer* transfer, at::Tensor* rows) {
  Transfer ended = std::exchange(*transfer, {});
  if (ended.end != nullptr) RETURN_IF_ERROR(ended.end());
  *rows = std::move(ended.result);
  return absl::OkStatus();
}

absl::Status TensorGroup::BeginWhole(const at::Tensor& mine, int64_t rows,
                                     Transfer* transfer) const {
  if (slices_ && mine.defined()) return BeginGather(mine, rows, transfer);
  *transfer = {.result = mine};
  return absl::OkStatus();
}

absl::Status TensorGroup::Whole(const at::Tensor& mine, int64_t rows, at::Tensor* whole) const {
  Transfer transfer;
  RETURN_IF_ERROR(BeginWhole(mine, rows, &transfer));
  return Await(&transfer, whole);
}

absl::Status TensorGroup::BeginSum(const at::Tensor& rows, Transfer* transfer) const {
  *transfer = {.result = rows};
  if (communicator_ == nullptr || rows.numel() == 0) return absl::OkStatus();
  TORCH_CHECK(rows.is_contiguous(), "a collective needs contiguous memory");
  const comm::DType type = DTypeOf(rows.scalar_type());
  if (!slices_) {
    RETURN_IF_ERROR(communicator_->AllReduceSum(rows.data_ptr(), rows.numel(), type));
    return Begun(transfer);
  }
  const int64_t count = rows.size(0), each = plan::SliceRows(count, width());
  transfer->source = rows;
  if (width() * each > count) {
    transfer->source = at::empty({width() * each, rows.size(1)}, rows.options());
    transfer->source.narrow(0, 0, count).copy_(rows);
  }
  const at::Tensor sum = at::empty({each, rows.size(1)}, rows.options());
  transfer->result = sum.narrow(0, 0, plan::SliceOf(count, width(), rank()).count);
  RETURN_IF_ERROR(communicator_->ReduceScatterSum(transfer->source.const_data_ptr(),
                                                  sum.mutable_data_ptr(), sum.numel(), type));
  return Begun(transfer);
}

absl::Status TensorGroup::Sum(at::Tensor* rows) const {
  Transfer transfer;
  RETURN_IF_ERROR(BeginSum(*rows, &transfer));
  return Await(&transfer, rows);
}

absl::Status TensorGroup::BeginGather(const at::Tensor& slice, int64_t rows,
                                      Transfer* transfer) const {
  // Equal blocks for the collective, which stand in the order of the rows.
  const int64_t each = plan::SliceRows(rows, width()), hidden = slice.size(1);
  const at::Tensor blocks = at::empty({width() * each, hidden}, slice.options());
  at::Tensor mine = slice;
  if (slice.size(0) < each) {
    mine = blocks.narrow(0, rank() * each, each);
    mine.narrow(0, 0, slice.size(0)).copy_(slice);
  }
  TORCH_CHECK(mine.is_contiguous(), "a collective needs contiguous memory");
  *transfer = {.source = mine, .result = blocks.narrow(0, 0, rows)};
  RETURN_IF_ERROR(communicator_->AllGather(mine.const_data_ptr(), blocks.mutable_data_ptr(),
                                           mine.numel(), DTypeOf(slice.scalar_type())));
  return Begun(transfer);
}

absl::Status TensorGroup::GatherRows(const at::Tensor& slice, int64_t rows,
                                     at::Tensor* whole) const {
  Transfer transfer{.result = slice};
  if (communicator_ != nullptr) RETURN_IF_ERROR(BeginGather(slice, rows, &transfer));
  return Await(&transfer, whole);
}

}  // namespace phalanx::model
