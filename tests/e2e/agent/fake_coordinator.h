// tests/e2e/agent/fake_coordinator.h: a coordinator that does what a test tells it, over real gRPC.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "grpcpp/server.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "tests/support/process.h"

namespace phalanx::agent {

// Serves one worker on loopback. The waits take messages out of what was received, in order of
// arrival, and leave the others; a wait that is not met in support::kPatience ends the test
// program.
class FakeCoordinator final : public v1::WorkerService::Service {
 public:
  // `port` 0: any. `refusal`: every session is answered with this status.
  explicit FakeCoordinator(int port = 0, uint64_t incarnation = 1,
                           grpc::Status refusal = grpc::Status::OK);
  ~FakeCoordinator() override;

  int port() const { return port_; }
  std::string address() const;

  // Waits for the hello, which was answered with a welcome.
  v1::WorkerHello AwaitHello();
  // Sends a command with the next number, which it returns.
  uint64_t Send(v1::Command command);
  v1::CommandResult AwaitResult(uint64_t command_number);
  v1::RankReport AwaitReport(const std::function<bool(const v1::RankReport&)>& match);
  v1::Heartbeat AwaitHeartbeat(const std::function<bool(const v1::Heartbeat&)>& match);
  // Waits until the worker has closed its stream.
  void AwaitClose();
  // Waits for the end of an upload; its texts of each rank joined.
  std::map<int32_t, std::string> AwaitUpload(const std::string& fetch_id);
  // The beginning of an upload's text has come.
  void AwaitUploadText(const std::string& fetch_id, const std::string& text);
  void ContinueNumbersFrom(uint64_t number) { last_command_ = number; }

  grpc::Status OpenSession(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::OpenSessionResponse, v1::OpenSessionRequest>* session) override;
  grpc::Status UploadLogs(grpc::ServerContext* context,
                          grpc::ServerReader<v1::UploadLogsRequest>* reader,
                          v1::UploadLogsResponse* response) override;

 private:
  using Session = grpc::ServerReaderWriter<v1::OpenSessionResponse, v1::OpenSessionRequest>;
  struct Upload {
    std::map<int32_t, std::string> text;
    bool done = false;
  };

  // Removes and returns the first message received that `match` takes.
  v1::OpenSessionRequest Await(const char* what,
                               const std::function<bool(const v1::OpenSessionRequest&)>& match);
  void WaitUntil(const char* what, const std::function<bool()>& condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t incarnation_;
  const grpc::Status refusal_;
  int port_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::OpenSessionRequest> received_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Upload> uploads_ ABSL_GUARDED_BY(mutex_);
  Session* session_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int closed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_command_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace phalanx::agent
