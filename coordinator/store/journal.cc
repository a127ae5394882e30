#include "coordinator/store/journal.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace phalanx::coordinator {

Journal::Journal(std::unique_ptr<Backend> backend, CommitListener listener)
    : backend_(std::move(backend)), listener_(std::move(listener)), thread_([this] { Run(); }) {}

Journal::~Journal() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.Signal();
  }
  thread_.join();
}

void Journal::Append(StoredRecord record) {
  MutexLock lock(&mu_);
  appended_.push_back(std::move(record));
  if (appended_.size() == 1) changed_.Signal();
}

size_t Journal::pending() const {
  MutexLock lock(&mu_);
  return appended_.size();
}

void Journal::Run() {
  pthread_setname_np(pthread_self(), "journal");
  bool failed = false;
  while (true) {
    std::vector<StoredRecord> batch;
    {
      MutexLock lock(&mu_);
      while (appended_.empty() && !stopping_) changed_.Wait(&mu_);
      if (appended_.empty()) return;
      batch = std::exchange(appended_, {});
    }
    if (failed) continue;  // read and dropped: nobody was told of them
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = backend_->Commit(batch);
    failed = !status.ok();
    listener_({.status = status,
               .last = batch.back().number,
               .records = batch.size(),
               .duration = absl::FromChrono(std::chrono::steady_clock::now() - start)});
  }
}

}  // namespace phalanx::coordinator
