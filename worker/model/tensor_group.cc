#include "worker/model/tensor_group.h"

#include <ATen/ATen.h>

#include "core/base/status.h"

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

}  // namespace phalanx::model
