// coordinator/rpc/session_registry.h: the open sessions, and the driver's way to them.
#pragma once

#include <grpcpp/security/auth_context.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/rpc/log_relay.h"
#include "coordinator/runtime/driver.h"
#include "coordinator/runtime/work_pool.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "phalanx/v1/worker_service.pb.h"

namespace phalanx::coordinator {

// A message that becomes protobuf when it is its turn to be written: what large commands to many
// nodes share stays shared until then, and the driver's thread encodes nothing.
struct Outgoing {
  std::function<void(v1::OpenSessionResponse& out)> encode;
  size_t bytes = 0;  // of the message, about
};

// One worker's stream, as the registry sees it. Thread-safe.
class SessionStream {
 public:
  virtual ~SessionStream() = default;
  // Queues `message`. A worker that leaves too many unread is closed, not buffered.
  virtual void Send(Outgoing message) = 0;
  virtual void Close(const absl::Status& status) = 0;
  // Its node is let in; the welcome is sent next.
  virtual void Welcomed() {}
  // Whoever opened it; nullptr: not known.
  virtual const grpc::AuthContext* peer() const { return nullptr; }
};

struct SessionOptions {
  uint64_t store = 0;  // identity of the store; 0: it has none
  absl::Duration heartbeat_interval = absl::Seconds(3);
  absl::Duration heartbeat_timeout = absl::Seconds(15);
  absl::Duration hello_timeout = absl::Seconds(5);
  size_t sessions_max = 16'384;
};

// Thread-safe.
class SessionRegistry final : public SessionSink {
 public:
  SessionRegistry(SessionOptions options, Incarnation incarnation, LogRelay& logs)
      : options_(options),
        incarnation_(incarnation),
        logs_(logs),
        encoders_("encoder", WorkPool::Priority::kServing, kEncoderThreads, options.sessions_max) {}

  // Errors: ResourceExhausted for too many sessions, Unavailable after CloseAll.
  absl::StatusOr<SessionId> Add(std::shared_ptr<SessionStream> stream) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes every session and refuses new ones.
  void CloseAll(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the sessions of such peers.
  void CloseOf(const std::function<bool(const grpc::AuthContext& peer)>& such,
               const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);
  const SessionOptions& options() const { return options_; }
  // For streams, each of which has one message to encode at a time.
  WorkPool& encoders() { return encoders_; }

  void Welcome(SessionId session) override;
  void Send(SessionId session, uint64_t command_number, const Command& command) override;
  void Close(SessionId session, const absl::Status& status) override;
  void EndLogs(const std::string& fetch_id, const std::string& reason) override;

 private:
  static constexpr int32_t kEncoderThreads = 2;

  std::vector<std::shared_ptr<SessionStream>> All() const ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<SessionStream> Find(SessionId session) const ABSL_LOCKS_EXCLUDED(mu_);

  const SessionOptions options_;
  const Incarnation incarnation_;
  LogRelay& logs_;
  mutable Mutex mu_;
  std::map<SessionId, std::shared_ptr<SessionStream>> sessions_ ABSL_GUARDED_BY(mu_);
  uint64_t last_session_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  WorkPool encoders_;  // last: its threads end before what they use
};

}  // namespace phalanx::coordinator
