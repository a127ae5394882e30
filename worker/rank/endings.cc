#include "worker/rank/endings.h"

#include <utility>

namespace phalanx::rank {

Endings::~Endings() {
  std::thread thread;
  {
    const MutexLock lock(&mu_);
    ending_ = true;
    thread = std::move(thread_);
  }
  changed_.SignalAll();
  if (thread.joinable()) thread.join();
}

void Endings::Add(std::shared_ptr<void> what) {
  {
    const MutexLock lock(&mu_);
    waiting_.push_back(std::move(what));
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  changed_.SignalAll();
}

bool Endings::AwaitAll(comm::Deadline deadline) {
  const MutexLock lock(&mu_);
  for (bool expired = false; busy_ || !waiting_.empty();) {
    if (expired) return false;
    expired = changed_.WaitUntil(&mu_, deadline);
  }
  return true;
}

void Endings::Run() {
  while (true) {
    std::shared_ptr<void> what;
    {
      const MutexLock lock(&mu_);
      busy_ = false;
      changed_.SignalAll();
      while (waiting_.empty() && !ending_) changed_.Wait(&mu_);
      if (waiting_.empty()) return;
      busy_ = true;
      what = std::move(waiting_.front());
      waiting_.pop_front();
    }
    what = nullptr;
  }
}

}  // namespace phalanx::rank
