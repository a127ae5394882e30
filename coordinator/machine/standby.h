// coordinator/machine/standby.h: what a coordinator knows of communicators that ranks of an epoch
// have made for the epoch behind the loss of one of them.
//
// They come in sets: one is of one layout, which the plan's digest names, and is of use to an epoch
// of that layout, whose ranks all have it. Nothing of it is stored: a coordinator that restarts
// asks for them again.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/base/ids.h"

namespace phalanx::coordinator {

struct StandbySet {
  std::string name;           // of its epoch and its layout
  int32_t lost = 0;           // whose loss it is for
  std::string plan_digest;    // of the layout
  std::set<int32_t> ranks;    // that have work in it
  std::set<int32_t> awaited;  // of these, that have not said whether they have made it
  std::string error;          // why there is none; empty: there is, or it is being made
  // All of its ranks have it.
  bool complete() const { return awaited.empty() && error.empty(); }
  bool under_way() const { return !awaited.empty() && error.empty(); }
};

struct Standby {
  Epoch epoch;                   // whose ranks make them
  int32_t next = 0;              // the first rank whose loss is still to be looked at
  std::vector<StandbySet> sets;  // at most the last is under way
  std::vector<int32_t> again;    // ranks whose loss is to be looked at once more
  bool retried = false;          // those that failed get, or got, their second try
  bool told = false;             // what there is, and that nothing more is being made
};

// A layout that is being planned for the loss of a rank.
struct StandbyPlan {
  uint64_t number = 0;  // of the ComputePlan
  JobId job;
  Epoch epoch;
  int32_t rank = 0;
};

}  // namespace phalanx::coordinator
