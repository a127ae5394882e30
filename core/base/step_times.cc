#include "core/base/step_times.h"

#include <algorithm>
#include <vector>

namespace phalanx {
namespace {

constexpr int64_t kStoodMeans = 10;
constexpr absl::Duration kStood = absl::Minutes(1);

}  // namespace

void StepTimes::Reached(Instant now, int64_t step, absl::Duration took) {
  if (step <= step_) return;
  NoteTold({now, step, took * (step - step_)});
  if (since_ > absl::InfinitePast()) took = std::max(took, (now - since_) / (step - step_));
  if (took > absl::ZeroDuration()) newest_.push_back(took);
  if (newest_.size() > kKept) newest_.pop_front();
  since_ = now;
  step_ = step;
}

void StepTimes::NoteTold(const Told& told) {
  // Who stood still may not again.
  if (!told_.empty() &&
      StandsStill((told.at - told_.back().at) / (told.step - told_.back().step))) {
    told_.clear();
    said_ = absl::ZeroDuration();
  }
  if (!told_.empty()) said_ += told.said;
  told_.push_back(told);
  if (told_.size() <= kKept) return;
  told_.pop_front();
  said_ -= told_.front().said;
}

void StepTimes::BeginEpoch() {
  since_ = absl::InfinitePast();
  step_ = 0;
  told_.clear();
  said_ = absl::ZeroDuration();
}

std::optional<absl::Duration> StepTimes::Slow() const {
  if (newest_.empty()) return std::nullopt;
  std::vector<absl::Duration> sorted(newest_.begin(), newest_.end());
  const auto slow = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) * 99 / 100);
  std::nth_element(sorted.begin(), slow, sorted.end());
  return *slow;
}

std::optional<absl::Duration> StepTimes::Mean() const {
  if (told_.empty()) return std::nullopt;
  const int64_t steps = told_.back().step - told_.front().step;
  if (steps < kMeanMin) return std::nullopt;
  return std::max(told_.back().at - told_.front().at, said_) / steps;
}

bool StepTimes::StandsStill(absl::Duration at_a_step) const {
  const auto mean = Mean();
  return mean.has_value() && at_a_step > std::max(kStoodMeans * *mean, kStood);
}

}  // namespace phalanx
