// core/base/step_times.h: how long the steps of a rank, or of a job, take. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "core/base/time.h"

namespace phalanx {

// Not thread-safe.
class StepTimes {
 public:
  static constexpr size_t kKept = 128;  // of the newest

  // Steps of which several were done since the last time count as equally long. `took`: the newest
  // of them, as it says itself; zero: not known. Less than that it did not take, however soon it
  // was told behind another: what was kept while nobody listened comes all at once.
  void Reached(Instant now, int64_t step, absl::Duration took = absl::ZeroDuration());
  // Another epoch begins, in which steps may take another time: those before count until then.
  void BeginEpoch();
  // Whether a step of this epoch has been done.
  bool trains() const { return step_ > 0; }
  // What 99 of 100 steps took at most; nullopt: none is known.
  std::optional<absl::Duration> Slow() const;

 private:
  Instant since_ = absl::InfinitePast();
  int64_t step_ = 0;
  std::deque<absl::Duration> newest_;
};

}  // namespace phalanx
