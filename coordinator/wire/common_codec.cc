#include "coordinator/wire/common_codec.h"

#include <cstddef>
#include <utility>

#include "core/job/schema.h"
#include "core/wire/layout_codec.h"

namespace phalanx::coordinator {

void ToProto(Instant time, google::protobuf::Timestamp* out) {
  const int64_t seconds = absl::ToUnixSeconds(time);
  out->set_seconds(seconds);
  out->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
}

Instant FromProto(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

void ToProto(absl::Duration duration, google::protobuf::Duration* out) {
  const int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &duration);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

// The enumerations have one order, and the wire's last phase is the one that FromProto still knows.
static_assert(static_cast<int>(job::JobPhase::kCancelled) + 1 == v1::JOB_PHASE_CANCELLED &&
              v1::JobPhase_MAX == v1::JOB_PHASE_CANCELLED);

v1::JobPhase ToProto(job::JobPhase phase) {
  // 0 of the wire is "unspecified".
  return static_cast<v1::JobPhase>(static_cast<int>(phase) + 1);
}

job::JobPhase FromProto(v1::JobPhase phase) {
  if (phase < v1::JOB_PHASE_QUEUED || phase > v1::JOB_PHASE_CANCELLED)
    return job::JobPhase::kFailed;
  return static_cast<job::JobPhase>(static_cast<int>(phase) - 1);
}

void ToProto(const Document& document, v1::JobDocument* out) {
  out->set_text(document.text);
  out->set_directory(document.directory);
}

Document FromProto(const v1::JobDocument& document) {
  return {.text = document.text(), .directory = document.directory()};
}

void ToProto(const Placement& placement, v1::Placement* out) { wire::ToProto(placement, out); }

Placement FromProto(const v1::Placement& placement) { return wire::FromProto(placement); }

void ToProto(const StepReport& step, v1::StepReport* out) {
  out->set_step(step.step);
  out->set_loss(step.loss);
  out->set_gradient_norm(step.gradient_norm);
  out->set_learning_rate(step.learning_rate);
  out->set_tokens(step.tokens);
  out->set_counted_tokens(step.counted_tokens);
  out->set_seconds(step.seconds);
  out->set_epoch(step.epoch.value);
  out->set_skipped(step.skipped);
  out->set_corrupt_samples(step.corrupt_samples);
}

StepReport FromProto(const v1::StepReport& step) {
  return {.step = step.step(),
          .loss = step.loss(),
          .gradient_norm = step.gradient_norm(),
          .learning_rate = step.learning_rate(),
          .tokens = step.tokens(),
          .counted_tokens = step.counted_tokens(),
          .seconds = step.seconds(),
          .epoch = Epoch{step.epoch()},
          .skipped = step.skipped(),
          .corrupt_samples = step.corrupt_samples()};
}

// Likewise.
static_assert(static_cast<int>(StepDecision::Verdict::kEmpty) + 1 == v1::StepDecision::EMPTY &&
              v1::StepDecision::Verdict_MAX == v1::StepDecision::EMPTY);

void ToProto(const EpochStart& start, v1::EpochBegins* out) {
  out->set_updates(start.updates);
  out->set_skipped_in_a_row(start.skipped_in_a_row);
  if (!start.decision.has_value()) return;
  const StepDecision& from = *start.decision;
  v1::StepDecision& to = *out->mutable_decision();
  to.set_step(from.step);
  to.set_verdict(static_cast<v1::StepDecision::Verdict>(static_cast<int>(from.verdict) + 1));
  to.set_loss(from.loss);
  to.set_gradient_norm(from.gradient_norm);
  to.set_gradient_scale(from.gradient_scale);
  to.set_counted_tokens(from.counted_tokens);
  to.set_corrupt_samples(from.corrupt_samples);
  to.set_tokens(from.tokens);
  to.set_images(from.images);
  to.set_sounds(from.sounds);
}

std::optional<EpochStart> FromProto(const v1::EpochBegins& begins) {
  EpochStart start{.updates = begins.updates(), .skipped_in_a_row = begins.skipped_in_a_row()};
  if (start.updates < 0 || start.skipped_in_a_row < 0) return std::nullopt;
  if (!begins.has_decision()) return start;
  const v1::StepDecision& from = begins.decision();
  const bool decided =
      from.verdict() >= v1::StepDecision::COMMITTED && from.verdict() <= v1::StepDecision::EMPTY;
  if (from.step() < 1 || !decided) return std::nullopt;
  start.decision = {
      .verdict = static_cast<StepDecision::Verdict>(static_cast<int>(from.verdict()) - 1),
      .step = from.step(),
      .loss = from.loss(),
      .gradient_norm = from.gradient_norm(),
      .gradient_scale = from.gradient_scale(),
      .counted_tokens = from.counted_tokens(),
      .corrupt_samples = from.corrupt_samples(),
      .tokens = from.tokens(),
      .images = from.images(),
      .sounds = from.sounds()};
  return start;
}

void ToProto(const CheckpointSource& source, v1::CheckpointSource* out) {
  out->set_path(source.path);
  out->set_manifest_digest(source.manifest_digest);
  out->set_step(source.step);
}

CheckpointSource FromProto(const v1::CheckpointSource& source) {
  return {
      .path = source.path(), .manifest_digest = source.manifest_digest(), .step = source.step()};
}

void ToProto(const NodeMark& mark, v1::NodeMark* out) {
  out->set_drains(mark.drains);
  out->set_reason(mark.reason);
  out->set_by(mark.by);
  ToProto(mark.since, out->mutable_since());
}

NodeMark FromProto(const v1::NodeMark& mark) {
  return {.drains = mark.drains(),
          .reason = mark.reason(),
          .by = mark.by(),
          .since = FromProto(mark.since())};
}

void ToProto(const ReserveMark& reserve, v1::ReserveMark* out) {
  out->set_reason(reserve.reason);
  out->set_by(reserve.by);
  ToProto(reserve.since, out->mutable_since());
}

ReserveMark FromProto(const v1::ReserveMark& reserve) {
  return {.reason = reserve.reason(), .by = reserve.by(), .since = FromProto(reserve.since())};
}

void ToProto(const PublishedCheckpoint& checkpoint, v1::PublishedCheckpoint* out) {
  out->set_step(checkpoint.step);
  out->set_path(checkpoint.path);
  ToProto(checkpoint.time, out->mutable_time());
  out->set_bytes(checkpoint.bytes);
  out->set_seconds(checkpoint.seconds);
}

PublishedCheckpoint FromProto(const v1::PublishedCheckpoint& checkpoint) {
  return {.step = checkpoint.step(),
          .path = checkpoint.path(),
          .time = FromProto(checkpoint.time()),
          .bytes = checkpoint.bytes(),
          .seconds = checkpoint.seconds()};
}

void ToProto(const EvaluationReport& evaluation, v1::EvaluationReport* out) {
  out->set_loss(evaluation.loss);
  out->set_counted_tokens(evaluation.counted_tokens);
  out->set_uniform_loss(evaluation.uniform_loss);
  for (const Caption& caption : evaluation.captions) {
    v1::EvaluationReport::Caption* added = out->add_captions();
    added->set_sample(caption.sample);
    added->set_truth(caption.truth);
    added->set_decoded(caption.decoded);
  }
}

EvaluationReport FromProto(const v1::EvaluationReport& evaluation) {
  EvaluationReport result{.loss = evaluation.loss(),
                          .counted_tokens = evaluation.counted_tokens(),
                          .uniform_loss = evaluation.uniform_loss()};
  for (const auto& caption : evaluation.captions()) {
    result.captions.push_back(
        {.sample = caption.sample(), .truth = caption.truth(), .decoded = caption.decoded()});
  }
  return result;
}

void ToProto(const FailureCause& cause, v1::FailureCause* out) {
  out->set_cause(std::string(job::ToString(cause.kind)));
  out->set_kind(static_cast<v1::FailureKind>(cause.kind));
  out->set_rank(cause.rank);
  out->set_node(cause.node);
  out->set_signal(cause.signal);
  out->set_exit_code(cause.exit_code);
  out->set_message(cause.message);
  ToProto(cause.time, out->mutable_time());
}

FailureCause FromProto(const v1::FailureCause& cause) {
  // A journal of before kinds has the name alone.
  const std::optional<job::FailureKind> kind = cause.kind() == v1::FAILURE_KIND_UNSPECIFIED
                                                   ? job::ParseFailureKind(cause.cause())
                                                   : job::FailureKindOf(cause.kind());
  return {.kind = kind.value_or(job::FailureKind::kRankError),
          .rank = cause.rank(),
          .node = cause.node(),
          .signal = cause.signal(),
          .exit_code = cause.exit_code(),
          .message = cause.message(),
          .time = FromProto(cause.time())};
}

void ToProto(const JobEvent& event, v1::JobEvent* out) {
  out->set_number(event.number);
  ToProto(event.time, out->mutable_time());
  out->set_type(event.type);
  out->set_message(event.message);
  out->set_epoch(event.epoch.value);
}

JobEvent FromProto(const v1::JobEvent& event) {
  return {.number = event.number(),
          .time = FromProto(event.time()),
          .type = event.type(),
          .message = event.message(),
          .epoch = Epoch{event.epoch()}};
}

absl::string_view DeviceKindName(job::DeviceKind kind) {
  return job::DeviceNames()[static_cast<size_t>(kind)];
}

}  // namespace phalanx::coordinator
