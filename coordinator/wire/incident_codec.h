// coordinator/wire/incident_codec.h: v1.Incident and the machine's own, both ways.
#pragma once

#include "coordinator/machine/incident.h"
#include "phalanx/v1/common.pb.h"

namespace phalanx::coordinator {

// With what people are told of it in words.
void ToProto(const Incident& incident, v1::Incident* out);
// Never null. Phases that this version does not know are left out.
IncidentPtr FromProto(const v1::Incident& incident);

}  // namespace phalanx::coordinator
