// worker/rank/faults.h: what a rank process is told to bring about by itself.
#pragma once

#include <cstdint>
#include <utility>

#include "core/job/injected_fault.h"
#include "worker/comm/isolation.h"
#include "worker/comm/lost_message.h"
#include "worker/train/fault_points.h"

namespace phalanx::rank {

// Thread-safe. Stays where it is.
struct Faults {
  explicit Faults(train::FaultPoints::Tell tell)
      : points([this, tell = std::move(tell)](const job::InjectedFault& fault,
                                              job::FaultPhase phase, int64_t step) {
          if (tell != nullptr) tell(fault, phase, step);
          if (fault.kind == job::FaultKind::kMute) lost.LoseNext();
        }) {}
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

  void Inject(const job::InjectedFault& fault) {
    if (fault.kind == job::FaultKind::kPartition && fault.at_once())
      return isolation.Begin(fault.duration);
    points.Inject(fault);
  }

  comm::Isolation isolation;
  comm::LostMessage lost;
  train::FaultPoints points;
};

}  // namespace phalanx::rank
