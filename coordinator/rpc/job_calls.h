// coordinator/rpc/job_calls.h: the streaming calls of JobService.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/rpc/log_relay.h"
#include "coordinator/runtime/board.h"
#include "coordinator/runtime/driver.h"
#include "core/base/mutex.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::coordinator {

// A stream that the server may have to end.
class OpenCall {
 public:
  virtual ~OpenCall() = default;
  virtual void Close(const absl::Status& status) = 0;
  virtual const grpc::AuthContext& peer() const = 0;
};

// The open streams of a kind, bounded. Thread-safe.
class OpenCalls {
 public:
  // What happens to one call more than there may be.
  enum class Full : uint8_t { kRefuse, kCloseOldest };
  // `person_max`: of one person; callers in plaintext are not counted.
  OpenCalls(size_t calls_max, size_t person_max, int64_t bytes_max, Full full)
      : calls_max_(calls_max), person_max_(person_max), bytes_max_(bytes_max), full_(full) {}
  // Errors: ResourceExhausted for too many (kRefuse), or too many of one person; Unavailable after
  // CloseAll.
  absl::Status Add(std::shared_ptr<OpenCall> call) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const OpenCall* call) ABSL_LOCKS_EXCLUDED(mu_);
  // Before a call writes a message of so many bytes, and once it is written. Errors:
  // ResourceExhausted, and none are begun, if all calls together have too many under way.
  absl::Status BeginWrite(int64_t bytes);
  void EndWrite(int64_t bytes) { bytes_ -= bytes; }
  void CloseAll(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the calls of such peers.
  void CloseOf(const std::function<bool(const grpc::AuthContext& peer)>& such,
               const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::vector<std::shared_ptr<OpenCall>> All() const ABSL_LOCKS_EXCLUDED(mu_);

  using Calls = std::list<std::shared_ptr<OpenCall>>;

  // Takes it out, and what is counted of it.
  std::shared_ptr<OpenCall> TakeLocked(Calls::iterator call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t calls_max_;
  const size_t person_max_;
  const int64_t bytes_max_;
  const Full full_;
  std::atomic<int64_t> bytes_ = 0;  // under way
  mutable Mutex mu_;
  Calls calls_ ABSL_GUARDED_BY(mu_);  // oldest first
  std::map<const OpenCall*, Calls::iterator> places_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> persons_ ABSL_GUARDED_BY(mu_);  // how many calls each has
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
};

// Who calls, and whether they may go on; else the call ends with that.
struct Peer {
  std::shared_ptr<const grpc::AuthContext> who;
  absl::Status admitted;
  Metrics& metrics;  // where its end is counted
};

// Each returns a reactor that owns itself until its OnDone.
grpc::ServerWriteReactor<v1::WatchJobResponse>* MakeWatchCall(Board& board, OpenCalls& calls,
                                                              Peer peer,
                                                              const v1::WatchJobRequest& request);
grpc::ServerWriteReactor<v1::GetLogsResponse>* MakeLogsCall(Board& board, Driver& driver,
                                                            LogRelay& logs, OpenCalls& calls,
                                                            Peer peer,
                                                            const v1::GetLogsRequest& request);

}  // namespace phalanx::coordinator
