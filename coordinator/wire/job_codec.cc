#include "coordinator/wire/job_codec.h"

#include <memory>
#include <utility>

#include "coordinator/wire/common_codec.h"
#include "core/wire/check_codec.h"

namespace phalanx::coordinator {
namespace {

void SlowToProto(const SlowDevice& slow, v1::SlowDevice* out) {
  out->set_job(slow.job.value);
  out->set_rank(slow.rank);
  out->set_node(slow.node);
  out->set_device(slow.device);
  out->set_ratio(slow.ratio());
  out->set_seconds(slow.seconds);
  out->set_others_seconds(slow.others_seconds);
  out->set_others(slow.others);
  ToProto(slow.since, out->mutable_since());
}

}  // namespace

void ToProto(const JobView& job, bool with_document, v1::JobStatus* out) {
  const JobRequest& request = *job.request;
  out->set_id(job.id.value);
  out->set_name(request.name);
  out->set_phase(ToProto(job.phase));
  out->set_epoch(job.epoch.value);
  out->set_reason(job.reason);
  ToProto(job.submitted, out->mutable_submitted());
  if (job.started.has_value()) ToProto(*job.started, out->mutable_started());
  if (job.ended.has_value()) ToProto(*job.ended, out->mutable_ended());
  out->set_steps(request.steps);
  if (job.last_step.has_value()) ToProto(*job.last_step, out->mutable_last_step());
  if (job.last_checkpoint.has_value())
    ToProto(*job.last_checkpoint, out->mutable_last_checkpoint());
  out->set_world(request.world);
  ToProto(*job.placement, out->mutable_placement());
  out->set_plan_digest(job.plan_digest);
  if (job.failure.has_value()) ToProto(*job.failure, out->mutable_failure());
  out->mutable_labels()->insert(request.labels.begin(), request.labels.end());
  if (with_document) ToProto(request.document, out->mutable_document());
  out->mutable_warnings()->Assign(request.warnings.begin(), request.warnings.end());
  out->set_priority(request.priority);
  out->set_output(request.output);
  out->set_suspended(job.suspended);
  out->set_fits_no_nodes(job.fits_no_nodes);
  out->set_damaged(job.damaged);
  out->set_owner(request.owner);
  for (const SlowDevice& slow : *job.slow_devices) SlowToProto(slow, out->add_slow_devices());
  if (job.phase == job::JobPhase::kRunning) {
    for (const Rank rank : job.layout->lost) out->add_lost_ranks(rank.value);
  }
  out->mutable_earlier_nodes()->Assign(job.earlier_nodes->begin(), job.earlier_nodes->end());
}

JobView FromProto(const v1::JobStatus& status) {
  JobRequest request{.document = FromProto(status.document()),
                     .name = status.name(),
                     .labels = {status.labels().begin(), status.labels().end()},
                     .output = status.output(),
                     .warnings = {status.warnings().begin(), status.warnings().end()},
                     .steps = status.steps(),
                     .priority = status.priority(),
                     .world = status.world(),
                     .owner = status.owner()};
  JobView view{.id = JobId{status.id()},
               .request = std::make_shared<const JobRequest>(std::move(request)),
               .phase = FromProto(status.phase()),
               .epoch = Epoch{status.epoch()},
               .reason = status.reason(),
               .submitted = FromProto(status.submitted()),
               .placement = FromProto(status.placement()),
               .plan_digest = status.plan_digest(),
               .earlier_nodes = std::vector<NodeName>(status.earlier_nodes().begin(),
                                                      status.earlier_nodes().end())};
  if (status.has_started()) view.started = FromProto(status.started());
  if (status.has_ended()) view.ended = FromProto(status.ended());
  if (status.has_last_step()) view.last_step = FromProto(status.last_step());
  if (status.has_last_checkpoint()) view.last_checkpoint = FromProto(status.last_checkpoint());
  if (status.has_failure()) view.failure = FromProto(status.failure());
  return view;
}

void ToProto(const NodeView& node, v1::NodeStatus* out) {
  out->set_name(node.name);
  out->set_state(!node.connected ? v1::NodeStatus::STATE_DISCONNECTED
                 : node.suspect  ? v1::NodeStatus::STATE_SUSPECT
                                 : v1::NodeStatus::STATE_READY);
  out->set_refused(node.refused);
  out->set_unfit(node.unfit);
  out->set_device_kind(std::string(DeviceKindName(node.device_kind)));
  out->set_devices(static_cast<int32_t>(node.device_jobs.size()));
  for (JobId job : node.device_jobs) out->add_device_jobs(job.value);
  out->mutable_device_memory()->Assign(node.device_memory.begin(), node.device_memory.end());
  out->mutable_device_names()->Assign(node.device_names.begin(), node.device_names.end());
  out->set_host_memory(node.host_memory);
  out->mutable_device_temperatures()->Assign(node.device_temperatures.begin(),
                                             node.device_temperatures.end());
  out->mutable_device_used_memory()->Assign(node.device_used_memory.begin(),
                                            node.device_used_memory.end());
  out->mutable_failed_devices()->Assign(node.failed_devices.begin(), node.failed_devices.end());
  if (node.check != nullptr) wire::ToProto(*node.check, out->mutable_check());
  for (const SlowDevice& slow : node.slow_devices) SlowToProto(slow, out->add_slow_devices());
  if (node.last_heartbeat != Instant()) ToProto(node.last_heartbeat, out->mutable_last_heartbeat());
  out->mutable_labels()->insert(node.labels.begin(), node.labels.end());
  out->set_version(node.version);
  if (node.mark.has_value()) ToProto(*node.mark, out->mutable_mark());
  if (node.reserve.has_value()) ToProto(*node.reserve, out->mutable_reserve());
}

void ToProto(const MarkedNode& node, v1::DrainNodeResponse* out) {
  ToProto(*node.node, out->mutable_node());
  for (const JobOnNode& job : node.jobs) {
    v1::JobOnNode* to = out->add_jobs();
    to->set_job(job.job.value);
    to->set_name(job.name);
    to->set_what(job.what);
    to->set_stays(job.stays);
  }
}

}  // namespace phalanx::coordinator
