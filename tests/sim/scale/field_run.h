// tests/sim/scale/field_run.h: jobs that fill a cluster for some days under the failures of the
// field, and what the coordinator itself has to do for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/scale/workload.h"

namespace phalanx::scale {

// Shares are of the devices' time, over all jobs.
struct FieldRow {
  Policy policy = Policy::kOwn;
  double failed = 0;                   // share of the devices that is out on average, as wanted
  double out = 0;                      // as it was, at the end
  double work_lost = 0;                // if samples could be cut at will
  double step_lost = 0;                // of the simulated steps
  double broken_off = 0;               // in steps that were done again
  double stood = 0;                    // in which jobs did not train
  double changes_a_day = 0;            // epochs of the job that has most
  double failures_a_day = 0;           // of all devices
  double plan_mean = 0, plan_max = 0;  // seconds of the wall clock for the plan of a change
  double machine_a_change = 0;         // of the machine
  std::string trouble;                 // a job has ended, and why; empty: all train
};
FieldRow RunField(const Workload& workload, Policy policy, double failed, double days,
                  uint64_t seed);

// Of the wall clock, in seconds, and of memory.
struct OwnWork {
  int32_t nodes = 0, ranks = 0;  // ranks: of the largest job
  double registration = 0;       // of a node
  double start = 0;              // of all jobs, but for their plans
  double heartbeat = 0;
  double plan_mean = 0, plan_max = 0;  // of a loss or a return
  double machine = 0;                  // the same, without the plan
  double events = 0;                   // that the machine is fed for it
  int64_t resident_bytes = 0;          // of the whole program in the end
};
OwnWork MeasureOwnWork(const Workload& workload, int32_t losses, uint64_t seed);

}  // namespace phalanx::scale
