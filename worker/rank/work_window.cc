#include "worker/rank/work_window.h"

#include <algorithm>
#include <vector>

namespace phalanx::rank {

void WorkWindow::Add(double seconds, bool disturbed) {
  if (++steps_ <= kFirstSteps || disturbed || !(seconds > 0)) return;
  newest_.push_back(seconds);
  if (newest_.size() > kSteps) newest_.pop_front();
}

double WorkWindow::Median() const {
  if (newest_.size() < kSteps) return 0;
  std::vector<double> sorted(newest_.begin(), newest_.end());
  std::sort(sorted.begin(), sorted.end());
  return (sorted[kSteps / 2 - 1] + sorted[kSteps / 2]) / 2;
}

}  // namespace phalanx::rank
