#include "worker/train/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace phalanx::train {

double LearningRate(const job::Optimizer& optimizer, int64_t step, int64_t steps) {
  if (step < optimizer.warmup_steps) {
    return optimizer.learning_rate * static_cast<double>(step) /
           static_cast<double>(optimizer.warmup_steps);
  }
  if (optimizer.decay == job::Optimizer::Decay::kConstant) return optimizer.learning_rate;
  const double span = static_cast<double>(std::max<int64_t>(1, steps - optimizer.warmup_steps));
  const double progress =
      std::clamp(static_cast<double>(step - optimizer.warmup_steps) / span, 0.0, 1.0);
  const double range = optimizer.learning_rate - optimizer.minimum_learning_rate;
  if (optimizer.decay == job::Optimizer::Decay::kLinear) {
    return optimizer.minimum_learning_rate + range * (1 - progress);
  }
  return optimizer.minimum_learning_rate +
         range * 0.5 * (1 + std::cos(progress * 3.14159265358979323846));
}

}  // namespace phalanx::train
