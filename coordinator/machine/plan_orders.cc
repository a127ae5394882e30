#include "coordinator/machine/plan_orders.h"

#include <utility>

namespace phalanx::coordinator {

uint64_t PlanOrders::Add() {
  under_way_.insert(++last_);
  return last_;
}

uint64_t PlanOrders::AddFor(JobId job) {
  jobs_.emplace(Add(), job);
  return last_;
}

bool PlanOrders::Answer(uint64_t number) {
  under_way_.erase(number);
  return under_way_.size() <= max_ / 2 && std::exchange(refuses_, false);
}

JobId PlanOrders::JobOf(uint64_t number) const {
  const auto job = jobs_.find(number);
  return job == jobs_.end() ? JobId{} : job->second;
}

bool PlanOrders::MayBegin() {
  if (under_way_.size() >= max_) refuses_ = true;
  return !refuses_;
}

}  // namespace phalanx::coordinator
