// coordinator/rpc/unread_requests.h: calls that have begun, and whose request has not come whole.
//
// gRPC 1.51 shows a call of one request to its handler when the request is there, and never one
// whose request is too large, is cut off or does not come: what it sees of such a call is that it
// began (Gatekeeper). So of each caller it is counted how many have begun and are not there yet.
// Which of them it is that comes is not known: it stands for the one that waits longest.
//
// Whoever has too many is refused in words, without RetryInfo: of an AuthMetadataProcessor
// gRPC 1.51 sends the code and the message of its status alone, neither its details nor response
// metadata.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/rpc/access.h"
#include "core/base/mutex.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {

struct UnreadBounds {
  size_t of_caller_max = 1024;                    // those that wait, and those that were late
  absl::Duration patience = absl::Seconds(30);    // past it a request is late
  absl::Duration remembered = absl::Minutes(10);  // those that were late
};

// Thread-safe. Callers in plaintext are not counted, nor strangers, whose calls JoinRequests sees.
class UnreadRequests {
 public:
  // Told, under no lock, how many more requests of the caller's are late, and why that is.
  using Late = std::function<void(const Caller& caller, int64_t count, const absl::Status& why)>;
  UnreadRequests(UnreadBounds bounds, Late late) : bounds_(bounds), late_(std::move(late)) {}

  // A call begins. Errors: ResourceExhausted, and it is not counted.
  absl::Status Begin(const Caller& caller, SteadyTime now = SteadyNow()) ABSL_LOCKS_EXCLUDED(mu_);
  // The request of one has come.
  void End(const Caller& caller) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the request of a call of theirs has not come, or was late (UnreadBounds::remembered).
  bool Has(const Caller& caller) const ABSL_LOCKS_EXCLUDED(mu_);
  // Tells of those that are late. Begin does so too, once a second.
  void Look(SteadyTime now = SteadyNow()) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Calls {
    Identity caller;
    std::deque<SteadyTime> begun;  // that wait, oldest first
    std::deque<SteadyTime> late;   // when each was found to be
  };

  const UnreadBounds bounds_;
  const Late late_;
  mutable Mutex mu_;
  std::map<std::string, Calls> callers_ ABSL_GUARDED_BY(mu_);  // by KeyOf; of those with a call
  SteadyTime next_look_ ABSL_GUARDED_BY(mu_);
};

}  // namespace phalanx::coordinator
