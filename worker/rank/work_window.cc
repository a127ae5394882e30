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

double WorkWindow::MedianPerGflop() const { return MedianOf(&Step::per_gflop); }

double WorkWindow::MedianOf(double Step::*figure) const {
  if (newest_.size() < kSteps) return 0;
  std::vector<double> sorted;
  for (const Step& step : newest_) {
    if (step.*figure > 0) sorted.push_back(step.*figure);
  }
  if (sorted.empty()) return 0;
  std::sort(sorted.begin(), sorted.end());
  return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
}

}  // namespace phalanx::rank
