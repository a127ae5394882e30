#include "worker/agent/driver_deadline.h"

#include <chrono>
#include <cstdlib>
#include <iostream>

namespace phalanx::agent {

DriverDeadline::DriverDeadline(absl::Duration limit) : thread_([this, limit] { Run(limit); }) {}

DriverDeadline::~DriverDeadline() {
  {
    const MutexLock lock(&mutex_);
    over_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void DriverDeadline::Run(absl::Duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
  const MutexLock lock(&mutex_);
  while (!over_ && !changed_.WaitUntil(&mutex_, deadline)) continue;
  if (over_) return;
  std::cerr << "phalanx-worker: the driver of the GPUs has not answered for "
            << absl::FormatDuration(limit)
            << "; look at dmesg and nvidia-smi on this machine, which may have to be started "
               "again\n";
  std::_Exit(EXIT_FAILURE);
}

}  // namespace phalanx::agent
