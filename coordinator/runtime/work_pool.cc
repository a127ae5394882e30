#include "coordinator/runtime/work_pool.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

constexpr int kNiceBehind = 10;

absl::Status Stopped() { return absl::UnavailableError("the coordinator is stopping"); }

}  // namespace

WorkPool::WorkPool(const std::string& name, Priority priority, int32_t threads, size_t waiting_max)
    : name_(name), priority_(priority), waiting_max_(waiting_max) {
  for (int32_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

void WorkPool::Add(Work work, std::string owner) {
  absl::Status refusal;
  {
    MutexLock lock(&mu_);
    if (stopping_) {
      refusal = Stopped();
    } else if (IsFull(owner)) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat(waiting_.size(), " requests wait for the ", name_, "; try again later"));
    } else {
      waiting_.push_back({std::move(work), std::move(owner)});
      changed_.Signal();
      return;
    }
  }
  work(refusal);
}

void WorkPool::Stop() {
  std::deque<Waiting> refused;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    refused = std::exchange(waiting_, {});
    changed_.SignalAll();
  }
  for (const Waiting& waiting : refused) waiting.work(Stopped());
  threads_.clear();
}

bool WorkPool::IsFull(const std::string& owner) const {
  if (waiting_.size() >= waiting_max_) return true;
  if (owner.empty()) return false;
  const auto same = [&owner](const Waiting& waiting) { return waiting.owner == owner; };
  const auto count = std::count_if(waiting_.begin(), waiting_.end(), same);
  return static_cast<size_t>(count) >= (waiting_max_ + 2) / 3;
}

std::deque<WorkPool::Waiting>::iterator WorkPool::Next() {
  auto next = waiting_.begin();
  while (next != waiting_.end() && busy_.contains(next->owner)) ++next;
  return next;
}

void WorkPool::Run() {
  pthread_setname_np(pthread_self(), name_.c_str());
  // Of this thread alone; a refusal leaves it as it was.
  if (priority_ == Priority::kBehind) {
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNiceBehind);
  }
  while (true) {
    Waiting taken;
    {
      MutexLock lock(&mu_);
      auto next = Next();
      while (next == waiting_.end() && !stopping_) {
        changed_.Wait(&mu_);
        next = Next();
      }
      if (stopping_) return;
      taken = std::move(*next);
      waiting_.erase(next);
      if (!taken.owner.empty()) busy_.insert(taken.owner);
    }
    taken.work(absl::OkStatus());
    if (taken.owner.empty()) continue;
    MutexLock lock(&mu_);
    busy_.erase(taken.owner);
    changed_.SignalAll();
  }
}

}  // namespace phalanx::coordinator
