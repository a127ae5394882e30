// tests/bench/heartbeats/daemon.h: a node that is not there, as a coordinator sees it: a connection
// and a session of this process, that says what a worker's daemon says and does what it is told.
//
// Its hello, heartbeats, checks and examination are those of a machine with as many GPUs, in the
// messages that the daemon makes of them. Data is prepared, and ranks start and end, at once: they
// are ready, and then do a step between two heartbeats. A session that ends is not opened again.
//
// What cannot be done throws std::runtime_error. Thread-safe, but for construction and destruction.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "phalanx/v1/worker_service.grpc.pb.h"

namespace phalanx::coordinator {

class Daemon final
    : private grpc::ClientBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse> {
 public:
  struct Machine {
    int64_t number = 0;  // of the node: its name is node-NUMBER
    std::string device_kind = "gpu";
    int32_t devices = 8;
  };
  // Each command, before it is carried out; on threads of gRPC's.
  using Told = std::function<void(const std::string& node, const v1::Command& command)>;

  Daemon(const std::string& address, std::shared_ptr<grpc::ChannelCredentials> credentials,
         const Machine& machine, Told told);
  // Leaves, and waits until the session is over.
  ~Daemon() override;

  // Until the coordinator has let it in.
  void AwaitWelcome() ABSL_LOCKS_EXCLUDED(mu_);
  // The coordinator has `number` then as the bytes in use of the first device, beyond
  // kUsedMemoryAtLeast. The first has the examination of the machine with it, the second the checks
  // of its devices, as those of a daemon that has just started.
  void Heartbeat(int64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the session without a word; nothing is sent any more.
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);
  // The session is over.
  bool ended() const ABSL_LOCKS_EXCLUDED(mu_);

  // Of the ranks of the job that are here: rank 0 reports a step; all end behind the last one.
  void Step(int64_t job, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  void Succeed(int64_t job, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  bool Has(int64_t job, int32_t rank) const ABSL_LOCKS_EXCLUDED(mu_);
  // The rank, which is here, is gone by a signal.
  void Kill(int64_t job, int32_t rank) ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr int64_t kUsedMemoryAtLeast = int64_t{60} << 30;

 private:
  // Ranks that are here.
  struct Ranks {
    int64_t epoch = 0, step = 0;
    std::vector<int32_t> ranks;  // ascending
  };

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  void CarryOut(const v1::Command& command) ABSL_LOCKS_EXCLUDED(mu_);
  void StartRanks(const v1::Assign& assign) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StopRanks(const v1::Stop& stop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Report(int64_t job, int64_t epoch, int32_t rank, v1::RankReport report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(v1::OpenSessionRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitDone() ABSL_LOCKS_EXCLUDED(mu_);

  const Machine machine_;
  const std::string node_;
  const Told told_;
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  v1::OpenSessionResponse response_;  // of the read that is under way, then of its reaction

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<v1::OpenSessionRequest> outbox_ ABSL_GUARDED_BY(mu_);  // front: being written
  std::map<int64_t, Ranks> ranks_ ABSL_GUARDED_BY(mu_);             // by job
  int64_t heartbeats_ ABSL_GUARDED_BY(mu_) = 0;
  bool welcomed_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;    // nothing is read any more
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;  // nothing is written any more
  bool held_ ABSL_GUARDED_BY(mu_) = true;      // gRPC keeps the stream for who writes to it
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);  // once done
};

// Of a node of such a number.
std::string NameOfNode(int64_t number);

}  // namespace phalanx::coordinator
