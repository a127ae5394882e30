#include "worker/train/part_state.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "worker/model/stage_io.h"

namespace phalanx::train {
namespace {

// Rows [begin, end) of the flat buffer with the same flags.
struct FlagRun {
  int64_t begin = 0, end = 0;
  bool trains = true, decay = false;  // trains: this rank leads it (plan/copies.h)
  bool SameFlags(const FlagRun& other) const {
    return trains == other.trains && decay == other.decay;
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
    std::vector<std::pair<int64_t, int64_t>> following;  // rows [first, end)
    for (const plan::Piece& piece : matrix.pieces) {
      decay |= parameters.logical[static_cast<size_t>(piece.logical)].decay;
      if (!piece.primary) following.emplace_back(piece.local_row, piece.local_row + piece.rows);
    }
    // Padding belongs to what it pads.
    if (following.size() == matrix.pieces.size()) following = {{0, matrix.rows}};
    std::sort(following.begin(), following.end());
    int64_t row = 0;
    auto rows_to = [&](int64_t end, bool leads) {
      append({matrix.offset + row * matrix.cols, matrix.offset + end * matrix.cols,
              matrix.trains && leads, decay});
      row = end;
    };
    for (const auto& [first, end] : following) {
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

// What the rank leads of a run.
void AppendStateRuns(const plan::UnitRange& own, const std::vector<FlagRun>& flags,
                     StateBlock* block) {
  auto run = std::upper_bound(
      flags.begin(), flags.end(), own.first,
      [](int64_t value, const FlagRun& candidate) { return value < candidate.end; });
  for (; run != flags.end() && run->begin < own.end(); ++run) {
    if (!run->trains) continue;
    const int64_t first = std::max(own.first, run->begin), last = std::min(own.end(), run->end);
    block->runs.push_back({.gradient_offset = first,
                           .state_offset = block->elements,
                           .count = last - first,
                           .decay = run->decay});
    block->elements += last - first;
  }
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

PartState::PartState(WithoutMemory, const plan::Plan& plan, const plan::Place& place, int32_t chunk,
                     const BufferOptions& options)
    : options_(options),
      place_(place),
      chunk_(chunk),
      parameters_(plan::ParametersOf(plan, place, chunk)) {
  if (trains()) OutlineBlocks(plan::ReductionOf(plan, place, chunk, parameters_));
}

PartState::PartState(const plan::Plan& plan, const plan::Place& place, int32_t chunk,
                     const BufferOptions& options)
    : PartState(WithoutMemory(), plan, place, chunk, options) {
  AllocateWeights();
  AllocateGradients();
  for (StateBlock& block : blocks_) Allocate(block);
}

std::unique_ptr<PartState> PartState::Outline(const plan::Plan& plan, const plan::Place& place,
                                              int32_t chunk, const BufferOptions& options) {
  return std::unique_ptr<PartState>(new PartState(WithoutMemory(), plan, place, chunk, options));
}

void PartState::OutlineBlocks(const plan::Reduction& reduction) {
  const std::vector<FlagRun> flags = FlagRuns(parameters_);
  const auto primary = [&reduction](int32_t position) {
    return reduction.group[static_cast<size_t>(position)];
  };
  std::map<int32_t, std::vector<StateBlock>> mirrored;  // by position
  for (size_t b = 0; b < reduction.buckets.size(); ++b) {
    const plan::ReducedBucket& bucket = reduction.buckets[b];
    const auto number = static_cast<int32_t>(b);
    StateBlock& own = blocks_.emplace_back();
    own.primary = primary(reduction.self);
    own.bucket = number;
    for (const plan::UnitRange& run : bucket.own) AppendStateRuns(run, flags, &own);
    for (const plan::MirrorPeer& from : bucket.from_primaries) {
      StateBlock& block = mirrored[from.peer].emplace_back();
      block.primary = primary(from.peer);
      block.mirrors = true;
      block.bucket = number;
      for (const plan::UnitRange& run : from.runs) AppendStateRuns(run, flags, &block);
    }
  }
  for (auto& [position, blocks] : mirrored)
    std::move(blocks.begin(), blocks.end(), std::back_inserter(blocks_));
}

void PartState::AllocateWeights() {
  if (weights_.defined()) return;
  weights_ = at::zeros({parameters_.elements},
                       at::TensorOptions().device(options_.device).dtype(options_.compute));
}

void PartState::AllocateGradients() {
  if (!trains() || gradients_.defined()) return;
  gradients_ =
      at::zeros({parameters_.trained_extent},
                at::TensorOptions().device(options_.device).dtype(GradientType(options_.compute)));
}

void PartState::Allocate(StateBlock& block) const {
  const auto zeros = [&] {
    return at::zeros(
        {block.elements},
        at::TensorOptions().device(options_.device).dtype(GradientType(options_.compute)));
  };
  block.first_moment = zeros();
  block.second_moment = zeros();
  if (block.mirrors || !weights_are_masters()) block.master = zeros();
}

void PartState::Initialise(const plan::Plan& plan, int32_t threads) {
  model::InitialiseWeights(plan, place_, parameters_, weights_, threads);
  for (StateBlock& block : blocks_) {
    if (!block.master.defined()) continue;
    for (const StateRun& run : block.runs) {
      block.master.narrow(0, run.state_offset, run.count)
          .copy_(weights_.narrow(0, run.gradient_offset, run.count));
    }
  }
}

void PartState::Recast() {
  for (const StateBlock& block : blocks_) {
    if (block.mirrors || !block.master.defined()) continue;
    for (const StateRun& run : block.runs) {
      weights_.narrow(0, run.gradient_offset, run.count)
          .copy_(block.master.narrow(0, run.state_offset, run.count));
    }
  }
}

}  // namespace phalanx::train
