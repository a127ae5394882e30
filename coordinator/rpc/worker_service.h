// coordinator/rpc/worker_service.h: WorkerService: sessions and log uploads. Translates and queues;
// decides nothing.
#pragma once

#include <grpcpp/security/auth_context.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/rpc/admission.h"
#include "coordinator/rpc/audit.h"
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
  struct World {
    Driver& driver;
    SessionRegistry& sessions;
    LogRelay& logs;
    Metrics& metrics;
    Admission& admission;
    Audit& audit;
    Holds holds;
  };
  // The world outlives the service.
  explicit WorkerServiceImpl(World world) : world_(std::move(world)) {}

  grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>* OpenSession(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<v1::UploadLogsRequest>* UploadLogs(
      grpc::CallbackServerContext* context, v1::UploadLogsResponse* response) override;

 private:
  const World world_;
};

}  // namespace phalanx::coordinator
