#include "worker/train/module_state.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "worker/model/stage_io.h"

namespace phalanx::train {
namespace {

bool IsVocabularyRole(const std::string& role) { return role == "embedding" || role == "head"; }

// Rows [begin, end) of the flat buffer with the same flags.
struct FlagRun {
  int64_t begin = 0, end = 0;
  bool trains = true, decay = false, counted = true;
  bool SameFlags(const FlagRun& other) const {
    return trains == other.trains && decay == other.decay && counted == other.counted;
  }
};

// The flags of every element of the flat buffer, as runs in order. What no piece covers is padding,
// whose gradient is zero: it may join any run.
std::vector<FlagRun> FlagRuns(const plan::StageParameters& parameters) {
  std::vector<FlagRun> runs;
  auto append = [&runs](FlagRun run) {
    if (run.begin == run.end) return;
    if (!runs.empty() && runs.back().SameFlags(run)) {
      runs.back().end = run.end;
      return;
    }
    if (!runs.empty()) run.begin = runs.back().end;
    runs.push_back(run);
  };
  for (const plan::LocalMatrix& matrix : parameters.matrices) {
    bool decay = false;
    std::vector<std::pair<int64_t, int64_t>> uncounted;  // rows [first, end)
    for (const plan::Piece& piece : matrix.pieces) {
      decay |= parameters.logical[static_cast<size_t>(piece.logical)].decay;
      if (!piece.primary) uncounted.emplace_back(piece.local_row, piece.local_row + piece.rows);
    }
    std::sort(uncounted.begin(), uncounted.end());
    int64_t row = 0;
    auto rows_to = [&](int64_t end, bool counted) {
      append({matrix.offset + row * matrix.cols, matrix.offset + end * matrix.cols, matrix.trains,
              decay, counted});
      row = end;
    };
    for (const auto& [first, end] : uncounted) {
      if (first > row) rows_to(first, true);
      if (end > row) rows_to(end, false);
    }
    if (row < matrix.rows) rows_to(matrix.rows, true);
  }
  if (!runs.empty()) {
    runs.front().begin = 0;
    runs.back().end = parameters.elements;
  }
  return runs;
}

}  // namespace

comm::DType CommDType(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return comm::DType::kBf16;
    case at::kFloat:
      return comm::DType::kFp32;
    case at::kDouble:
      return comm::DType::kFp64;
    case at::kLong:
      return comm::DType::kInt64;
    default:
      return comm::DType::kByte;
  }
}

at::ScalarType GradientType(at::ScalarType compute) {
  return compute == at::kDouble ? at::kDouble : at::kFloat;
}

at::ScalarType ComputeType(job::Precision precision) {
  switch (precision) {
    case job::Precision::kBf16:
      return at::kBFloat16;
    case job::Precision::kFp32:
      return at::kFloat;
    case job::Precision::kFp64:
      return at::kDouble;
  }
  return at::kFloat;
}

ModuleState::ModuleState(const plan::Plan& plan, const plan::Place& place, int32_t chunk,
                         const ModuleGroups& groups, at::Device device, at::ScalarType compute,
                         int32_t init_threads)
    : place_(place),
      chunk_(chunk),
      groups_(groups),
      parameters_(plan::ParametersOf(plan, place, chunk)) {
  const auto options = at::TensorOptions().device(device);
  weights_ = at::zeros({parameters_.elements}, options.dtype(compute));
  model::InitialiseWeights(plan, place, parameters_, weights_, init_threads);
  if (parameters_.TrainedElements() == 0) return;
  gradients_ = at::zeros({parameters_.elements}, options.dtype(GradientType(compute)));
  for (const plan::Bucket& bucket : parameters_.buckets) {
    const auto first = parameters_.matrices.begin() + bucket.first_matrix;
    if (std::any_of(first, first + bucket.matrices,
                    [](const plan::LocalMatrix& m) { return m.trains; })) {
      buckets_.push_back(bucket);
    }
  }
  BuildShard(groups_.data == nullptr ? 0 : groups_.data->rank(), compute);
  FindSharedPieces(plan);
}

void ModuleState::FindTiedGradient() {
  const char* role = parameters_.Find("embedding") != nullptr ? "embedding" : "head";
  const plan::LocalMatrix* matrix = parameters_.Find(role);
  tied_gradient_ = gradients_.narrow(0, matrix->offset, matrix->rows * matrix->cols);
}

void ModuleState::TieTo(int32_t control_rank) {
  tied_rank_ = control_rank;
  FindTiedGradient();
  tied_received_ = at::empty_like(tied_gradient_);
}

