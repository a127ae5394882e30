#include "coordinator/runtime/board.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace phalanx::coordinator {

std::optional<Subscription::Update> Subscription::Take() {
  MutexLock lock(&mu_);
  if (jobs_.empty() && steps_.empty() && events_.empty() && evaluation_ == nullptr)
    return std::nullopt;
  if (!jobs_.empty()) {
    last_ = std::move(jobs_.front());
    jobs_.pop_front();
  }
  if (last_ == nullptr) return std::nullopt;
  Update update{.job = last_};
  // What belongs to the last phase must not be lost behind it: the stream ends with a terminal one.
  update.steps.assign(steps_.begin(), steps_.end());
  update.events.assign(std::make_move_iterator(events_.begin()),
                       std::make_move_iterator(events_.end()));
  steps_.clear();
  events_.clear();
  update.evaluation = std::exchange(evaluation_, nullptr);
  return update;
}

void Subscription::Add(JobViewPtr job) {
  MutexLock lock(&mu_);
  if (!jobs_.empty() && jobs_.back()->phase == job->phase) {
    jobs_.back() = std::move(job);
  } else {
    jobs_.push_back(std::move(job));
  }
}

void Subscription::Add(const StepReport& step) {
  MutexLock lock(&mu_);
  steps_.push_back(step);
  if (steps_.size() > kPendingStepsMax) steps_.pop_front();
}

void Subscription::Add(const JobEvent& event) {
  MutexLock lock(&mu_);
  events_.push_back(event);
  if (events_.size() > kPendingEventsMax) events_.pop_front();
}

void Subscription::Add(std::shared_ptr<const EvaluationReport> evaluation) {
  MutexLock lock(&mu_);
  evaluation_ = std::move(evaluation);
}

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
  }
  for (const auto& subscription : subscriptions) subscription->Add(action.step);
}

void Board::Publish(PublishEvent action) {
  std::vector<std::shared_ptr<Subscription>> subscriptions;
  {
    MutexLock lock(&mu_);
    Entry& entry = jobs_[action.job];
    entry.events.push_back(action.event);
    if (entry.events.size() > kEventsMax) entry.events.pop_front();
    subscriptions = entry.subscriptions;
  }
  for (const auto& subscription : subscriptions) subscription->Add(action.event);
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

void Board::Publish(const PublishNode& action) {
  MutexLock lock(&mu_);
  NodeEntry& entry = nodes_[action.node->name];
  entry.view = action.node;
  entry.last_heartbeat = std::max(entry.last_heartbeat, action.node->last_heartbeat);
}

void Board::Publish(const PublishHeartbeat& action) {
  MutexLock lock(&mu_);
  nodes_[action.node].last_heartbeat = action.time;
}

void Board::Publish(const RetractNode& action) {
  MutexLock lock(&mu_);
  nodes_.erase(action.node);
}

absl::StatusOr<JobViewPtr> Board::Find(const std::string& job) const {
  MutexLock lock(&mu_);
  absl::string_view number = job;
  absl::ConsumePrefix(&number, "job-");
  JobId id;
  auto found = jobs_.end();
  if (absl::SimpleAtoi(number, &id.value)) found = jobs_.find(id);
  if (found == jobs_.end()) {
    const auto named = newest_.find(job);
    if (named != newest_.end()) found = jobs_.find(named->second);
  }
  if (found == jobs_.end() || found->second.job == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no job \"", job.substr(0, 128), "\""));
  }
  return found->second.job;
}

std::vector<JobViewPtr> Board::List(JobId before, size_t count) const {
  MutexLock lock(&mu_);
  std::vector<JobViewPtr> jobs;
  for (auto it = jobs_.lower_bound(before); it != jobs_.begin() && jobs.size() < count;) {
    --it;
    if (it->second.job != nullptr) jobs.push_back(it->second.job);
  }
  return jobs;
}

std::vector<JobEvent> Board::Events(JobId job, int64_t after_number) const {
  MutexLock lock(&mu_);
  std::vector<JobEvent> events;
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return events;
  for (const JobEvent& event : found->second.events) {
    if (event.number > after_number) events.push_back(event);
  }
  return events;
}

std::vector<NodeView> Board::Nodes() const {
  MutexLock lock(&mu_);
  std::vector<NodeView> nodes;
  for (const auto& [name, entry] : nodes_) {
    if (entry.view == nullptr) continue;
    nodes.push_back(*entry.view);
    nodes.back().last_heartbeat = entry.last_heartbeat;
  }
  return nodes;
}

void Board::Subscribe(JobId job, std::shared_ptr<Subscription> subscription) {
  {
    MutexLock lock(&mu_);
    Entry& entry = jobs_[job];
    // Under the lock, so that no later view overtakes this one.
    if (entry.job != nullptr) subscription->Add(entry.job);
    if (entry.evaluation != nullptr) subscription->Add(entry.evaluation);
    entry.subscriptions.push_back(subscription);
  }
  subscription->wake_();
}

void Board::Unsubscribe(JobId job, const Subscription* subscription) {
  MutexLock lock(&mu_);
  std::erase_if(jobs_[job].subscriptions,
                [subscription](const auto& entry) { return entry.get() == subscription; });
}

void Board::Count(Gauges& gauges) const {
  MutexLock lock(&mu_);
  gauges.jobs = phases_;
  for (const auto& [name, entry] : nodes_) {
    if (entry.view == nullptr) continue;
    if (!entry.view->connected) {
      ++gauges.nodes_disconnected;
      continue;
    }
    ++gauges.nodes_ready;
    for (JobId holder : entry.view->device_jobs) {
      ++(holder == JobId{} ? gauges.devices_free : gauges.devices_used);
    }
  }
}

}  // namespace phalanx::coordinator
