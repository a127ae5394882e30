// core/wire/plan_json.h: a plan as scripts read it.
//
// The JSON has the keys of `phalanx plan JOB -o json` (docs/cli.md): one line a module, edge, rank,
// replica and segment. Ranks are world ranks of the plan; idle devices are numbered like ranks, by
// their place in the cluster's order. Beside the documented keys: modules[].stage_layers,
// idle_devices ({node, device} of each entry of idle), schedule.chunks and schedule.encoder_chunks,
// and where the job left its schedule open candidates: {name, chunks, encoder_chunks, step seconds,
// bubble, memory bytes of the worst rank, chosen, left_out: why the job cannot have it}; null is
// what is not known.
//
// Of ToProto's message (plan_codec.h), as it was made or as it came over the wire from a
// coordinator of this version: its numbers of modules, stages and devices are taken to be right.
//
// A function of its argument alone; throws nothing.
#pragma once

#include <string>

#include "phalanx/v1/plan.pb.h"

namespace phalanx::wire {

std::string PlanJson(const v1::Plan& plan);

}  // namespace phalanx::wire
