// core/wire/incident_json.h: an incident as scripts read it: `phalanx incidents show -o json` and
// the file <output>/incidents/<number>/incident.json, which are the same.
//
// Keys (docs/recovery.md): number, kind, detected, from_epoch, to_epoch, cause {name, rank, node,
// device, device_kind, signal, exit_code, message} or null, first_failing_rank or null, evidence,
// confidence, next, lost, returned, changes, decided_step, steps_redone, communicators
// ("standby" or "new"), summary, phases [{name,
// begin, end, slowest_rank, reason}], times in microseconds since `detected`, null where they are
// not known.
#pragma once

#include <string>
#include <vector>

#include "core/job/tree.h"
#include "phalanx/v1/common.pb.h"

namespace phalanx::wire {

job::Tree IncidentTree(const v1::Incident& incident);
std::string IncidentJson(const v1::Incident& incident);

// "vision dp 4 -> 3", a phrase a change.
std::vector<std::string> ChangeWords(const v1::Incident& incident);
// The phase of that name, or nullptr.
const v1::Incident::Phase* FindPhase(const v1::Incident& incident, const std::string& name);
// "loss", "certain".
std::string KindWord(const v1::Incident& incident);
std::string ConfidenceWord(const v1::Incident& incident);

}  // namespace phalanx::wire
