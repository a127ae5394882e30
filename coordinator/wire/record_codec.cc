#include "coordinator/wire/record_codec.h"

#include <memory>
#include <utility>

#include "coordinator/wire/common_codec.h"
#include "coordinator/wire/incident_codec.h"
#include "coordinator/wire/seal.h"
#include "core/base/status.h"
#include "core/wire/check_codec.h"
#include "core/wire/layout_codec.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "phalanx/v1/journal.pb.h"

namespace phalanx::coordinator {
namespace {

class Encoder {
 public:
  explicit Encoder(v1::JournalRecord& out) : out_(out) {}

  void operator()(const JobSubmitted& body) {
    v1::JobSubmitted* to = out_.mutable_job_submitted();
    const JobRequest& request = *body.request;
    ToProto(request.document, to->mutable_document());
    to->set_request_id(body.request_id);
    v1::JobSummary* summary = to->mutable_summary();
    summary->set_name(request.name);
    summary->mutable_labels()->insert(request.labels.begin(), request.labels.end());
    summary->mutable_node_selector()->insert(request.node_selector.begin(),
                                             request.node_selector.end());
    summary->set_output(request.output);
    summary->mutable_warnings()->Assign(request.warnings.begin(), request.warnings.end());
    summary->set_layout_note(request.layout_note);
    summary->set_data_key(request.data_key);
    to->set_submitted_digest(request.submitted_digest);
    summary->set_steps(request.steps);
    summary->set_corrupt_max(request.corrupt_max);
    if (request.time_limit < absl::InfiniteDuration())
      ToProto(request.time_limit, summary->mutable_time_limit());
    summary->set_checkpoints(request.checkpoints);
    summary->set_recovers(request.recovers);
    summary->set_rejoins(request.rejoins);
    summary->set_borrows(request.borrows);
    summary->set_standby(request.standby);
    summary->set_relieves(request.relieves);
    summary->set_waits(request.waits);
    summary->set_restarts(request.restarts);
    summary->set_begins_anew(request.begins_anew);
    summary->set_recoveries_max(request.budget.total);
    summary->set_recoveries_without_progress_max(request.budget.without_progress);
    ToProto(request.budget.window, summary->mutable_recovery_window());
    ToProto(request.hold, summary->mutable_recovery_hold());
    summary->set_priority(request.priority);
    summary->set_preemptible(request.preemptible);
    summary->set_world(request.world);
    summary->set_devices(request.devices);
    summary->set_device_kind(std::string(DeviceKindName(request.device_kind)));
    for (Rank rank : request.lost) to->add_lost(rank.value);
    to->set_owner(request.owner);
  }
  void operator()(const PhaseChanged& body) {
    v1::PhaseChanged* to = out_.mutable_phase_changed();
    to->set_phase(ToProto(body.phase));
    to->set_reason(body.reason);
    if (body.failure.has_value()) ToProto(*body.failure, to->mutable_failure());
    to->set_in_order(body.in_order);
  }
  void operator()(const EpochPlanned& body) {
    v1::EpochPlanned* to = out_.mutable_epoch_planned();
    to->set_plan_digest(body.plan_digest);
    // Of before there were layouts, which leave nothing open: as it was read (Decode).
    if (body.layout->schedule.name == job::ScheduleName::kAuto) {
      to->set_epoch(body.layout->epoch.value);
      ToProto(body.layout->nodes, to->mutable_placement());
      to->set_data_digest(body.layout->data_digest);
      return;
    }
    wire::ToProto(*body.layout, to->mutable_layout());
    if (body.checkpoint.has_value()) ToProto(*body.checkpoint, to->mutable_checkpoint());
    to->mutable_host_memory()->Assign(body.host_memory.begin(), body.host_memory.end());
    to->set_state_epoch(body.state_epoch.value);
    to->set_from_copies(body.from_copies);
    to->set_standby(body.standby);
    to->set_beside(body.beside);
    to->set_ends(body.ends);
    to->set_by_choice(body.by_choice);
  }
  void operator()(const EventRecorded& body) {
    v1::JobEvent* to = out_.mutable_event_recorded();
    to->set_type(body.type);
    to->set_message(body.message);
    to->set_epoch(body.epoch.value);
  }
  void operator()(const Evaluated& body) { ToProto(body.evaluation, out_.mutable_evaluated()); }
  void operator()(const StepReached& body) {
    ToProto(body.step, out_.mutable_step_reached());
    if (body.decided.has_value()) ToProto(*body.decided, out_.mutable_decided());
    if (!body.curve.empty()) ToProto(body.curve, out_.mutable_curve());
  }
  void operator()(const RanksSucceeded& body) {
    v1::RanksSucceeded* to = out_.mutable_ranks_succeeded();
    to->set_epoch(body.epoch.value);
    to->mutable_ranks()->Assign(body.ranks.begin(), body.ranks.end());
    to->set_step(body.step);
  }
  void operator()(const CheckpointWritten& body) {
    v1::CheckpointWritten* to = out_.mutable_checkpoint_written();
    to->set_epoch(body.epoch.value);
    to->set_step(body.step);
    to->set_rank(body.rank);
    to->set_parts_digest(body.parts_digest);
    to->set_bytes(body.bytes);
    to->set_seconds(body.seconds);
  }
  void operator()(const CheckpointEnded& body) {
    v1::CheckpointEnded* to = out_.mutable_checkpoint_ended();
    to->set_epoch(body.epoch.value);
    to->set_step(body.step);
    to->set_path(body.path);
    to->set_error(body.error);
  }
  void operator()(const EndWished& body) {
    v1::EndWished* to = out_.mutable_end_wished();
    if (body.failure.has_value()) to->set_failure(static_cast<v1::FailureKind>(*body.failure));
    to->set_node(body.node);
    to->set_queues(body.queues);
    for (const Rank rank : body.lost) to->add_lost(rank.value);
    to->set_suspends(body.suspends);
    to->set_preempted_by(body.preempted_by.value);
    to->set_by(body.by);
  }
  void operator()(const SuspensionChanged& body) {
    out_.mutable_suspension_changed()->set_suspended(body.suspended);
    out_.mutable_suspension_changed()->set_by(body.by);
  }
  void operator()(const NodeMarked& body) {
    v1::NodeMarked* to = out_.mutable_node_marked();
    to->set_node(body.node);
    if (body.mark.has_value()) ToProto(*body.mark, to->mutable_mark());
    if (body.reserve.has_value()) ToProto(*body.reserve, to->mutable_reserve());
    for (const job::DeviceCheck& check : body.checks) wire::ToProto(check, to->add_checks());
    to->mutable_let_back()->Assign(body.let_back.begin(), body.let_back.end());
  }
  void operator()(const DeviceTimeUsed& body) {
    out_.mutable_device_time_used()->set_owner(body.owner);
    out_.mutable_device_time_used()->set_device_seconds(body.device_seconds);
  }
  void operator()(const EpochBegan& body) {
    v1::EpochBegan* to = out_.mutable_epoch_began();
    to->set_epoch(body.epoch.value);
    ToProto(body.start, to->mutable_begins());
    to->set_copies_epoch(body.copies_epoch.value);
    for (const Rank keeper : body.copies_keepers) to->add_copies_keepers(keeper.value);
  }
  void operator()(const IncidentNoted& body) {
    ToProto(*body.incident, out_.mutable_incident_noted());
  }

