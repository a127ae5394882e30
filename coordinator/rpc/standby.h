// coordinator/rpc/standby.h: what a coordinator answers that does not lead.
//
// Health is NOT_SERVING. Every call ends UNAVAILABLE with the address of whoever leads: in the
// message, and in an ErrorInfo of domain "phalanx" and reason "STANDBY" as `leader`, empty where
// nobody does. Nothing of a call has been carried out then, so it may be made elsewhere.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/rpc/server.h"
#include "transport/handshakes.h"
#include "transport/server_tls.h"

namespace phalanx::coordinator {

// Thread-safe.
class StandbyServer {
 public:
  // Of `options` it takes what is about callers: listening, tls, join, revoked, audit, gate,
  // warn and driver.log. Errors: as Server::Start.
  // `metrics` outlives it.
  static absl::StatusOr<std::unique_ptr<StandbyServer>> Start(const ServerOptions& options,
                                                              Metrics& metrics);
  // Ends every call.
  virtual ~StandbyServer() = default;
  // The address of whoever leads; empty: nobody does, or nobody knows.
  virtual void SetLeader(const std::string& leader) = 0;
  // As Server's.
  virtual std::string MetricsText() = 0;
  virtual absl::Status AdmitToPage(const transport::ShownCertificate& who) = 0;
  virtual void NoteFailedHandshake(absl::string_view port,
                                   const transport::FailedHandshake& failed) = 0;
};

}  // namespace phalanx::coordinator
