// core/wire/incident_svg.h: the timeline of an incident as a picture: a bar a phase, on one axis of
// time from the first evidence.
//
// One picture for light and dark papers, without script. A bar without an end runs to the right
// edge, pale. Beside each: how long it took and the rank that it waited for.
#pragma once

#include <string>

#include "phalanx/v1/common.pb.h"

namespace phalanx::wire {

// `title`: of the job, plain text.
std::string IncidentSvg(const std::string& title, const v1::Incident& incident);

}  // namespace phalanx::wire
