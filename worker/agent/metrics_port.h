// worker/agent/metrics_port.h: the daemon's port for Prometheus and probes: /metrics, /livez,
// /readyz (transport/http/http_server.h).
//
// With a certificate of its own it speaks TLS, and /metrics asks for one of a viewer, or of whoever
// may more, that was not taken back; what is refused is counted and told of in the log
// (worker/agent/port_refusals.h). Without, it is in plaintext, and on loopback.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/health.h"
#include "transport/http/http_server.h"
#include "transport/server_tls.h"
#include "transport/tls.h"

namespace phalanx::agent {

struct MetricsPortOptions {
  std::string address;      // HOST:PORT, port 0: any free one; empty: there is none
  bool plaintext = false;   // asked for by name, which loopback alone has
  transport::TlsFiles tls;  // its own certificate; `ca`: of those who may read. None: plaintext
  // PEM file of certificates of readers that were taken back (transport/revocation.h); empty: none.
  std::string revoked;
};

// Errors: InvalidArgument, with the flag, its value and its rule.
absl::Status CheckMetricsPort(const MetricsPortOptions& options);

// Of whoever asks for /metrics over TLS. As the coordinator has it, of the URIs of a certificate
// just one begins with "phalanx:", and is phalanx:ROLE/NAME; every role but that of nodes may read.
// Errors: Unauthenticated, PermissionDenied.
absl::Status MayReadMetrics(const transport::ShownCertificate& who);

// The functions are called on a thread of the server and must not block. Errors: as
// CheckMetricsPort; Unavailable if the address cannot be listened on.
absl::StatusOr<std::unique_ptr<transport::HttpServer>> OpenMetricsPort(
    const MetricsPortOptions& options, std::function<std::string()> metrics,
    std::function<Health()> live, std::function<Health()> ready);

}  // namespace phalanx::agent
