// coordinator/rpc/worker_service.h: WorkerService: sessions and log uploads. Translates and queues;
// decides nothing.
#pragma once

#include <grpcpp/security/auth_context.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/rpc/log_relay.h"
#include "coordinator/rpc/session_registry.h"
#include "coordinator/runtime/driver.h"
#include "phalanx/v1/worker_service.grpc.pb.h"

namespace phalanx::coordinator {

// Thread-safe.
class WorkerServiceImpl final : public v1::WorkerService::CallbackService {
 public:
  // Whether the peer's certificate holds.
  using Holds = std::function<absl::Status(const grpc::AuthContext& peer)>;
  WorkerServiceImpl(Driver& driver, SessionRegistry& sessions, LogRelay& logs, Metrics& metrics,
                    Holds holds)
      : driver_(driver),
        sessions_(sessions),
        logs_(logs),
        metrics_(metrics),
        holds_(std::move(holds)) {}

  grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>* OpenSession(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<v1::UploadLogsRequest>* UploadLogs(
      grpc::CallbackServerContext* context, v1::UploadLogsResponse* response) override;

 private:
  Driver& driver_;
  SessionRegistry& sessions_;
  LogRelay& logs_;
  Metrics& metrics_;
  const Holds holds_;
};

}  // namespace phalanx::coordinator
