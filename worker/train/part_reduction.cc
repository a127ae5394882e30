#include "worker/train/part_reduction.h"

#include <array>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::train {
namespace {

bool IsVocabularyRole(const std::string& role) { return role == "embedding" || role == "head"; }

}  // namespace

PartReduction::PartReduction(const plan::Plan& plan, PartState& state, const PartGroups& groups)
    : state_(state), groups_(groups) {
  if (state_.trains()) FindSharedPieces(plan);
}

void PartReduction::FindTiedGradient() {
  const char* role = state_.parameters().Find("embedding") != nullptr ? "embedding" : "head";
  const plan::LocalMatrix* matrix = state_.parameters().Find(role);
  tied_gradient_ = state_.gradients().narrow(0, matrix->offset, matrix->rows * matrix->cols);
}

void PartReduction::TieTo(int32_t control_rank) {
  tied_rank_ = control_rank;
  FindTiedGradient();
  tied_received_ = at::empty_like(tied_gradient_);
}

void PartReduction::TieTo(PartReduction& other) {
  tied_part_ = &other;
  FindTiedGradient();
  other.FindTiedGradient();
}

// The tensor group sums whole key and value tensors in which some head is shared: every rank adds
// its summands at the rows of the logical tensor, so all ranks agree on the layout whatever they
// hold.
void PartReduction::FindSharedPieces(const plan::Plan& plan) {
  if (groups_.tensor == nullptr) return;
  std::map<std::string, std::array<int64_t, 2>> slots;  // tensor name -> offset, elements
  int64_t elements = 0;
  for (int32_t tp = 0; tp < state_.place().width; ++tp) {
    plan::Place other = state_.place();
    other.tp = tp;
    const plan::StageParameters parameters = plan::ParametersOf(plan, other, state_.chunk());
    for (const plan::LocalMatrix& matrix : parameters.matrices) {
      if (IsVocabularyRole(matrix.role)) continue;
      for (const plan::Piece& piece : matrix.pieces) {
        if (piece.holding != plan::Holding::kPartial) continue;
        const plan::LogicalTensor& tensor = parameters.logical[static_cast<size_t>(piece.logical)];
        if (slots.try_emplace(tensor.name, std::array<int64_t, 2>{0, tensor.rows * tensor.cols})
                .second) {
          elements += tensor.rows * tensor.cols;
        }
      }
    }
  }
  if (elements == 0) return;
  int64_t offset = 0;
  for (auto& [name, slot] : slots) {
    slot[0] = offset;
    offset += slot[1];
  }
  shared_buffer_ = at::zeros({elements}, state_.gradients().options());
  for (const plan::LocalMatrix& matrix : state_.parameters().matrices) {
    if (IsVocabularyRole(matrix.role)) continue;
    for (const plan::Piece& piece : matrix.pieces) {
      if (piece.holding != plan::Holding::kPartial) continue;
      const plan::LogicalTensor& tensor =
          state_.parameters().logical[static_cast<size_t>(piece.logical)];
      const int64_t count = piece.rows * matrix.cols;
      shared_pieces_.push_back(
          {state_.gradients().narrow(0, matrix.offset + piece.local_row * matrix.cols, count),
           shared_buffer_.narrow(0, slots[tensor.name][0] + piece.logical_row * tensor.cols,
                                 count)});
    }
  }
}

absl::Status PartReduction::ReduceSharedPieces() {
  if (!shared_buffer_.defined()) return absl::OkStatus();
  shared_buffer_.zero_();
  for (SharedPiece& piece : shared_pieces_) piece.slot.copy_(piece.gradient);
  RETURN_IF_ERROR(groups_.tensor->AllReduceSum(shared_buffer_.mutable_data_ptr(),
                                               shared_buffer_.numel(),
                                               CommDType(shared_buffer_.scalar_type())));
  RETURN_IF_ERROR(groups_.tensor->Join());
  for (SharedPiece& piece : shared_pieces_) piece.gradient.copy_(piece.slot);
  return absl::OkStatus();
}

// Both ends add the same two summands, so both get the same bits.
absl::Status PartReduction::SumTiedEnds() {
  if (tied_part_ != nullptr) {
    tied_gradient_.add_(tied_part_->tied_gradient_);
    tied_part_->tied_gradient_.copy_(tied_gradient_);
  }
  if (tied_rank_ < 0) return absl::OkStatus();
  const int64_t bytes = static_cast<int64_t>(tied_gradient_.nbytes());
  const comm::Outgoing out{tied_rank_, tied_gradient_.const_data_ptr(), bytes};
  const comm::Incoming in{tied_rank_, tied_received_.mutable_data_ptr(), bytes};
  RETURN_IF_ERROR(groups_.control->Exchange({&out, 1}, {&in, 1}));
  RETURN_IF_ERROR(groups_.control->Flush());
  RETURN_IF_ERROR(groups_.control->Join());
  tied_gradient_.add_(tied_received_);
  return absl::OkStatus();
}

absl::Status PartReduction::Reduce() {
  RETURN_IF_ERROR(ReduceSharedPieces());
  if (groups_.data == nullptr) return absl::OkStatus();
  char* base = static_cast<char*>(state_.gradients().mutable_data_ptr());
  const int64_t size = static_cast<int64_t>(state_.gradients().element_size());
  for (const plan::Bucket& bucket : state_.buckets()) {
    const int64_t part = bucket.elements / state_.parameters().replicas;
    char* begin = base + bucket.offset * size;
    RETURN_IF_ERROR(groups_.data->ReduceScatterSum(begin,
                                                   begin + groups_.data->rank() * part * size, part,
                                                   CommDType(state_.gradients().scalar_type())));
  }
  return groups_.data->Join();
}

absl::Status PartReduction::Gather() {
  if (groups_.data == nullptr) return absl::OkStatus();
  char* base = static_cast<char*>(state_.weights().mutable_data_ptr());
  const int64_t size = static_cast<int64_t>(state_.weights().element_size());
  for (const plan::Bucket& bucket : state_.buckets()) {
    const int64_t part = bucket.elements / state_.parameters().replicas;
    char* begin = base + bucket.offset * size;
    RETURN_IF_ERROR(groups_.data->AllGather(begin + groups_.data->rank() * part * size, begin, part,
                                            CommDType(state_.weights().scalar_type())));
  }
  return groups_.data->Join();
}

absl::Status PartReduction::VerifyCopies() {
  if (groups_.data == nullptr) return absl::OkStatus();
  const at::Tensor& weights = state_.weights();
  const at::ScalarType bits = weights.element_size() == 8   ? at::kLong
                              : weights.element_size() == 4 ? at::kInt
                                                            : at::kShort;
  // A sum of bit patterns, modulo 2^64: any one element that differs shows.
  const at::Tensor sum = weights.view(bits).sum(at::kLong).reshape({1});
  at::Tensor all = at::empty({groups_.data->size()}, sum.options());
  RETURN_IF_ERROR(groups_.data->AllGather(sum.const_data_ptr(), all.mutable_data_ptr(), 1,
                                          comm::DType::kInt64));
  RETURN_IF_ERROR(groups_.data->Join());
  if ((all == sum).all().item<bool>()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("replicas hold different parameters of pipeline part ",
                                          state_.place().pp, " chunk ", state_.chunk(),
                                          " of module ", state_.place().module));
}

}  // namespace phalanx::train
