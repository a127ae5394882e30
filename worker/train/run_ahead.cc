#include "worker/train/run_ahead.h"

namespace phalanx::train {

double RunAhead::Predicted(int32_t instruction) const {
  const auto known = known_.find(instruction);
  const auto layers = layers_.find(instruction);
  return (known == known_.end() ? kSecondsUnknown : known->second) /
         (layers == layers_.end() ? 1 : layers->second);
}

int64_t RunAhead::Enqueued(int32_t instruction) {
  queue_.push_back({++last_, Predicted(instruction)});
  seconds_ += queue_.back().seconds;
  return last_;
}

void RunAhead::Finished(int64_t number) {
  while (!queue_.empty() && queue_.front().number <= number) {
    seconds_ -= queue_.front().seconds;
    queue_.pop_front();
  }
  if (queue_.empty()) seconds_ = 0;  // no rounding error is carried on
}

}  // namespace phalanx::train
