// worker/rank/work_window.h: how long this rank works for a step, as of its last steps. Pure.
//
// The first steps of an epoch count in nothing: they run what runs for the first time, fill
// mirrors, and have communicators made beside them.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace phalanx::rank {

class WorkWindow {
 public:
  static constexpr int64_t kFirstSteps = 8;
  static constexpr size_t kSteps = 16;  // of the newest

  // Of each step of the epoch once, in order: what it worked, in seconds, and the floating-point
  // operations that its shapes came to; 0: not known. One that was `disturbed`, by what other ranks
  // need not have done beside it, does not count.
  void Add(double seconds, double flops, bool disturbed);
  // Medians of the newest kSteps that count; 0: there are fewer. The second one is of the seconds
  // for 10^9 operations, of those steps that had any: an encoder has none where no sample of the
  // step has an item for it; 0: none of them had.
  double Median() const;
  double MedianPerGflop() const;

 private:
  struct Step {
    double seconds = 0, per_gflop = 0;
  };
  double MedianOf(double Step::*figure) const;

  int64_t steps_ = 0;
  std::deque<Step> newest_;
};

}  // namespace phalanx::rank
