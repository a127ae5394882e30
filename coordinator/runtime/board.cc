#include "coordinator/runtime/board.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/incident.h"
#include "core/job/devices.h"

namespace phalanx::coordinator {
namespace {

JobGauges GaugesOf(const JobView& job) {
  const StepReport& step = *job.last_step;
  return {
      .job = job.request->name,
      .step = step.step,
      .steps = job.request->steps,
      .loss = step.loss,
      .tokens_per_second = step.seconds > 0 ? static_cast<double>(step.tokens) / step.seconds : 0,
      .step_seconds = step.seconds,
      .epoch = job.epoch.value};
}

bool SaysNoFp8(const NodeView& node) {
  const auto label = node.labels.find(job::kFp8Label);
  return label != node.labels.end() && label->second == "no";
}

}  // namespace

void Board::Publish(const PublishJob& action) {
  std::vector<std::shared_ptr<Subscription>> subscriptions;
  {
    MutexLock lock(&mu_);
    Entry& entry = jobs_[action.job->id];
    if (entry.job == nullptr) {
      JobId& newest = newest_[action.job->request->name];
      newest = std::max(newest, action.job->id);
    } else {
      --phases_[entry.job->phase];
    }
    ++phases_[action.job->phase];
    entry.job = action.job;
    if (entry.job->slow_devices->empty()) {
      with_slow_devices_.erase(entry.job->id);
    } else {
      with_slow_devices_.insert(entry.job->id);
    }
    subscriptions = entry.subscriptions;
  }
  for (const auto& subscription : subscriptions) {
    subscription->Add(action.job);
    subscription->wake_();
  }
}

// Steps, events and evaluations come with a view of their job right after them, which wakes.
void Board::Publish(const PublishStep& action) {
  std::vector<std::shared_ptr<Subscription>> subscriptions;
  {
    MutexLock lock(&mu_);
    subscriptions = jobs_[action.job].subscriptions;
    curves_[action.job].Add(action.step);
    if (curves_.size() > kCurvesMax) curves_.erase(curves_.begin());
  }
  for (const auto& subscription : subscriptions) subscription->Add(action.step);
}

void Board::Publish(PublishEvent action) {
  std::vector<std::shared_ptr<Subscription>> subscriptions;
  {
    MutexLock lock(&mu_);
    Entry& entry = jobs_[action.job];
    AddLocked(action.job, entry, action.event);
    subscriptions = entry.subscriptions;
  }
  for (const auto& subscription : subscriptions) subscription->Add(action.event);
}

void Board::AddLocked(JobId job, Entry& entry, const JobEvent& event) {
  size_t before = entry.events.bytes();
  entry.events.Add(event);
  CountEventsLocked(job, before, entry.events.bytes());
  while (all_event_bytes_ > event_bytes_max_) {
    const JobId largest = event_bytes_.rbegin()->second;
    EventWindow& events = jobs_.at(largest).events;
    before = events.bytes();
    if (!events.ShedOldest()) return;
    CountEventsLocked(largest, before, events.bytes());
  }
}

void Board::CountEventsLocked(JobId job, size_t before, size_t now) {
  event_bytes_.erase({before, job});
  if (now != 0) event_bytes_.emplace(now, job);
  all_event_bytes_ = all_event_bytes_ - before + now;
}

void Board::Publish(const PublishEvaluation& action) {
  std::vector<std::shared_ptr<Subscription>> subscriptions;
  {
    MutexLock lock(&mu_);
    Entry& entry = jobs_[action.job];
    entry.evaluation = action.evaluation;
    subscriptions = entry.subscriptions;
  }
  for (const auto& subscription : subscriptions) {
    subscription->Add(action.evaluation);
    subscription->wake_();
  }
}

void Board::Publish(const PublishDataShape& action) {
  MutexLock lock(&mu_);
  if (data_shapes_.insert_or_assign(action.key, action.shape).second)
    data_keys_.push_back(action.key);
  if (data_keys_.size() <= kDataShapesMax) return;
  data_shapes_.erase(data_keys_.front());
  data_keys_.pop_front();
}

std::optional<job::DataShape> Board::DataShapeOf(const std::string& key) const {
  MutexLock lock(&mu_);
  const auto known = data_shapes_.find(key);
  return known == data_shapes_.end() ? std::nullopt : std::optional(known->second);
}

void Board::Publish(const PublishIncident& action) {
  MutexLock lock(&mu_);
  Keep(jobs_[action.job].incidents, action.incident);
}

void Board::Publish(const PublishNode& action) {
  MutexLock lock(&mu_);
  NodeEntry& entry = nodes_[action.node->name];
  UncountFp8Locked(entry);
  if (action.node->device_kind == job::DeviceKind::kGpu) {
    ++gpu_nodes_;
    if (SaysNoFp8(*action.node)) without_fp8_.insert(action.node->name);
  }
  entry.view = action.node;
  entry.last_heartbeat = std::max(entry.last_heartbeat, action.node->last_heartbeat);
}

void Board::Publish(const PublishHeartbeat& action) {
  MutexLock lock(&mu_);
  NodeEntry& entry = nodes_[action.node];
  entry.last_heartbeat = action.time;
  entry.device_temperatures = action.device_temperatures;
  entry.device_used_memory = action.device_used_memory;
}

void Board::Publish(const RetractNode& action) {
  MutexLock lock(&mu_);
  const auto found = nodes_.find(action.node);
  if (found == nodes_.end()) return;
  UncountFp8Locked(found->second);
  nodes_.erase(found);
}

void Board::UncountFp8Locked(const NodeEntry& entry) {
  if (entry.view == nullptr || entry.view->device_kind != job::DeviceKind::kGpu) return;
  --gpu_nodes_;
  without_fp8_.erase(entry.view->name);
}

Fp8Nodes Board::Fp8() const {
  MutexLock lock(&mu_);
  Fp8Nodes nodes{.gpu_nodes = gpu_nodes_, .without = without_fp8_.size()};
  for (const NodeName& name : without_fp8_) {
    if (nodes.names.size() == kFp8NamesMax) break;
    const std::vector<std::string>& devices = nodes_.at(name).view->device_names;
    const bool known = !devices.empty() && !devices.front().empty();
    nodes.names.push_back(known ? absl::StrCat(name, ": ", devices.front()) : name);
  }
  return nodes;
}

void Board::Connect(std::shared_ptr<EndedJobs> ended) {
  MutexLock lock(&mu_);
  ended_ = std::move(ended);
}

std::shared_ptr<EndedJobs> Board::ended() const {
  MutexLock lock(&mu_);
  return ended_;
}

void Board::Forget(JobId job) {
  Entry entry;  // destroyed outside the lock
  MutexLock lock(&mu_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  CountEventsLocked(job, found->second.events.bytes(), 0);
  entry = std::move(found->second);
  jobs_.erase(found);
  curves_.erase(job);
  with_slow_devices_.erase(job);
  if (entry.job == nullptr) return;
  --phases_[entry.job->phase];
  const auto named = newest_.find(entry.job->request->name);
  if (named != newest_.end() && named->second == job) newest_.erase(named);
}

void Board::RestoreCurve(JobId job, const std::vector<CurvePoint>& points) {
  MutexLock lock(&mu_);
  if (curves_.size() >= kCurvesMax && !curves_.contains(job)) return;
  Curve& curve = curves_[job];
  for (const CurvePoint& point : points) curve.Add(point);
}

std::vector<CurvePoint> Board::CurveToStore(JobId job, const StepReport& step) {
  MutexLock lock(&mu_);
  if (curves_.size() >= kCurvesMax && !curves_.contains(job)) return {};
  Curve& curve = curves_[job];
  curve.Add(step);
  return curve.Thinned(kStoredPointsMax);
}

std::vector<NodeView> Board::Nodes(size_t count, const NodeName& after) const {
  MutexLock lock(&mu_);
  return NodesFrom(nodes_.upper_bound(after), count);
}

std::optional<NodeView> Board::FindNode(const NodeName& name) const {
  MutexLock lock(&mu_);
  const auto found = nodes_.find(name);
  if (found == nodes_.end() || found->second.view == nullptr) return std::nullopt;
  return std::move(NodesFrom(found, 1).front());
}

std::vector<NodeView> Board::NodesFrom(std::map<NodeName, NodeEntry>::const_iterator entry,
                                       size_t count) const {
  std::vector<NodeView> nodes;
  for (; entry != nodes_.end() && nodes.size() < count; ++entry) {
    const NodeEntry& from = entry->second;
    if (from.view == nullptr) continue;
    nodes.push_back(*from.view);
    nodes.back().last_heartbeat = from.last_heartbeat;
    nodes.back().device_temperatures = from.device_temperatures;
    nodes.back().device_used_memory = from.device_used_memory;
  }
  for (const JobId job : with_slow_devices_) {
    for (const SlowDevice& slow : *jobs_.at(job).job->slow_devices) {
      // By name, as nodes_ is.
      const auto node = std::lower_bound(
          nodes.begin(), nodes.end(), slow.node,
          [](const NodeView& view, const NodeName& name) { return view.name < name; });
      if (node != nodes.end() && node->name == slow.node) node->slow_devices.push_back(slow);
    }
  }
  return nodes;
}

void Board::Unsubscribe(JobId job, const Subscription* subscription) {
  MutexLock lock(&mu_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  std::erase_if(found->second.subscriptions,
                [subscription](const auto& entry) { return entry.get() == subscription; });
}

void Board::Count(Gauges& gauges) const {
  gauges.watch_pending_bytes = pending_bytes();
  MutexLock lock(&mu_);
  for (auto it = jobs_.rbegin(); it != jobs_.rend(); ++it) {
    if (gauges.running.size() == kJobSeriesMax) break;
    const JobViewPtr& job = it->second.job;
    if (job == nullptr || job->phase != job::JobPhase::kRunning || !job->last_step.has_value())
      continue;
    gauges.running.push_back(GaugesOf(*job));
  }
  for (const auto& [id, entry] : jobs_) {
    if (entry.job == nullptr) continue;
    gauges.devices_slow += static_cast<int64_t>(entry.job->slow_devices->size());
    if (entry.job->suspended && entry.job->phase == job::JobPhase::kQueued) ++gauges.jobs_suspended;
  }
  gauges.jobs = phases_;
  for (const auto& [phase, count] : ended_->Count()) gauges.jobs[phase] += count;
  for (const auto& [name, entry] : nodes_) {
    if (entry.view == nullptr) continue;
    const bool is_cordoned = entry.view->mark.has_value();
    ++(is_cordoned              ? gauges.nodes_cordoned
       : !entry.view->connected ? gauges.nodes_disconnected
       : entry.view->suspect    ? gauges.nodes_suspect
                                : gauges.nodes_ready);
    if (!entry.view->connected) continue;
    const std::vector<int32_t>& failed = entry.view->failed_devices;
    for (size_t i = 0; i < entry.view->device_jobs.size(); ++i) {
      const bool is_failed =
          std::binary_search(failed.begin(), failed.end(), static_cast<int32_t>(i));
      ++(entry.view->device_jobs[i] != JobId{} ? gauges.devices_used
         : is_failed                           ? gauges.devices_failed
         : is_cordoned                         ? gauges.devices_cordoned
         : entry.view->reserve.has_value()     ? gauges.devices_reserved
                                               : gauges.devices_free);
    }
    if (entry.view->check != nullptr) {
      for (const job::DeviceCheck& check : entry.view->check->devices)
        ++gauges.checks[check.verdict];
    }
    for (const int32_t degrees : entry.device_temperatures)
      gauges.warmest_celsius = std::max(gauges.warmest_celsius, degrees);
  }
}

}  // namespace phalanx::coordinator
