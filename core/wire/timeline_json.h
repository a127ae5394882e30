// core/wire/timeline_json.h: a timeline, planned or measured, for Perfetto and chrome://tracing.
//
// One process a rank ("rank 3: language stage 1"), its pid the rank; threads "compute", "forward
// messages", "backward messages" and "collectives"; of a measured one, behind these, a thread for
// each communicator of the rank that did anything ("stream of language.dp[0]"), with an event of
// the category "communication" for each operation. One complete event ("X") an instruction, times
// in microseconds, args as far as they apply: module, chunk, microbatch, link. One flow ("s" and
// "f" of one id) from each send to each receive of the same message, backward ones too: between
// ranks that exchange rows (plan::LinkMessages), or, where a list has one rank of many alike and
// none of them do, between those that it has. "otherData" names job, plan digest and, of a measured
// one, the step.
//
// A function of its arguments alone; throws nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/schedule/simulator.h"

namespace phalanx::wire {

// `timeline`: instructions of the plan's ranks, in any order; a rank that has none does not appear.
// `step`: the one that was measured, from 1; 0 for a planned timeline. `operations`: of
// communicators of these ranks, as they were measured.
std::string TraceJson(const plan::Plan& plan,
                      const std::vector<schedule::TimedInstruction>& timeline, int64_t step = 0,
                      const std::vector<schedule::TimedOperation>& operations = {});

}  // namespace phalanx::wire
