// core/schedule/timeline.h: lays the passes of all pipeline parts on one time axis.
//
// A schedule gives each part the order of its passes; the timeline decides when each of them
// starts, from the data they pass to each other and from the ranks that parts share. It is the
// source of the one total order over all messages of a step: a message stands where its producer
// has finished. In that order nothing is ever behind something that it does not have to wait for,
// and what a message needs always stands before it.
//
// Time counts in integer ticks, at least one a pass, so that the order is the same on every
// machine. Messages take no time here. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/schedule/pipeline.h"

namespace phalanx::schedule {

struct TickCost {
  int64_t forward = 1, backward_input = 1, backward_weight = 1;  // each at least 1
};

// A backward pass is kBackwardInput with kBackwardWeight right behind it.
struct Pass {
  bool backward = false;
  int32_t microbatch = 0;
  friend bool operator==(const Pass&, const Pass&) = default;
};

// `warmup` forwards, then one forward and one backward in turn, then the backwards that are left.
std::vector<Pass> OneForwardOneBackward(int32_t warmup, int32_t microbatches);

struct TimedPass {
  int32_t part = 0;
  Pass pass;
  int64_t begin = 0;
};

struct Message {
  int64_t time = 0;
  int32_t link = 0;
  bool backward = false;
  int32_t microbatch = 0;
};

struct Timeline {
  std::vector<TimedPass> passes;   // in order of begin; those of one rank follow one another
  std::vector<Message> messages;   // in ticket order
  std::vector<int64_t> class_end;  // when the last pass of each rank class ends
};

// Every pass starts as soon as its data and its ranks are there; where ranks are wanted by several
// parts, a backward pass goes before a forward one, then the earlier microbatch.
// `orders` and `costs`: of each part.
Timeline MakeTimeline(const Pipeline& pipeline, const std::vector<std::vector<Pass>>& orders,
                      const std::vector<TickCost>& costs);

}  // namespace phalanx::schedule
