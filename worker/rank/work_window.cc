#include "worker/rank/work_window.h"

#include <algorithm>
#include <vector>

namespace phalanx::rank {

void WorkWindow::Add(double seconds, double flops, bool disturbed) {
  if (++steps_ <= kFirstSteps || disturbed || !(seconds > 0)) return;
  newest_.push_back({seconds, flops > 0 ? seconds / (flops / 1e9) : 0});
  if (newest_.size() > kSteps) newest_.pop_front();
}

double WorkWindow::Median() const { return MedianOf(&Step::seconds); }

double WorkWindow::MedianPerGflop() const {
  const bool known = std::all_of(newest_.begin(), newest_.end(),
                                 [](const Step& step) { return step.per_gflop > 0; });
  return known ? MedianOf(&Step::per_gflop) : 0;
}

double WorkWindow::MedianOf(double Step::*figure) const {
  if (newest_.size() < kSteps) return 0;
  std::vector<double> sorted;
  for (const Step& step : newest_) sorted.push_back(step.*figure);
  std::sort(sorted.begin(), sorted.end());
  return (sorted[kSteps / 2 - 1] + sorted[kSteps / 2]) / 2;
}

}  // namespace phalanx::rank