void ModuleState::TieTo(ModuleState& other) {
  tied_state_ = &other;
  FindTiedGradient();
  other.FindTiedGradient();
}

void ModuleState::BuildShard(int32_t replica, at::ScalarType compute) {
  const std::vector<FlagRun> flags = FlagRuns(parameters_);
  for (const plan::Bucket& bucket : buckets_) {
    const int64_t part = bucket.elements / parameters_.replicas;
    const int64_t begin = bucket.offset + replica * part, end = begin + part;
    auto run = std::upper_bound(
        flags.begin(), flags.end(), begin,
        [](int64_t value, const FlagRun& candidate) { return value < candidate.end; });
    for (; run != flags.end() && run->begin < end; ++run) {
      if (!run->trains) continue;
      const int64_t first = std::max(begin, run->begin), last = std::min(end, run->end);
      shard_.runs.push_back({.gradient_offset = first,
                             .state_offset = shard_.elements,
                             .count = last - first,
                             .decay = run->decay,
                             .counted = run->counted});
      shard_.elements += last - first;
    }
  }
  const auto options = gradients_.options();
  shard_.first_moment = at::zeros({shard_.elements}, options);
  shard_.second_moment = at::zeros({shard_.elements}, options);
  if (compute != gradients_.scalar_type()) {
    shard_.master = at::empty({shard_.elements}, options);
    for (const ShardRun& run : shard_.runs) {
      shard_.master.narrow(0, run.state_offset, run.count)
          .copy_(weights_.narrow(0, run.gradient_offset, run.count));
    }
  }
}

// The tensor group sums whole key and value tensors in which some head is shared: every rank adds
// its summands at the rows of the logical tensor, so all ranks agree on the layout whatever they
// hold.
void ModuleState::FindSharedPieces(const plan::Plan& plan) {
  if (groups_.tensor == nullptr) return;
  std::map<std::string, std::array<int64_t, 2>> slots;  // tensor name -> offset, elements
  int64_t elements = 0;
  for (int32_t tp = 0; tp < place_.width; ++tp) {
    plan::Place other = place_;
    other.tp = tp;
    const plan::StageParameters parameters = plan::ParametersOf(plan, other, chunk_);
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
  shared_buffer_ = at::zeros({elements}, gradients_.options());
  for (const plan::LocalMatrix& matrix : parameters_.matrices) {
    if (IsVocabularyRole(matrix.role)) continue;
    for (const plan::Piece& piece : matrix.pieces) {
      if (piece.holding != plan::Holding::kPartial) continue;
      const plan::LogicalTensor& tensor = parameters_.logical[static_cast<size_t>(piece.logical)];
      const int64_t count = piece.rows * matrix.cols;
      shared_pieces_.push_back(
          {gradients_.narrow(0, matrix.offset + piece.local_row * matrix.cols, count),
           shared_buffer_.narrow(0, slots[tensor.name][0] + piece.logical_row * tensor.cols,
                                 count)});
    }
  }
}

absl::Status ModuleState::ReduceSharedPieces() {
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
absl::Status ModuleState::SumTiedEnds() {
  if (tied_state_ != nullptr) {
    tied_gradient_.add_(tied_state_->tied_gradient_);
    tied_state_->tied_gradient_.copy_(tied_gradient_);
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

absl::Status ModuleState::Reduce() {
  RETURN_IF_ERROR(ReduceSharedPieces());
  if (groups_.data == nullptr) return absl::OkStatus();
  char* base = static_cast<char*>(gradients_.mutable_data_ptr());
  const int64_t size = static_cast<int64_t>(gradients_.element_size());
  for (const plan::Bucket& bucket : buckets_) {
    const int64_t part = bucket.elements / parameters_.replicas;
    char* begin = base + bucket.offset * size;
    RETURN_IF_ERROR(groups_.data->ReduceScatterSum(begin,
                                                   begin + groups_.data->rank() * part * size, part,
                                                   CommDType(gradients_.scalar_type())));
  }
  return groups_.data->Join();
}

absl::Status ModuleState::Gather() {
  if (groups_.data == nullptr) return absl::OkStatus();
  char* base = static_cast<char*>(weights_.mutable_data_ptr());
  const int64_t size = static_cast<int64_t>(weights_.element_size());
  for (const plan::Bucket& bucket : buckets_) {
    const int64_t part = bucket.elements / parameters_.replicas;
    char* begin = base + bucket.offset * size;
    RETURN_IF_ERROR(groups_.data->AllGather(begin + groups_.data->rank() * part * size, begin, part,
                                            CommDType(weights_.scalar_type())));
  }
  return groups_.data->Join();
}

}  // namespace phalanx::train
