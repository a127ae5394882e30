#include "worker/rank/rank_reports.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/accused.h"
#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/job/failure.h"
#include "phalanx/v1/rank.pb.h"
#include "spdlog/spdlog.h"

namespace phalanx::rank {
namespace {

v1::StepDecision::Verdict VerdictToProto(train::Verdict verdict) {
  switch (verdict) {
    case train::Verdict::kCommitted:
      return v1::StepDecision::COMMITTED;
    case train::Verdict::kSkipped:
      return v1::StepDecision::SKIPPED;
    case train::Verdict::kEmpty:
      return v1::StepDecision::EMPTY;
    case train::Verdict::kInvalid:
      break;
  }
  return v1::StepDecision::VERDICT_UNSPECIFIED;
}

train::Verdict FromProto(v1::StepDecision::Verdict verdict) {
  switch (verdict) {
    case v1::StepDecision::COMMITTED:
      return train::Verdict::kCommitted;
    case v1::StepDecision::SKIPPED:
      return train::Verdict::kSkipped;
    case v1::StepDecision::EMPTY:
      return train::Verdict::kEmpty;
    default:
      return train::Verdict::kInvalid;
  }
}

constexpr absl::Duration kReportTimeout = absl::Seconds(30);

}  // namespace

absl::Status SendReport(channel::FrameSocket& channel, const ReportsOf& whose,
                        v1::RankReport report) {
  report.set_job(whose.job);
  report.set_epoch(whose.epoch);
  report.set_rank(whose.rank);
  // What people are told of the job stands in the log of the rank that told it.
  if (report.has_event()) {
    spdlog::warn("job={} epoch={} rank={} {}: {}", whose.job, whose.epoch, whose.rank,
                 report.event().type(), LineText(report.event().message()));
  }
  v1::ToDaemon message;
  *message.mutable_report() = std::move(report);
  return channel.Send(message, kReportTimeout);
}

bool IsCollateral(const absl::Status& ended) {
  const job::FailureKind kind = job::KindOf(ended);
  return absl::IsCancelled(ended) || kind == job::FailureKind::kPeerLost ||
         kind == job::FailureKind::kStateLost || kind == job::FailureKind::kCheckpointInvalid ||
         kind == job::FailureKind::kCheckpointUnavailable;
}

absl::Status AsCollateral(absl::Status ended) {
  if (ended.ok() || IsCollateral(ended)) return ended;
  return job::WithKind(job::FailureKind::kPeerLost, std::move(ended));
}

absl::Status LeadsOut(job::FailureKind kind, const std::string& field, const std::string& path,
                      const absl::Status& why) {
  const Violation violation{.field = field, .value = path, .rule = std::string(why.message())};
  return job::WithKind(kind, ViolationsStatus({violation}));
}

void TellStrangers(channel::FrameSocket& channel, const ReportsOf& whose, int64_t refused,
                   const std::string& last) {
  spdlog::warn(
      "job={} epoch={} rank={} refused {} connections that are of no rank of this epoch, the last "
      "from {}: let nobody but nodes reach its port",
      whose.job, whose.epoch, whose.rank, refused, LineText(last));
  v1::ToDaemon message;
  message.mutable_strangers()->set_refused(refused);
  channel.Send(message, kReportTimeout).IgnoreError();
}

v1::RankError ErrorReport(const absl::Status& ended) {
  v1::RankError error;
  error.set_message(std::string(ended.message()));
  error.set_kind(static_cast<v1::FailureKind>(job::KindOf(ended)));
  if (const std::optional<Rank> accused = AccusedIn(ended)) error.set_accused_rank(accused->value);
  return error;
}

v1::StepDecision ToProto(const train::Decision& decision) {
  v1::StepDecision out;
  out.set_step(decision.step);
  out.set_verdict(VerdictToProto(decision.verdict));
  out.set_loss(decision.loss);
  out.set_gradient_norm(decision.gradient_norm);
  out.set_gradient_scale(decision.gradient_scale);
  out.set_counted_tokens(decision.counted_tokens);
  out.set_corrupt_samples(decision.corrupt_samples);
  out.set_tokens(decision.volume.tokens);
  out.set_images(decision.volume.images);
  out.set_sounds(decision.volume.sounds);
  return out;
}

v1::RankQuiet QuietReport(const train::Standing& standing, int64_t epoch, bool context_ok) {
  v1::RankQuiet quiet;
  quiet.set_layout_epoch(epoch);
  if (standing.decided.step > 0) *quiet.mutable_decision() = ToProto(standing.decided);
  for (const train::Standing::Home& home : standing.homes) {
    v1::RankQuiet::Home& out = *quiet.add_homes();
    out.set_module(home.module);
    out.set_chunk(home.chunk);
    out.set_primary(home.primary.value);
    out.set_applied(home.applied);
  }
  quiet.set_updates(standing.counts.updates);
  quiet.set_skipped_in_a_row(standing.counts.skipped_in_a_row);
  quiet.set_context_ok(context_ok);
  quiet.set_begun(standing.begun);
  if (standing.copied != train::kKeepsNoCopies)
    quiet.set_copied(std::max<int64_t>(standing.copied, 0));
  return quiet;
}

v1::EpochBegins BeginsAt(const train::Decision& decision, const train::Counts& counts) {
  v1::EpochBegins begins;
  if (decision.step > 0) *begins.mutable_decision() = ToProto(decision);
  begins.set_updates(counts.updates);
  begins.set_skipped_in_a_row(counts.skipped_in_a_row);
  return begins;
}

absl::StatusOr<train::Start> StartOf(const v1::EpochBegins& begins) {
  train::Start start;
  start.counts = {.updates = begins.updates(), .skipped_in_a_row = begins.skipped_in_a_row()};
  if (!begins.has_decision()) return start;
  const v1::StepDecision& from = begins.decision();
  start.decision = {.step = from.step(),
                    .verdict = FromProto(from.verdict()),
                    .loss = from.loss(),
                    .gradient_norm = from.gradient_norm(),
                    .gradient_scale = from.gradient_scale(),
                    .counted_tokens = from.counted_tokens(),
                    .corrupt_samples = from.corrupt_samples(),
                    .volume = {from.tokens(), from.images(), from.sounds()}};
  if (from.step() < 1 || !train::IsDecided(start.decision.verdict)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "begins.decision is of step ", from.step(), " with verdict ",
        v1::StepDecision::Verdict_Name(from.verdict()), "; a decided step counts from 1"));
  }
  const bool committed = start.decision.verdict == train::Verdict::kCommitted;
  if (committed && !(std::isfinite(from.gradient_scale()) && from.gradient_scale() > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("begins.decision.gradient_scale is ",
                                                   from.gradient_scale(),
                                                   "; that of a committed step is above 0"));
  }
  return start;
}

}  // namespace phalanx::rank
