#include "worker/comm/releases.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace phalanx::comm {

Releases& Releases::OfProcess() {
  static auto* releases = new Releases;  // outlives every thread
  return *releases;
}

void Releases::Begin() {
  MutexLock lock(&mutex_);
  if (count_++ == 0) {
    begun_ = 0;
    since_ = absl::Now();
    held_ = freed_ = absl::ZeroDuration();
  }
  ++begun_;
  ++stopping_;
}

std::string Releases::End() {
  MutexLock lock(&mutex_);
  changed_.SignalAll();
  if (--count_ > 0) return "";
  return absl::StrCat(begun_, " communicators given back within ",
                      absl::FormatDuration(absl::Now() - since_), ", of which ",
                      absl::FormatDuration(freed_), " to free them, held back for ",
                      absl::FormatDuration(held_));
}

bool Releases::MayFree(Deadline give_up) const {
  if (awaited_ > 0) return true;
  if (freeing_ > 0) return false;
  return turns_ > 0 || (holders_ == 0 && std::chrono::steady_clock::now() >= give_up);
}

Releases::Turn::Turn(Releases& releases) : releases_(releases) {
  const Deadline give_up = DeadlineIn(releases.options_.held_max);
  MutexLock lock(&releases.mutex_);
  --releases.stopping_;
  ++releases.waiting_;
  releases.changed_.SignalAll();
  while (!releases.MayFree(give_up)) {
    // Whoever lives on, or frees, says when that is over.
    if (releases.holders_ == 0 && releases.freeing_ == 0) {
      releases.changed_.WaitUntil(&releases.mutex_, give_up);
    } else {
      releases.changed_.Wait(&releases.mutex_);
    }
  }
  if (releases.turns_ > 0) --releases.turns_;
  --releases.waiting_;
  ++releases.freeing_;
  const absl::Time now = absl::Now();
  releases.held_ = std::max(releases.held_, now - begin_);
  begin_ = now;
}

Releases::Turn::~Turn() {
  MutexLock lock(&releases_.mutex_);
  --releases_.freeing_;
  releases_.freed_ += absl::Now() - begin_;
  releases_.changed_.SignalAll();
}

bool Releases::AwaitNone(const int64_t& left, Deadline deadline) {
  bool expired = false;
  while (left > 0 && !expired) expired = changed_.WaitUntil(&mutex_, deadline);
  return left == 0;
}

bool Releases::AwaitStops(Deadline deadline) {
  MutexLock lock(&mutex_);
  return AwaitNone(stopping_, deadline);
}

bool Releases::AwaitFreed(Deadline deadline) {
  MutexLock lock(&mutex_);
  return AwaitNone(count_, deadline);
}

bool Releases::FreeAll(Deadline deadline) {
  MutexLock lock(&mutex_);
  ++awaited_;
  changed_.SignalAll();
  const bool freed = AwaitNone(count_, deadline);
  --awaited_;
  return freed;
}

PeerKernels::PeerKernels(Releases& releases) : releases_(releases) {
  const Deadline give_up = DeadlineIn(releases.options_.turn_max);
  MutexLock lock(&releases.mutex_);
  ++releases.holders_;  // nobody begins any more
  bool expired = false;
  while ((releases.freeing_ > 0 || releases.turns_ > 0) && !expired)
    expired = releases.changed_.WaitUntil(&releases.mutex_, give_up);
}

PeerKernels::~PeerKernels() {
  MutexLock lock(&releases_.mutex_);
  --releases_.holders_;
  releases_.changed_.SignalAll();
}

bool PeerKernels::MayFree() {
  MutexLock lock(&releases_.mutex_);
  return releases_.waiting_ > 0 && releases_.holders_ == 1;
}

int64_t PeerKernels::Free(absl::Duration budget) {
  const Deadline spent = DeadlineIn(budget);
  MutexLock lock(&releases_.mutex_);
  int64_t given = 0;
  do {
    if (releases_.waiting_ == 0 || releases_.holders_ > 1) return given;
    const Deadline give_up = DeadlineIn(releases_.options_.turn_max);
    releases_.turns_ = 1;
    releases_.changed_.SignalAll();
    bool expired = false;
    while ((releases_.turns_ > 0 || releases_.freeing_ > 0) && !expired)
      expired = releases_.changed_.WaitUntil(&releases_.mutex_, give_up);
    releases_.turns_ = 0;
    if (expired) return given;  // NCCL hangs, which whoever frees watches
    ++given;
  } while (std::chrono::steady_clock::now() < spent);
  return given;
}

}  // namespace phalanx::comm
