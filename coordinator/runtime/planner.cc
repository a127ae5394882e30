#include "coordinator/runtime/planner.h"

#include <pthread.h>

#include <utility>

namespace phalanx::coordinator {

Planner::Planner(int32_t threads, PlanFunction plan, std::function<void(PlanComputed)> done)
    : plan_(std::move(plan)), done_(std::move(done)) {
  for (int32_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

Planner::~Planner() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  threads_.clear();
}

void Planner::Plan(ComputePlan order) {
  MutexLock lock(&mu_);
  waiting_.push_back(std::move(order));
  changed_.Signal();
}

void Planner::Run() {
  pthread_setname_np(pthread_self(), "planner");
  while (true) {
    ComputePlan order;
    {
      MutexLock lock(&mu_);
      while (waiting_.empty() && !stopping_) changed_.Wait(&mu_);
      if (stopping_) return;
      order = std::move(waiting_.front());
      waiting_.pop_front();
    }
    done_({order.number, plan_(order)});
  }
}

}  // namespace phalanx::coordinator
