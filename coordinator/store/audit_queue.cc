#include "coordinator/store/audit_queue.h"

#include <pthread.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

AuditQueue::AuditQueue(AuditFile& file, AuditQueueOptions options, std::function<void()> full)
    : file_(file), options_(options), full_(std::move(full)), thread_([this] { Run(); }) {}

AuditQueue::~AuditQueue() {
  MutexLock lock(&mu_);
  stopping_ = true;
  changed_.SignalAll();
}

absl::Status AuditQueue::Put(std::string line, absl::Time now) {
  bool first = false;
  {
    MutexLock lock(&mu_);
    if (waiting_.size() < options_.lines_max) {
      waiting_.push_back({std::move(line), now});
      changed_.SignalAll();
      return absl::OkStatus();
    }
    first = refused_++ == 0;
    refused_at_ = now;
  }
  if (first) full_();
  return absl::ResourceExhaustedError(
      absl::StrCat(options_.lines_max, " lines of the audit wait for the disk"));
}

void AuditQueue::Run() {
  pthread_setname_np(pthread_self(), "audit");
  while (true) {
    std::vector<Line> lines;
    int64_t refused = 0;
    absl::Time refused_at;
    {
      MutexLock lock(&mu_);
      while (waiting_.empty() && !stopping_) changed_.Wait(&mu_);
      if (waiting_.empty()) return;
      std::swap(lines, waiting_);
      std::swap(refused, refused_);
      refused_at = refused_at_;
    }
    for (const Line& line : lines) {
      if (!file_.Append(line.text, line.time).ok()) ++not_written_;
    }
    // One that is lost as well is in the log, as each line that it counts.
    if (refused != 0) {
      static_cast<void>(
          file_.Append(absl::StrCat("audit missing=", refused, " reason=\"the disk was too slow\""),
                       refused_at));
    }
  }
}

}  // namespace phalanx::coordinator
