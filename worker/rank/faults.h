// worker/rank/faults.h: what a rank process is told to bring about by itself.
#pragma once

#include <utility>

#include "core/job/injected_fault.h"
#include "worker/comm/isolation.h"
#include "worker/train/fault_points.h"

namespace phalanx::rank {

// Thread-safe.
struct Faults {
  explicit Faults(train::FaultPoints::Tell tell) : points(std::move(tell)) {}

  void Inject(const job::InjectedFault& fault) {
    if (fault.kind == job::FaultKind::kPartition && fault.at_once())
      return isolation.Begin(fault.duration);
    points.Inject(fault);
  }

  train::FaultPoints points;
  comm::Isolation isolation;
};

}  // namespace phalanx::rank
