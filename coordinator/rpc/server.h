// coordinator/rpc/server.h: the coordinator as one object: store, driver, services, in the order in
// which they start and stop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/net/connection_gate.h"
#include "coordinator/rpc/admission.h"
#include "coordinator/rpc/call_rate.h"
#include "coordinator/rpc/caller_connections.h"
#include "coordinator/rpc/ending.h"
#include "coordinator/rpc/join_service.h"
#include "coordinator/rpc/session_registry.h"
#include "coordinator/runtime/board.h"
#include "coordinator/runtime/driver.h"
#include "coordinator/store/backend.h"
#include "core/base/health.h"
#include "core/base/time.h"
#include "transport/handshakes.h"
#include "transport/server_tls.h"
#include "transport/tls.h"

namespace phalanx::coordinator {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;             // 0: any free one
  int listening = -1;       // a socket that listens already, which stays open; -1: host and port
  DriverOptions driver;     // its plan is set by the server unless given
  SessionOptions sessions;  // its store is set by the server
  size_t watchers_max = 4096;
  size_t log_calls_max = 256;
  // The same of one person, where there are certificates.
  size_t person_watchers_max = 512;
  size_t person_log_calls_max = 32;
  size_t person_connections_max = 256;  // 0: any number
  size_t person_plans_max = Admission::kPlansMax;
  // Bytes of requests that have not come whole (coordinator/rpc/caller_connections.h); of all
  // people together they are half of buffer_bytes_max.
  int64_t person_unread_bytes_max = ConnectionBounds().person_bytes_max;
  // Lines of the audit about what was refused to one person, one node, or all strangers, and about
  // handshakes that failed.
  CallRateOptions refusals = {.calls_per_second = 20, .calls_at_once = 200};
  // Messages to watchers and to log calls that are being written: of a client that does not read,
  // one stays. A call whose message has no room ends.
  int64_t watch_bytes_max = 256 << 20;
  int64_t log_bytes_max = 256 << 20;
  CallRateOptions rate;
  WorkerBounds workers;
  UnreadBounds unread;
  bool reflection = false;
  transport::TlsFiles tls;  // none: plaintext, and everybody may everything
  // PEM file of certificates that were taken back (transport/revocation.h), for `tls` alone; empty:
  // there are none.
  std::string revoked;
  // Files of this process whose expiry the metrics tell.
  transport::CertificateFiles certificates;
  // For `tls` alone.
  JoinOptions join;
  // File of driver.machine.quotas, looked at again for others (coordinator/runtime/quota_file.h);
  // empty: they stay.
  std::string quotas;
  absl::Duration quotas_refresh_interval = absl::Seconds(10);
  // What somebody should mend, one line each: a file in whose place something is that does not
  // hold.
  std::function<void(const std::string& line)> warn = [](const std::string&) {};
  AuditLog audit = [](const std::string&) {};
  AuditKeeper keep_audit;  // none: no line is kept
  // What has become of lines that keep_audit took, for the metrics. Waits for nobody.
  std::function<AuditCounts()> audit_counts = [] { return AuditCounts(); };
  GateOptions gate;  // its silence_min is at least two heartbeat intervals
  // A call more on one connection waits on its client's side.
  int streams_per_connection_max = 1024;
  // A connection that has not said by then how it goes on, in TLS or HTTP/2, is closed.
  absl::Duration handshake_timeout = absl::Seconds(10);
  // Every connection is asked so often whether its other end lives, and closed where that does not
  // say so in time, also in the midst of a message.
  absl::Duration ping_interval = absl::Seconds(20);
  absl::Duration ping_timeout = absl::Seconds(10);
  // Bytes that gRPC may hold for messages under way, over all connections.
  size_t buffer_bytes_max = 1 << 30;
};

// Thread-safe.
class Server {
 public:
  // Replays the store and serves. Health is SERVING from then on, for "" and for each service.
  // Errors: as Driver::Start, CheckTlsFiles, CheckSignerFiles, Revocations::Open and
  // JoinTokens::Open; Unavailable if the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options,
                                                       std::unique_ptr<Backend> backend);
  // As Shutdown with no grace.
  virtual ~Server() = default;

  // Health off; sessions and streams end with UNAVAILABLE, callers who wait are answered so, and so
  // are calls that come until their connection is closed; what was appended is committed. Answers
  // have `grace` to reach their callers, then connections are closed, a second at most
  // (OpenPeers::EndAll). Idempotent.
  virtual void Shutdown(absl::Duration grace) = 0;

  virtual int port() const = 0;
  // OK: accepting work. Not after Shutdown has begun, nor while the store fails.
  virtual absl::Status ready() const = 0;
  // The same in parts: "serving", "store" and "driver". Waits for nobody but short locks.
  virtual Health readiness() const = 0;
  // Whether it is of any use to wait for this process. Waits for nobody.
  virtual Health liveness() const = 0;
  virtual std::string MetricsText() const = 0;
  // What the coordinator has told. Of the server.
  virtual const Board& board() const = 0;
  // As Driver::AskQueue.
  virtual void AskQueue(std::vector<JobId> jobs, QueueCallback callback) = 0;
  // Of whoever asks for a page of the HTTP port over TLS: whether they may have it; refusals are
  // told as those of other calls. Errors: Unauthenticated, PermissionDenied, ResourceExhausted.
  virtual absl::Status AdmitToPage(const transport::ShownCertificate& who) = 0;
  // A request to the HTTP port did not come whole: counted, and told as a refusal of whoever showed
  // the certificate, or of a stranger.
  virtual void NoteUnreadPage(const transport::ShownCertificate& who, const absl::Status& why) = 0;
  // Whether a certificate that was let in still holds.
  virtual bool Holds(const transport::ShownCertificate& who) const = 0;
  // A handshake of TLS of a port, "grpc" or "http", came to nothing: counted, and told in the
  // audit.
  virtual void NoteFailedHandshake(absl::string_view port,
                                   const transport::FailedHandshake& failed) = 0;
  // For the metrics: an entry of an ended job was found damaged.
  virtual void CountDamagedEntry() = 0;
};

}  // namespace phalanx::coordinator
