// coordinator/http/http_server.h: /metrics, /healthz (the process lives) and /readyz (it accepts
// work).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace phalanx::coordinator {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any free one
  // Called on the server's threads.
  std::function<std::string()> metrics;
  std::function<absl::Status()> ready;
};

// Thread-safe.
class HttpServer {
 public:
  // Errors: Unavailable if the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  // Ends open requests and the threads.
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
};

}  // namespace phalanx::coordinator
