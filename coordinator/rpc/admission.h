// coordinator/rpc/admission.h: whether a caller may make one more call, by how often they call,
// over how many connections, with how many streams, and how much is planned for them.
//
// A worker has bounds of its own, far above what one needs, and none on the messages of a session
// that is open: no limit of others can cost a job its nodes, and no heartbeat is ever refused.
// Callers in plaintext are not counted, as nobody knows who they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/call_rate.h"
#include "coordinator/rpc/caller_connections.h"
#include "coordinator/rpc/caller_stores.h"
#include "coordinator/rpc/unread_requests.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// Of one worker's identity.
struct WorkerBounds {
  size_t connections_max = 64;  // open; 0: any number
  size_t sessions_max = 16;     // open: one, and those whose end was not noticed yet
  size_t uploads_max = 64;      // open: its daemon sends 32 at a time
  CallRateOptions sessions = {.calls_per_second = 1, .calls_at_once = 60};
  CallRateOptions uploads = {.calls_per_second = 20, .calls_at_once = 400};
  // Of all its uploads; kUploadSecondsAtOnce times as much at once. 0: no limit.
  int64_t upload_bytes_per_second = int64_t{32} << 20;
  static constexpr int64_t kUploadSecondsAtOnce = 8;
};
enum class WorkerStream : uint8_t { kSession, kUpload };

// Thread-safe.
class Admission {
 public:
  // A third of those that may be made and wait (JobServiceImpl).
  static constexpr size_t kPlansMax = 6;
  // Whether the connection of that peer, as gRPC names it, is open.
  using IsOpen = std::function<bool(const std::string& peer)>;
  // `connections_max`: of one person; 0: any number. `plans_max`: also of one person. `unread` and
  // `connections` outlive it; the latter is told of what came whole; null: nobody is.
  Admission(CallRateOptions rate, size_t connections_max, WorkerBounds workers,
            UnreadRequests& unread, IsOpen is_open, size_t plans_max = kPlansMax,
            CallerConnections* connections = nullptr)
      : rate_(rate),
        connections_max_(connections_max),
        plans_max_(plans_max),
        workers_(workers),
        unread_(unread),
        connections_(connections),
        is_open_(std::move(is_open)),
        session_rate_(workers.sessions),
        upload_rate_(workers.uploads),
        upload_bytes_({.per_second = static_cast<double>(workers.upload_bytes_per_second),
                       .size = static_cast<double>(WorkerBounds::kUploadSecondsAtOnce *
                                                   workers.upload_bytes_per_second)}) {}

  // From now on every call and stream is refused with `status`, which is not OK.
  void Stop(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);

  // A person's call over a connection; its request, of so many bytes, is there. Errors:
  // ResourceExhausted.
  absl::Status Take(const Caller& caller, const std::string& peer, size_t request_bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // One over a connection that somebody else counts; of it Stop says nothing.
  absl::Status Take(const Caller& caller) { return rate_.Take(caller); }

  // A stream of a worker's begins. Close follows if it is OK. Errors: ResourceExhausted.
  absl::Status Open(WorkerStream stream, const Caller& caller, const std::string& peer)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Close(WorkerStream stream, const Caller& caller) ABSL_LOCKS_EXCLUDED(mu_);
  // A message of a worker's stream, over the connection of that peer, was read.
  void MessageCame(const std::string& peer, size_t bytes) {
    if (connections_ != nullptr) connections_->MessageCame(peer, bytes);
  }
  // `bytes` of an upload of a worker's were read. For how long no more of its uploads are: nothing
  // is lost, since what was not read waits at the worker, where its files are.
  absl::Duration ReadOfUpload(const Caller& caller, int64_t bytes) {
    return upload_bytes_.Spend(caller, static_cast<double>(bytes));
  }
  // A plan that the call of a person's asks for is made, or waits to be. EndPlan follows if it is
  // OK. Errors: ResourceExhausted.
  absl::Status BeginPlan(const Caller& caller) ABSL_LOCKS_EXCLUDED(mu_);
  void EndPlan(const Caller& caller) ABSL_LOCKS_EXCLUDED(mu_);
  // A worker's call of one request, whose rate somebody else counts. Errors: ResourceExhausted.
  absl::Status TakeOfWorker(const Caller& caller, const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // `connections_max`: 0: any number.
  absl::Status CountConnection(const Caller& caller, size_t connections_max,
                               const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Stopped() const ABSL_LOCKS_EXCLUDED(mu_);

  CallRate rate_;
  const size_t connections_max_, plans_max_;
  const WorkerBounds workers_;
  UnreadRequests& unread_;
  CallerConnections* const connections_;
  const IsOpen is_open_;
  CallRate session_rate_, upload_rate_;
  CallerStores upload_bytes_;
  mutable Mutex mu_;
  absl::Status stopped_ ABSL_GUARDED_BY(mu_);  // OK: it is not
  // By KeyOf: peers whose connections were open when they were looked at last.
  std::map<std::string, std::set<std::string>> peers_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> plans_ ABSL_GUARDED_BY(mu_);  // by KeyOf
  // By KeyOf: how many are open.
  std::map<WorkerStream, std::map<std::string, size_t>> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace phalanx::coordinator
