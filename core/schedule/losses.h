// core/schedule/losses.h: what losing any one device of a plan comes to.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/plan/memory_fit.h"
#include "core/plan/part_sizes.h"
#include "core/plan/plan.h"

namespace phalanx::schedule {

// What the loss of one device comes to.
struct Loss {
  Rank rank;
  // Why training cannot go on without it from where it stands: a sentence; empty: it can.
  std::string trouble;
  bool of_memory = false;  // what is left does not fit
  bool waits = false;      // the job does, for what has nothing that is nowhere else
  int64_t steps = 0;       // that are lost at most; -1: all
  // Why some state has no second home from then on: a sentence; empty: it has, or had none.
  std::string homeless;
};

// Of those devices whose loss comes to the same one or two are looked at; of large plans, of some
// of these kinds.
struct Losses {
  plan::RankList looked_at;
  std::vector<Loss> costly;  // that training does not survive where it stands, the dearest first
  std::optional<Loss> homeless;  // the first that it survives without some second home
};
Losses LossesOf(const plan::Plan& plan, const plan::MemoryLimits& limits);
// The same for who asks of many plans of one job on one cluster.
Losses LossesOf(const plan::Plan& plan, const plan::MemoryLimits& limits, plan::PartSizes& sizes);

// Sentences: what losing a device, a node or a failure domain costs.
std::vector<std::string> RisksOf(const plan::Plan& plan, const Losses& losses);

// A sentence where devices have no room for state to move to what is left of a plan, though that
// fits.
std::optional<std::string> RiskOfMoving(const plan::Plan& left,
                                        const std::vector<int64_t>& devices);

// Whether there is optimizer state of which the rank at the place is the only home.
bool HasOneHome(const plan::Plan& plan, const plan::Place& place);

// "node-0/3".
std::string DeviceOf(const plan::Plan& plan, Rank rank);
// Whether the job leaves it to the plan where second homes of its state are.
bool LeavesHomesOpen(const job::JobSpec& spec);

}  // namespace phalanx::schedule
