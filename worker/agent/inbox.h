// worker/agent/inbox.h: where other threads leave events for the agent's thread.
#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "core/posix/unique_fd.h"
#include "worker/agent/machine/events.h"

namespace phalanx::agent {

// Unbounded by itself: what comes in is bounded by its sources (the stream's flow control, one
// event a piece of work under way). Thread-safe.
class Inbox {
 public:
  Inbox();

  void Post(Event event);
  std::vector<Event> TakeAll();
  // Readable while there is something to take.
  int fd() const { return wake_.get(); }

 private:
  const UniqueFd wake_;
  Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace phalanx::agent
