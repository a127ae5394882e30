#include "coordinator/wire/incident_codec.h"

#include <memory>
#include <string>
#include <utility>

#include "coordinator/wire/common_codec.h"

namespace phalanx::coordinator {
namespace {

void PhasesToProto(const Incident& incident, v1::Incident* out) {
  for (size_t i = 0; i < Incident::kPhases; ++i) {
    const Incident::Span& span = incident.phases[i];
    v1::Incident::Phase& phase = *out->add_phases();
    phase.set_name(std::string(ToString(static_cast<Incident::Phase>(i))));
    if (span.begin.has_value()) phase.set_begin(*span.begin);
    if (span.end.has_value()) phase.set_end(*span.end);
    phase.set_slowest_rank(span.slowest);
  }
}

}  // namespace

void ToProto(const Incident& incident, v1::Incident* out) {
  const bool loss = incident.kind == Incident::Kind::kLoss;
  out->set_number(incident.number);
  out->set_kind(loss ? v1::Incident::LOSS : v1::Incident::RETURN);
  out->set_from_epoch(incident.from.value);
  out->set_to_epoch(incident.to.value);
  ToProto(incident.detected, out->mutable_detected());
  if (loss) {
    ToProto(incident.cause, out->mutable_cause());
    out->set_next(job::NextWhereItTrainsOn(incident.cause.kind, incident.cause.signal));
  }
  out->set_device(incident.device);
  out->set_device_kind(std::string(DeviceKindName(incident.device_kind)));
  out->set_confidence(incident.confidence == Incident::Confidence::kLikely ? v1::Incident::LIKELY
                                                                           : v1::Incident::CERTAIN);
  out->mutable_evidence()->Assign(incident.evidence.begin(), incident.evidence.end());
  out->mutable_lost()->Assign(incident.lost.begin(), incident.lost.end());
  out->mutable_returned()->Assign(incident.returned.begin(), incident.returned.end());
  for (const plan::LayoutChange& change : incident.changes) {
    v1::Incident::LayoutChange& added = *out->add_changes();
    added.set_module(change.module);
    added.set_replica(change.replica);
    added.set_from(change.from);
    added.set_to(change.to);
  }
  out->set_decided_step(incident.decided_step);
  out->set_steps_redone(incident.steps_redone);
  PhasesToProto(incident, out);
  out->set_standby(incident.standby);
  out->set_not_safe(incident.not_safe);
  out->set_summary(Summary(incident));
}

IncidentPtr FromProto(const v1::Incident& from) {
  Incident incident{
      .number = from.number(),
      .kind = from.kind() == v1::Incident::RETURN ? Incident::Kind::kReturn : Incident::Kind::kLoss,
      .from = Epoch{from.from_epoch()},
      .to = Epoch{from.to_epoch()},
      .detected = FromProto(from.detected()),
      .device_kind = from.device_kind() == "gpu" ? job::DeviceKind::kGpu : job::DeviceKind::kCpu,
      .device = from.device(),
      .confidence = from.confidence() == v1::Incident::LIKELY ? Incident::Confidence::kLikely
                                                              : Incident::Confidence::kCertain,
      .evidence = {from.evidence().begin(), from.evidence().end()},
      .lost = {from.lost().begin(), from.lost().end()},
      .returned = {from.returned().begin(), from.returned().end()},
      .decided_step = from.decided_step(),
      .steps_redone = from.steps_redone(),
      .standby = from.standby(),
      .not_safe = from.not_safe()};
  // A return has none, and none is written of it.
  if (from.has_cause() && incident.kind == Incident::Kind::kLoss)
    incident.cause = FromProto(from.cause());
  for (const v1::Incident::LayoutChange& change : from.changes())
    incident.changes.push_back({change.module(), change.replica(), change.from(), change.to()});
  for (const v1::Incident::Phase& phase : from.phases()) {
    const std::optional<Incident::Phase> known = ParseIncidentPhase(phase.name());
    if (!known.has_value()) continue;
    Incident::Span& span = incident[*known];
    if (phase.has_begin()) span.begin = phase.begin();
    if (phase.has_end()) span.end = phase.end();
    span.slowest = phase.slowest_rank();
  }
  return std::make_shared<const Incident>(std::move(incident));
}

}  // namespace phalanx::coordinator
