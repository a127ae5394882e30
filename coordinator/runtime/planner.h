// coordinator/runtime/planner.h: threads that plan jobs, so that the driver never does.
//
// A job is planned only while it holds its devices, so no more jobs wait here than there are
// devices.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/events.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// PlanJobOf (planning.h), or a test's own. Thread-safe.
using PlanFunction = std::function<absl::StatusOr<PlanSummary>(const ComputePlan& order)>;

// Thread-safe.
class Planner {
 public:
  // `done` is called on one of the planner's threads, once for each order.
  Planner(int32_t threads, PlanFunction plan, std::function<void(PlanComputed)> done);
  // Waits for the plans under way; those that wait are dropped.
  ~Planner();

  void Plan(ComputePlan order) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const PlanFunction plan_;
  const std::function<void(PlanComputed)> done_;

  Mutex mu_;
  CondVar changed_;
  std::deque<ComputePlan> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace phalanx::coordinator
