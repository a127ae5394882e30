// coordinator/http/http_guard.h: who may see pages where there are certificates.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "transport/server_tls.h"

namespace phalanx::coordinator {

// Called on the server's thread; must not block.
struct HttpGuard {
  // Of each request, but for /healthz and /readyz. Errors: Unauthenticated, PermissionDenied,
  // ResourceExhausted.
  std::function<absl::Status(const transport::ShownCertificate& who, absl::string_view path)> admit;
  // Of whoever was let in and still reads, before each event: whether the certificate still holds.
  std::function<bool(const transport::ShownCertificate& who)> holds;
};

}  // namespace phalanx::coordinator
