#include "coordinator/runtime/curve.h"

namespace phalanx::coordinator {
namespace {

void Thin(std::vector<CurvePoint>& points, int64_t stride) {
  std::erase_if(points, [stride](const CurvePoint& point) { return point.step % stride != 0; });
}

}  // namespace

void Curve::Add(const StepReport& report) {
  const double rate = report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0;
  Add(CurvePoint{.step = report.step,
                 .loss = static_cast<float>(report.loss),
                 .tokens_per_second = static_cast<float>(rate)});
}

void Curve::Add(const CurvePoint& point) {
  while (!points_.empty() && points_.back().step >= point.step) points_.pop_back();
  if (point.step % stride_ != 0) return;
  points_.push_back(point);
  while (points_.size() > kPointsMax) {
    stride_ *= 2;
    Thin(points_, stride_);
  }
}

std::vector<CurvePoint> Curve::Thinned(size_t count) const {
  std::vector<CurvePoint> points = points_;
  for (int64_t stride = stride_; points.size() > count;) {
    stride *= 2;
    Thin(points, stride);
  }
  return points;
}

}  // namespace phalanx::coordinator
