#include "coordinator/status/status_json.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/status/status_page.h"
#include "coordinator/wire/common_codec.h"
#include "coordinator/wire/incident_codec.h"
#include "core/base/cut_text.h"
#include "core/job/json.h"
#include "core/wire/incident_json.h"

namespace phalanx::coordinator {
namespace {

using job::FlagTree;
using job::ListTree;
using job::MappingTree;
using job::Tree;

Tree Text(absl::string_view text) {
  return job::TextTree(CutText(std::string(text), StatusPage::kTextBytesMax));
}
Tree Number(int64_t number) { return job::NumberTree(number); }
Tree Number(double number) { return std::isfinite(number) ? job::NumberTree(number) : Tree(); }
Tree Time(Instant time) { return job::NumberTree(absl::ToUnixSeconds(time)); }
Tree Time(const std::optional<Instant>& time) { return time.has_value() ? Time(*time) : Tree(); }

template <typename Values, typename Make>
Tree List(const Values& values, Make make) {
  std::vector<Tree> items;
  for (const auto& value : values) items.push_back(make(value));
  return ListTree(std::move(items));
}

// In words what is wrong with a device that gets no job.
std::string FaultOf(const NodeView& node, int32_t device) {
  const std::vector<job::DeviceCheck> none;
  for (const job::DeviceCheck& check : node.check == nullptr ? none : node.check->devices) {
    if (check.device == device && check.verdict == job::CheckVerdict::kFailed)
      return absl::StrCat("failed its check: ", check.reason);
  }
  return "failed a rank";
}

Tree NodeTree(const NodeView& node) {
  const char* state = !node.connected ? "disconnected" : node.suspect ? "suspect" : "ready";
  return MappingTree(
      {{"name", Text(node.name)},
       {"state", Text(state)},
       {"refused", Text(node.refused)},
       {"unfit", Text(node.unfit)},
       {"draining", FlagTree(node.draining)},
       {"mark", Text(!node.mark.has_value() ? ""
                     : node.mark->drains    ? "drained"
                                            : "cordoned")},
       {"mark_reason", Text(node.mark.has_value() ? node.mark->reason : "")},
       {"mark_by", Text(node.mark.has_value() ? node.mark->by : "")},
       {"reserved", FlagTree(node.reserve.has_value())},
       {"reserved_reason", Text(node.reserve.has_value() ? node.reserve->reason : "")},
       {"reserved_by", Text(node.reserve.has_value() ? node.reserve->by : "")},
       {"device_kind", Text(DeviceKindName(node.device_kind))},
       {"device_jobs", List(node.device_jobs, [](JobId job) { return Number(job.value); })},
       {"failed_devices", List(node.failed_devices,
                               [&node](int32_t device) {
                                 return MappingTree({{"device", Number(int64_t{device})},
                                                     {"reason", Text(FaultOf(node, device))}});
                               })},
       {"slow_devices", List(node.slow_devices,
                             [](const SlowDevice& slow) {
                               return MappingTree({{"device", Number(int64_t{slow.device})},
                                                   {"job", Number(slow.job.value)},
                                                   {"reason", Text(ToString(slow))}});
                             })},
       {"last_heartbeat", node.last_heartbeat == Instant() ? Tree() : Time(node.last_heartbeat)},
       {"version", Text(node.version)}});
}

std::vector<Tree::Entry> JobEntries(const JobView& job, const QueueWatch::Spots& queue) {
  std::vector<Tree::Entry> entries = {{"id", Number(job.id.value)},
                                      {"name", Text(job.request->name)},
                                      {"phase", Text(job::ToString(job.phase))},
                                      {"ended", Time(job.ended)},
                                      {"submitted", Time(job.submitted)},
                                      {"started", Time(job.started)},
                                      {"epoch", Number(job.epoch.value)},
                                      {"reason", Text(job.reason)},
                                      {"devices", Number(int64_t{job.request->devices})},
                                      {"priority", Number(int64_t{job.request->priority})},
                                      {"steps", Number(job.request->steps)}};
  if (job.fits_no_nodes)
    entries.push_back({"fits_no_nodes", job::ScalarTree("true", /*quoted=*/false)});
  if (const auto spot = queue.find(job.id);
      spot != queue.end() && job.phase == job::JobPhase::kQueued) {
    if (spot->second.number > 0) entries.push_back({"queue_number", Number(spot->second.number)});
    entries.push_back({"starts_by", Time(spot->second.starts_by)});
    entries.push_back({"starts_about", Time(spot->second.starts_about)});
  }
  if (job.last_step.has_value()) {
    const StepReport& step = *job.last_step;
    const double rate = step.seconds > 0 ? static_cast<double>(step.tokens) / step.seconds : 0;
    entries.push_back({"step", Number(step.step)});
    entries.push_back({"loss", Number(step.loss)});
    entries.push_back({"tokens_per_second", Number(rate)});
    entries.push_back({"step_seconds", Number(step.seconds)});
  }
  return entries;
}

Tree FailureTree(const FailureCause& failure) {
  return MappingTree({{"cause", Text(job::ToString(failure.kind))},
                      {"message", Text(failure.message)},
                      {"rank", Number(int64_t{failure.rank})},
                      {"node", Text(failure.node)},
                      {"next", Text(job::NextAfter(failure.kind, failure.signal))}});
}

Tree EventTree(const JobEvent& event) {
  return MappingTree({{"number", Number(event.number)},
                      {"time", Time(event.time)},
                      {"type", Text(event.type)},
                      {"message", Text(event.message)}});
}

Tree IncidentOf(const IncidentPtr& incident) {
  v1::Incident message;
  ToProto(*incident, &message);
  return wire::IncidentTree(message);
}

Tree PointTree(const CurvePoint& point) {
  return ListTree(
      {Number(point.step), Number(double{point.loss}), Number(double{point.tokens_per_second})});
}

Tree EvaluationTree(const EvaluationReport& evaluation) {
  return MappingTree({{"loss", Number(evaluation.loss)},
                      {"uniform_loss", Number(evaluation.uniform_loss)},
                      {"captions", List(evaluation.captions, [](const Caption& caption) {
                         return MappingTree({{"sample", Text(caption.sample)},
                                             {"truth", Text(caption.truth)},
                                             {"decoded", Text(caption.decoded)}});
                       })}});
}

}  // namespace

std::string OverviewJson(const Overview& overview) {
  const Gauges& counts = overview.counts;
  std::vector<Tree::Entry> phases;
  for (const auto& [phase, count] : counts.jobs) {
    phases.push_back({std::string(job::ToString(phase)), Number(count)});
  }
  return job::EmitJson(MappingTree({{"nodes_ready", Number(counts.nodes_ready)},
                                    {"nodes_suspect", Number(counts.nodes_suspect)},
                                    {"nodes_disconnected", Number(counts.nodes_disconnected)},
                                    {"devices_free", Number(counts.devices_free)},
                                    {"devices_used", Number(counts.devices_used)},
                                    {"devices_failed", Number(counts.devices_failed)},
                                    {"devices_slow", Number(counts.devices_slow)},
                                    {"devices_reserved", Number(counts.devices_reserved)},
                                    {"phases", MappingTree(std::move(phases))},
                                    {"nodes", List(overview.nodes, NodeTree)},
                                    {"jobs", List(overview.jobs, [&](const JobViewPtr& job) {
                                       return MappingTree(JobEntries(*job, overview.queue));
                                     })}}));
}

std::string JobJson(const JobPage& page) {
  const JobView& job = *page.job;
  std::vector<Tree::Entry> entries = JobEntries(job, page.queue);
  entries.push_back({"output", Text(job.request->output)});
  entries.push_back({"warnings", List(job.request->warnings, Text)});
  entries.push_back({"failure", job.failure.has_value() ? FailureTree(*job.failure) : Tree()});
  entries.push_back({"placed", FlagTree(!job.placement->empty())});
  entries.push_back({"without", Number(static_cast<int64_t>(job.layout->lost.size()))});
  if (job.last_checkpoint.has_value()) {
    entries.push_back({"checkpoint_step", Number(job.last_checkpoint->step)});
    entries.push_back({"checkpoint_path", Text(job.last_checkpoint->path)});
  }
  entries.push_back({"curve", List(page.curve, PointTree)});
  entries.push_back({"incidents", List(page.incidents, IncidentOf)});
  entries.push_back({"events", List(page.events, EventTree)});
  entries.push_back(
      {"evaluation", page.evaluation == nullptr ? Tree() : EvaluationTree(*page.evaluation)});
  return job::EmitJson(MappingTree(std::move(entries)));
}

}  // namespace phalanx::coordinator
