// coordinator/program/serving.h: a coordinator that serves, with all that is around it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/rpc/server.h"
#include "coordinator/status/status_page.h"
#include "coordinator/store/backend.h"
#include "transport/http/http_server.h"

namespace phalanx::coordinator {

class EntryCheck;

// Not thread-safe.
class Serving {
 public:
  // `http`: its address and its TLS. Errors: as Server::Start and transport::HttpServer::Start.
  static absl::StatusOr<std::unique_ptr<Serving>> Start(ServerOptions options,
                                                        transport::HttpOptions http,
                                                        std::unique_ptr<Backend> backend);
  // As Stop with no grace.
  ~Serving();

  int grpc_port() const { return server_->port(); }
  int http_port() const { return http_->port(); }
  // Ends open calls within `grace`. Idempotent.
  void Stop(absl::Duration grace);

 private:
  Serving() = default;

  // Destroyed from the last to the first: pages before the board that they read.
  std::unique_ptr<Server> server_;
  std::unique_ptr<StatusPage> page_;
  std::unique_ptr<transport::HttpServer> http_;
  std::unique_ptr<EntryCheck> check_;
};

}  // namespace phalanx::coordinator
