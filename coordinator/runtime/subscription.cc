#include "coordinator/runtime/subscription.h"

#include <iterator>
#include <utility>

namespace phalanx::coordinator {
namespace {

// What an event holds in memory.
size_t BytesOf(const JobEvent& event) {
  return sizeof(JobEvent) + event.type.size() + event.message.size();
}

}  // namespace

void EventWindow::Add(JobEvent event) {
  bytes_ += BytesOf(event);
  events_.push_back(std::move(event));
  while (events_.size() > 1 && (events_.size() > events_max_ || bytes_ > bytes_max_)) DropOldest();
}

void EventWindow::Shrink() {
  while (events_.size() > 1) DropOldest();
}

bool EventWindow::ShedOldest() {
  if (events_.size() <= 1) return false;
  DropOldest();
  return true;
}

void EventWindow::DropOldest() {
  bytes_ -= BytesOf(events_.front());
  events_.pop_front();
}

std::vector<JobEvent> EventWindow::After(int64_t number) const {
  std::vector<JobEvent> events;
  for (const JobEvent& event : events_) {
    if (event.number > number) events.push_back(event);
  }
  return events;
}

std::vector<JobEvent> EventWindow::TakeAll() {
  bytes_ = 0;
  std::vector<JobEvent> events(std::make_move_iterator(events_.begin()),
                               std::make_move_iterator(events_.end()));
  events_.clear();
  return events;
}

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
  update.events = events_.TakeAll();
  steps_.clear();
  CountLocked();
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
  FitLocked();
}

void Subscription::Add(const JobEvent& event) {
  MutexLock lock(&mu_);
  events_.Add(event);
  FitLocked();
}

Subscription::~Subscription() {
  MutexLock lock(&mu_);
  if (total_ != nullptr) *total_ -= counted_;
}

void Subscription::CountIn(std::shared_ptr<std::atomic<int64_t>> total) {
  MutexLock lock(&mu_);
  total_ = std::move(total);
  CountLocked();
}

void Subscription::CountLocked() {
  if (total_ == nullptr) return;
  const auto now = static_cast<int64_t>(events_.bytes() + steps_.size() * sizeof(StepReport));
  *total_ += now - std::exchange(counted_, now);
}

void Subscription::FitLocked() {
  CountLocked();
  if (total_ == nullptr || *total_ <= kPendingBytesMax) return;
  events_.Shrink();
  while (steps_.size() > 1) steps_.pop_front();
  CountLocked();
}

void Subscription::Add(std::shared_ptr<const EvaluationReport> evaluation) {
  MutexLock lock(&mu_);
  evaluation_ = std::move(evaluation);
}

}  // namespace phalanx::coordinator
