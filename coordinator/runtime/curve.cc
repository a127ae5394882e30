#include "coordinator/runtime/curve.h"

namespace phalanx::coordinator {

void Curve::Add(const StepReport& report) {
  while (!points_.empty() && points_.back().step >= report.step) points_.pop_back();
  if (report.step % stride_ != 0) return;
  const double rate = report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0;
  points_.push_back({.step = report.step,
                     .loss = static_cast<float>(report.loss),
                     .tokens_per_second = static_cast<float>(rate)});
  while (points_.size() > kPointsMax) {
    stride_ *= 2;
    std::erase_if(points_, [this](const CurvePoint& point) { return point.step % stride_ != 0; });
  }
}

}  // namespace phalanx::coordinator