 private:
  v1::JournalRecord& out_;
};

JobSubmitted Decode(const v1::JobSubmitted& from) {
  JobRequest request;
  request.document = FromProto(from.document());
  const v1::JobSummary& summary = from.summary();
  request.name = summary.name();
  request.labels.insert(summary.labels().begin(), summary.labels().end());
  request.node_selector.insert(summary.node_selector().begin(), summary.node_selector().end());
  request.output = summary.output();
  request.warnings.assign(summary.warnings().begin(), summary.warnings().end());
  request.layout_note = summary.layout_note();
  request.data_key = summary.data_key();
  request.steps = summary.steps();
  request.corrupt_max = summary.corrupt_max();
  if (summary.has_time_limit()) request.time_limit = FromProto(summary.time_limit());
  request.checkpoints = summary.checkpoints();
  request.recovers = summary.recovers();
  request.rejoins = summary.rejoins();
  request.borrows = summary.borrows();
  request.standby = summary.standby();
  request.relieves = summary.relieves();
  request.waits = summary.waits();
  if (summary.has_recovery_hold()) request.hold = FromProto(summary.recovery_hold());
  request.restarts = summary.restarts();
  request.begins_anew = summary.begins_anew();
  if (summary.has_recovery_window()) {
    request.budget = {.total = summary.recoveries_max(),
                      .without_progress = summary.recoveries_without_progress_max(),
                      .window = FromProto(summary.recovery_window())};
  }
  request.priority = summary.priority();
  request.preemptible = summary.preemptible();
  request.world = summary.world();
  request.devices = summary.devices();
  request.device_kind =
      summary.device_kind() == "gpu" ? job::DeviceKind::kGpu : job::DeviceKind::kCpu;
  request.submitted_digest = from.submitted_digest();
  request.lost = wire::RanksOf(from.lost());
  request.owner = from.owner();
  return {.request = std::make_shared<const JobRequest>(std::move(request)),
          .request_id = from.request_id()};
}

// A record from before there were layouts has one without modules.
absl::StatusOr<EpochPlanned> Decode(const v1::EpochPlanned& from) {
  EpochPlanned planned{.plan_digest = from.plan_digest()};
  if (!from.has_layout()) {
    planned.layout = plan::Layout{.epoch = Epoch{from.epoch()},
                                  .nodes = FromProto(from.placement()),
                                  .data_digest = from.data_digest()};
    return planned;
  }
  if (from.has_checkpoint()) planned.checkpoint = FromProto(from.checkpoint());
  planned.host_memory.assign(from.host_memory().begin(), from.host_memory().end());
  planned.state_epoch = Epoch{from.state_epoch()};
  planned.from_copies = from.from_copies();
  planned.standby = from.standby();
  planned.beside = from.beside();
  planned.ends = from.ends();
  planned.by_choice = from.by_choice();
  absl::StatusOr<plan::Layout> layout = wire::FromProto(from.layout());
  if (!layout.ok()) return layout.status();
  planned.layout = *std::move(layout);
  return planned;
}

}  // namespace

std::string EncodeRecord(const JournalRecord& record, uint64_t number) {
  v1::JournalRecord out;
  ToProto(record.time, out.mutable_time());
  out.set_job(record.job.value);
  std::visit(Encoder(out), record.body);
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);  // maps in one order
    out.SerializeToCodedStream(&coded);
  }
  return Seal(bytes, number);
}

