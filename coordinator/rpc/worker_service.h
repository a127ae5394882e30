// coordinator/rpc/worker_service.h: WorkerService: sessions and log uploads. Translates and queues;
// decides nothing.
#pragma once

#include "coordinator/rpc/log_relay.h"
#include "coordinator/rpc/session_registry.h"
#include "coordinator/runtime/driver.h"
#include "phalanx/v1/worker_service.grpc.pb.h"

namespace phalanx::coordinator {

// Thread-safe.
class WorkerServiceImpl final : public v1::WorkerService::CallbackService {
 public:
  WorkerServiceImpl(Driver& driver, SessionRegistry& sessions, LogRelay& logs)
      : driver_(driver), sessions_(sessions), logs_(logs) {}

  grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>* OpenSession(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<v1::UploadLogsRequest>* UploadLogs(
      grpc::CallbackServerContext* context, v1::UploadLogsResponse* response) override;

 private:
  Driver& driver_;
  SessionRegistry& sessions_;
  LogRelay& logs_;
};

}  // namespace phalanx::coordinator
