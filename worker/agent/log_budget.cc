#include "worker/agent/log_budget.h"

#include <algorithm>

namespace phalanx::agent {

bool LogBudget::Take(int64_t bytes, SteadyTime now) {
  if (rate_ == 0) return true;
  const double seconds = std::chrono::duration<double>(now - at_).count();
  const double filled =
      std::clamp(seconds, 0.0, static_cast<double>(kSecondsAtOnce)) * static_cast<double>(rate_);
  // Less than a byte waits for the next time.
  if (filled >= 1) {
    bytes_ = std::min(kSecondsAtOnce * rate_, bytes_ + static_cast<int64_t>(filled));
    at_ = now;
  }
  // One write that is larger than a second's worth must fit, too, once all has filled.
  const int64_t enough = std::max(rate_, std::min(bytes, kSecondsAtOnce * rate_));
  if (drops_ && bytes_ < enough) return false;
  drops_ = bytes_ < std::min(bytes, kSecondsAtOnce * rate_);
  if (drops_) return false;
  bytes_ = std::max<int64_t>(0, bytes_ - bytes);
  return true;
}

}  // namespace phalanx::agent
