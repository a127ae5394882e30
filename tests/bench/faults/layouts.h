// tests/bench/faults/layouts.h: the layouts whose ranks are killed, on three nodes each.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/e2e/jobs/job.h"

namespace phalanx::e2e {

struct KilledLayout {
  const char* name = "";
  JobOptions job;
  int32_t ranks = 0;
  // Ranks below it have work whoever else is lost, so that their processes stay; 0: all. A replica
  // that lacks a stage leaves its other ranks without any.
  int32_t with_work = 0;
  int32_t devices = 2;  // of each node
  // So small that what another layout rounds otherwise does not grow to more than is looked for,
  // and the same at every step: a step is the same however many are to come.
  double learning_rate = 1e-5;
  support::ShardOptions data = {.samples = 30, .words = 4};

  // How many ranks, from rank 0 on, have a process that nobody but a kill ends.
  int32_t stay() const { return with_work == 0 ? ranks : with_work; }
};

// The eight kinds of tests/e2e/recovery/curves_test.cc.
std::vector<KilledLayout> KilledLayouts();
// Of the job that is hit again and again: every rank is of both modules.
KilledLayout LayoutOfOneJob();

}  // namespace phalanx::e2e
