// worker/rank/step_profiler.h: measures one warm step with LibTorch's profiler: every kernel on the
// device (CUPTI), on CPU every operator of ATen.
//
// The profiler runs from kLead decisions before the step's: its start holds the host up, and the
// step itself is warm again. A step lasts from the decision of the one before it to its own, as its
// rank's host sees them.
//
// Not thread-safe: one thread, that which trains.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "core/job/job_spec.h"
#include "worker/rank/step_profile.h"

namespace phalanx::rank {

// The step to measure, 0 if none is asked for or the job is too short: the last but one.
int64_t ProfiledStep(const job::JobSpec& spec);

class StepProfiler {
 public:
  static constexpr int64_t kLead = 3;

  StepProfiler(int64_t step, bool gpu) : step_(step), gpu_(gpu) {}
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;
  // A measurement under way is given up.
  ~StepProfiler();

  // Of each decided step, in order. Errors: what LibTorch says; nothing is measured then.
  absl::Status OnDecided(int64_t step);
  // What is measured from now on is slower for being watched.
  bool begun() const { return begun_; }
  const std::optional<StepProfile>& profile() const { return profile_; }

 private:
  void Begin();
  absl::Status End();

  const int64_t step_;
  const bool gpu_;
  bool begun_ = false, running_ = false;
  std::optional<StepProfile> profile_;
};

}  // namespace phalanx::rank
