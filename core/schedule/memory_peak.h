// core/schedule/memory_peak.h: the most that LibTorch takes of a device for the process of a rank,
// by what it is for, from shapes alone.
//
// Steps of the layout need what core/plan/memory_estimate.h says, but for activations: that counts
// of each part as many as it may keep at any time, and not all parts of a rank do so at once. Here
// the passes of the rank's program are gone through. What was taken once is kept, so on GPUs two
// things more count (core/plan/preparation.h):
//
// - Before the first step of a process the layout behind the loss of each other rank is tried: its
//   state is there, empty, and of its microbatches those run that differ in how many samples a part
//   of the rank takes, one of each, with logits of all rows. Last its own layout is tried. One is
//   there at a time, and none beside the steps. Of a layout whose passes one before it has run
//   there is the state alone; here each counts as if it were the first.
// - Once all second homes in host memory are whole, the ranks that would take over some of them
//   take room for it, beside what steps need.
//
// Neither is a condition of training: what does not fit is left out. So it is no matter of whether
// a plan fits its devices (memory_fit.h).
//
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/plan.h"

namespace phalanx::schedule {

// Bytes.
struct MemoryPeak {
  plan::MemoryEstimate step;        // of the layout, in a step
  int64_t to_take_over = 0;         // for copies in host memory that the rank would take over
  std::vector<int64_t> each_tried;  // of each layout that it tries before the first step

  // The most of those.
  int64_t tried() const {
    int64_t most = 0;
    for (int64_t one : each_tried) most = std::max(most, one);
    return most;
  }
  // Of what it tries, what is beyond all else.
  int64_t tried_beyond() const {
    return std::max<int64_t>(0, tried() - step.total() - to_take_over);
  }
  int64_t total() const { return step.total() + to_take_over + tried_beyond(); }
};
// Of every rank, [world]. On CPUs, and in jobs of too many passes to go through (kPassesMax), steps
// are those of EstimateMemory. Losses are looked at in jobs of at most plan::kPreparedDevicesMax
// ranks. `samples`: of the steps; those that are tried have the same items.
inline constexpr int64_t kPassesMax = 1 << 15;
std::vector<MemoryPeak> EstimatePeaks(const plan::Plan& plan,
                                      const plan::SampleShape& samples = {});
// The same of one rank.
MemoryPeak EstimatePeak(const plan::Plan& plan, Rank rank, const plan::SampleShape& samples = {});

// What is left where one of its devices is lost, and nothing takes over that has no work now: the
// layouts that the others try. In jobs of more than plan::kPreparedDevicesMax ranks none.
struct LeftBehind {
  Rank lost;
  plan::Plan plan;
};
// `device_memory`: bytes of each rank's device, none: not known. A layout that does not fit is left
// out: nobody goes over to it.
std::vector<LeftBehind> LeftBehindLosses(const plan::Plan& plan,
                                         absl::Span<const int64_t> device_memory);

// Microbatches that a rank runs of a layout that it tries, ascending.
std::vector<int64_t> MicrobatchesTried(const plan::Plan& plan, Rank rank);

// Bytes of activations of a rank, at most, as its program goes; of a plan that has no program, as
// EstimateMemory. `microbatches`: those that are run, ascending; nullopt: all.
int64_t ActivationPeak(const plan::Plan& plan, Rank rank, const plan::SampleShape& samples,
                       const std::optional<std::vector<int64_t>>& microbatches = std::nullopt);

}  // namespace phalanx::schedule
