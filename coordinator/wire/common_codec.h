// coordinator/wire/common_codec.h: proto/phalanx/v1/common.proto and the machine's own types, both
// ways.
//
// What a peer or a store sends is never trusted to be complete: an absent or unknown value becomes
// the type's default, and what must hold is checked where a message is accepted (session_codec.h).
#pragma once

#include <optional>

#include "coordinator/machine/records.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "phalanx/v1/common.pb.h"

namespace phalanx::coordinator {

void ToProto(Instant time, google::protobuf::Timestamp* out);
Instant FromProto(const google::protobuf::Timestamp& time);
void ToProto(absl::Duration duration, google::protobuf::Duration* out);
absl::Duration FromProto(const google::protobuf::Duration& duration);

v1::JobPhase ToProto(job::JobPhase phase);
// kFailed for an unknown one: a phase that this version does not know is not to be acted on.
job::JobPhase FromProto(v1::JobPhase phase);

void ToProto(const Document& document, v1::JobDocument* out);
Document FromProto(const v1::JobDocument& document);
void ToProto(const Placement& placement, v1::Placement* out);
Placement FromProto(const v1::Placement& placement);
void ToProto(const StepReport& step, v1::StepReport* out);
StepReport FromProto(const v1::StepReport& step);
void ToProto(const EpochStart& start, v1::EpochBegins* out);
// nullopt for what none can be: a decided step below 1, one without a verdict, counts below 0.
std::optional<EpochStart> FromProto(const v1::EpochBegins& begins);
void ToProto(const EvaluationReport& evaluation, v1::EvaluationReport* out);
EvaluationReport FromProto(const v1::EvaluationReport& evaluation);
void ToProto(const CheckpointSource& source, v1::CheckpointSource* out);
CheckpointSource FromProto(const v1::CheckpointSource& source);
void ToProto(const NodeMark& mark, v1::NodeMark* out);
NodeMark FromProto(const v1::NodeMark& mark);
void ToProto(const ReserveMark& reserve, v1::ReserveMark* out);
ReserveMark FromProto(const v1::ReserveMark& reserve);
void ToProto(const PublishedCheckpoint& checkpoint, v1::PublishedCheckpoint* out);
PublishedCheckpoint FromProto(const v1::PublishedCheckpoint& checkpoint);
void ToProto(const FailureCause& cause, v1::FailureCause* out);
FailureCause FromProto(const v1::FailureCause& cause);
void ToProto(const JobEvent& event, v1::JobEvent* out);
JobEvent FromProto(const v1::JobEvent& event);

absl::string_view DeviceKindName(job::DeviceKind kind);  // "cpu", "gpu"

}  // namespace phalanx::coordinator
