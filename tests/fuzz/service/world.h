// tests/fuzz/service/world.h: a coordinator in this process, all of it but its port: services,
// driver, machine and journal, on a store and a clock of the fuzzer's.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "coordinator/rpc/admission.h"
#include "coordinator/rpc/audit.h"
#include "coordinator/rpc/job_service.h"
#include "coordinator/rpc/join_service.h"
#include "coordinator/rpc/session_registry.h"
#include "coordinator/rpc/unread_requests.h"
#include "coordinator/rpc/worker_service.h"
#include "coordinator/store/memory_backend.h"
#include "core/base/time.h"

namespace phalanx::fuzz {

// Stands still but for Advance. Thread-safe.
class StillClock final : public Clock {
 public:
  Instant Now() const override { return absl::FromUnixMillis(milliseconds_); }
  void Advance(absl::Duration span) { milliseconds_ += absl::ToInt64Milliseconds(span); }

 private:
  std::atomic<int64_t> milliseconds_ = int64_t{1'700'000'000'000};
};

class World {
 public:
  // Of what is on the disk; a store that is not read ends the process.
  explicit World(std::shared_ptr<coordinator::MemoryDisk> disk);
  // Ends what is open.
  ~World();

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  const coordinator::MemoryDisk& disk() const { return *disk_; }
  // Time passes, and the driver has looked at it.
  void Advance(absl::Duration span);

 private:
  // In the order in which the coordinator's own server has them (coordinator/rpc/server.cc).
  const std::shared_ptr<coordinator::MemoryDisk> disk_;
  StillClock clock_;
  coordinator::Metrics metrics_;
  coordinator::Board board_;
  coordinator::LogRelay logs_;
  coordinator::SessionRegistry sessions_;
  coordinator::OpenCalls watches_, log_calls_;
  coordinator::UnreadRequests unread_;
  coordinator::Admission admission_;
  coordinator::Audit audit_;
  std::unique_ptr<coordinator::JoinTokens> tokens_;
  std::unique_ptr<coordinator::Driver> driver_;
  std::unique_ptr<coordinator::JobServiceImpl> job_service_;
  std::unique_ptr<coordinator::WorkerServiceImpl> worker_service_;
  std::unique_ptr<coordinator::JoinServiceImpl> join_service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace phalanx::fuzz
