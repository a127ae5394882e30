// core/wire/plan_json.h: a plan as scripts and people read it.
//
// The JSON has the keys of `phalanx plan JOB -o json` (docs/cli.md): one line a module, edge, rank,
// replica and segment. Ranks are world ranks of the plan; idle devices are numbered like ranks, by
// their place in the cluster's order. Beside the documented keys: modules[].stage_layers,
// idle_devices ({node, device} of each entry of idle), schedule.chunks and schedule.encoder_chunks,
// and where the job left its schedule open candidates: {name, chunks, encoder_chunks, step seconds,
// bubble, memory bytes of the worst rank, chosen, left_out: why the job cannot have it}; null is
// what is not known.
//
// A function of its arguments alone; throws nothing.
#pragma once

#include <string>

#include "core/plan/plan.h"

namespace phalanx::wire {

// What core/schedule found out about the plan; the caller simulates and passes it on.
struct PlanFigures {
  double bubble = 0;  // fractions of devices x step
  double lower_bound = 0;
};

std::string PlanJson(const plan::Plan& plan, const PlanFigures& figures);

// At most 100 columns: modules with their layouts, edges, ranks with their stages and units,
// memory, schedule and what else was tried. Ranks beyond the first 64 are summed up in a line.
std::string PlanTable(const plan::Plan& plan, const PlanFigures& figures);

}  // namespace phalanx::wire
