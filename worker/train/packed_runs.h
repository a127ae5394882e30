// worker/train/packed_runs.h: runs of a flat buffer, and the same elements one behind the other.
//
// What a rank exchanges with a peer are many runs of its flat buffers, and a message is one piece
// of memory (core/plan/reduction.h).
//
// Not thread-safe. On CUDA a call enqueues one kernel on the current stream.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/plan/reduction.h"
#include "core/plan/units.h"

namespace phalanx::train {

class PackedRuns {
 public:
  // Offsets of `runs` are in elements of a flat buffer on `device`.
  PackedRuns(std::vector<plan::UnitRange> runs, at::Device device);

  int64_t elements() const { return elements_; }
  // packed[elements()] <- the runs of `flat`. Both of one type, `packed` without gaps.
  void Pack(const at::Tensor& flat, at::Tensor packed) const;
  // The runs of `flat` <- packed[elements()].
  void Unpack(const at::Tensor& packed, at::Tensor& flat) const;

 private:
  std::vector<plan::UnitRange> runs_;
  int64_t elements_ = 0;
  int64_t aligned_ = 1;  // CUDA: all runs begin and end, in both places, at multiples of this
  at::Tensor table_;     // CUDA: int64 [2, runs]: offset, begin in the packed elements
};

class SummedRuns {
 public:
  SummedRuns(std::vector<plan::SummedRun> runs, int32_t replicas, at::Device device);

  // The runs of `flat` <- the sum of their summands, replica after replica. fp32; on CPU also fp64.
  void Sum(const at::Tensor& taken, at::Tensor& flat) const;

 private:
  std::vector<plan::SummedRun> runs_;
  int64_t elements_ = 0;
  int32_t replicas_;
  at::Tensor table_;    // CUDA: int64 [2, runs]: offset, begin
  at::Tensor sources_;  // CUDA: int64 [runs, replicas]
};

}  // namespace phalanx::train
