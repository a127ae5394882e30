// transport/http/http_guard.h: who may see pages where there are certificates.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "transport/server_tls.h"

namespace phalanx::transport {

// Called on the server's thread; must not block.
struct HttpGuard {
  // Of each request, but for /livez, /healthz and /readyz. Errors: Unauthenticated,
  // PermissionDenied, ResourceExhausted.
  std::function<absl::Status(const ShownCertificate& who, absl::string_view path)> admit;
  // Of whoever was let in and still reads, before each event: whether the certificate still holds.
  std::function<bool(const ShownCertificate& who)> holds;
};

}  // namespace phalanx::transport
