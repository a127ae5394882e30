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
  // What a step of the newest epoch takes, by the last kKept tellings or fewer: the time between
  // them, with all that happened beside steps, and no less than steps say themselves. The first
  // step of an epoch takes longer, and does not count; behind one in which all stood still it
  // begins anew. nullopt: fewer than kMeanMin steps are known since. O(1).
  static constexpr int64_t kMeanMin = 8;
  std::optional<absl::Duration> Mean() const;
  // Whether who has been at one step for so long stands still: for more than ten steps take, and a
  // minute. False where the mean is not known.
  bool StandsStill(absl::Duration at_a_step) const;

 private:
  Instant since_ = absl::InfinitePast();
  int64_t step_ = 0;
  std::deque<absl::Duration> newest_;
  struct Told {
    Instant at;
    int64_t step = 0;
    absl::Duration said;  // all steps since the one before
  };
  void NoteTold(const Told& told);
  std::deque<Told> told_;  // of this epoch; the first is where those behind it count from
  absl::Duration said_;    // by all but the first
};

}  // namespace phalanx