absl::StatusOr<JournalRecord> DecodeRecord(absl::string_view sealed, uint64_t number) {
  ASSIGN_OR_RETURN(const absl::string_view bytes, Unseal(sealed, number));
  return DecodeUnsealedRecord(bytes);
}

void ToProto(const std::vector<CurvePoint>& curve, v1::Curve* out) {
  for (const CurvePoint& point : curve) {
    out->add_steps(point.step);
    out->add_losses(point.loss);
    out->add_tokens_per_second(point.tokens_per_second);
  }
}

std::vector<CurvePoint> FromProto(const v1::Curve& curve) {
  std::vector<CurvePoint> points;
  const int count = curve.steps_size();
  if (curve.losses_size() != count || curve.tokens_per_second_size() != count) return points;
  for (int i = 0; i < count; ++i) {
    if (curve.steps(i) <= (points.empty() ? 0 : points.back().step)) continue;
    points.push_back({curve.steps(i), curve.losses(i), curve.tokens_per_second(i)});
  }
  return points;
}

absl::StatusOr<JournalRecord> DecodeUnsealedRecord(absl::string_view bytes) {
  v1::JournalRecord from;
  if (!from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("does not parse: it is damaged");
  }
  JournalRecord record{.time = FromProto(from.time()), .job = JobId{from.job()}};
  switch (from.record_case()) {
    case v1::JournalRecord::kJobSubmitted:
      record.body = Decode(from.job_submitted());
      return record;
    case v1::JournalRecord::kPhaseChanged: {
      PhaseChanged body{.phase = FromProto(from.phase_changed().phase()),
                        .reason = from.phase_changed().reason()};
      if (from.phase_changed().has_failure())
        body.failure = FromProto(from.phase_changed().failure());
      body.in_order = from.phase_changed().in_order();
      record.body = std::move(body);
      return record;
    }
    case v1::JournalRecord::kEpochPlanned: {
      absl::StatusOr<EpochPlanned> planned = Decode(from.epoch_planned());
      if (!planned.ok()) return planned.status();
      record.body = *std::move(planned);
      return record;
    }
    case v1::JournalRecord::kEventRecorded:
      record.body = EventRecorded{.type = from.event_recorded().type(),
                                  .message = from.event_recorded().message(),
                                  .epoch = Epoch{from.event_recorded().epoch()}};
      return record;
    case v1::JournalRecord::kEvaluated:
      record.body = Evaluated{FromProto(from.evaluated())};
      return record;
    case v1::JournalRecord::kStepReached:
      record.body = StepReached{FromProto(from.step_reached()),
                                from.has_decided() ? FromProto(from.decided()) : std::nullopt,
                                FromProto(from.curve())};
      return record;
    case v1::JournalRecord::kRanksSucceeded:
      record.body = RanksSucceeded{
          .epoch = Epoch{from.ranks_succeeded().epoch()},
          .ranks = {from.ranks_succeeded().ranks().begin(), from.ranks_succeeded().ranks().end()},
          .step = from.ranks_succeeded().step()};
      return record;
    case v1::JournalRecord::kCheckpointWritten:
      record.body = CheckpointWritten{.epoch = Epoch{from.checkpoint_written().epoch()},
                                      .step = from.checkpoint_written().step(),
                                      .rank = from.checkpoint_written().rank(),
                                      .parts_digest = from.checkpoint_written().parts_digest(),
                                      .bytes = from.checkpoint_written().bytes(),
                                      .seconds = from.checkpoint_written().seconds()};
      return record;
    case v1::JournalRecord::kCheckpointEnded:
      record.body = CheckpointEnded{.epoch = Epoch{from.checkpoint_ended().epoch()},
                                    .step = from.checkpoint_ended().step(),
                                    .path = from.checkpoint_ended().path(),
                                    .error = from.checkpoint_ended().error()};
      return record;
    case v1::JournalRecord::kEndWished:
      record.body = EndWished{.failure = job::FailureKindOf(from.end_wished().failure()),
                              .node = from.end_wished().node(),
                              .queues = from.end_wished().queues(),
                              .lost = wire::RanksOf(from.end_wished().lost()),
                              .suspends = from.end_wished().suspends(),
                              .preempted_by = JobId{from.end_wished().preempted_by()},
                              .by = from.end_wished().by()};
      return record;
    case v1::JournalRecord::kEpochBegan: {
      std::optional<EpochStart> start = FromProto(from.epoch_began().begins());
      if (!start.has_value()) {
        return absl::DataLossError("epoch_began.begins is of no step that can be decided");
      }
      EpochBegan began{.epoch = Epoch{from.epoch_began().epoch()},
                       .start = *std::move(start),
                       .copies_epoch = Epoch{from.epoch_began().copies_epoch()}};
      for (const int32_t keeper : from.epoch_began().copies_keepers())
        began.copies_keepers.push_back(Rank{keeper});
      record.body = std::move(began);
      return record;
    }
    case v1::JournalRecord::kIncidentNoted:
      record.body = IncidentNoted{FromProto(from.incident_noted())};
      return record;
    case v1::JournalRecord::kSuspensionChanged:
      record.body =
          SuspensionChanged{from.suspension_changed().suspended(), from.suspension_changed().by()};
      return record;
    case v1::JournalRecord::kNodeMarked: {
      const v1::NodeMarked& marked = from.node_marked();
      NodeMarked body{.node = marked.node(),
                      .let_back = {marked.let_back().begin(), marked.let_back().end()}};
      if (marked.has_mark()) body.mark = FromProto(marked.mark());
      if (marked.has_reserve()) body.reserve = FromProto(marked.reserve());
      for (const v1::DeviceCheck& check : marked.checks())
        body.checks.push_back(wire::FromProto(check));
      record.body = std::move(body);
      return record;
    }
    case v1::JournalRecord::kDeviceTimeUsed:
      record.body =
          DeviceTimeUsed{from.device_time_used().owner(), from.device_time_used().device_seconds()};
      return record;
    case v1::JournalRecord::RECORD_NOT_SET:
      break;
  }
  return absl::DataLossError("is of a kind that this version does not know");
}

}  // namespace phalanx::coordinator
