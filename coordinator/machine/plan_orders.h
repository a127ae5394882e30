// coordinator/machine/plan_orders.h: plans that were ordered and are not answered.
//
// Where there are too many, no job of the queue begins to be planned before half of them are
// answered, so that the queue is not looked at anew behind each answer. A plan that nobody has use
// for any more counts until it is answered, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "core/base/ids.h"

namespace phalanx::coordinator {

// Not thread-safe.
class PlanOrders {
 public:
  // `max`: while there are so many, no job of the queue begins to be planned.
  explicit PlanOrders(size_t max) : max_(max) {}

  // One more is ordered. Returns its number, from 1.
  uint64_t Add();
  // The same, for a job whose next epoch it is of.
  uint64_t AddFor(JobId job);
  // The job has its plan, or has no use for it.
  void EndFor(uint64_t number) { jobs_.erase(number); }
  // It is answered. Whether jobs of the queue may begin to be planned since.
  bool Answer(uint64_t number);

  // Whose next epoch it is of, while that job has use for it; 0: nobody's.
  JobId JobOf(uint64_t number) const;
  // Whether a job of the queue may begin to be planned. Where one may not, none may before half of
  // the plans are answered.
  bool MayBegin();
  // Whether one was refused that, and none may yet.
  bool refuses() const { return refuses_; }
  // Whether there are so many that those wait that nobody waits for.
  bool AreMany() const { return under_way_.size() >= max_ / 2; }
  size_t count() const { return under_way_.size(); }

 private:
  const size_t max_;
  uint64_t last_ = 0;
  std::map<uint64_t, JobId> jobs_;
  std::set<uint64_t> under_way_;
  bool refuses_ = false;
};

}  // namespace phalanx::coordinator
