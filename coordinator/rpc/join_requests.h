// coordinator/rpc/join_requests.h: calls of Join, whose callers nobody knows, while their requests
// are read.
//
// gRPC 1.51 shows a call of one request to its handler when the request is there, and holds until
// then what has come of it, for as long as its caller likes and from the memory of all messages
// under way. So this one method is served as a stream of bytes, whose calls are seen from their
// beginning: how many there are, how long each takes, and what their connections send meanwhile.
// On the wire nothing is different.
//
// A request takes a few kilobytes and comes with the call. So whoever holds up a place is the one
// that has waited longest, and makes room: of an address that has too many, and of all.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/rpc/audit.h"
#include "coordinator/rpc/ending.h"
#include "core/base/mutex.h"
#include "core/posix/waker.h"
#include "phalanx/v1/join_service.pb.h"

namespace phalanx::coordinator {

struct JoinRequestBounds {
  size_t reading_max = 32;    // requests that are being read, of all; at least 1
  size_t of_network_max = 8;  // the same of one NetworkOf; at least 1
  // That a connection may send while a request on it is read: one that is sound has at most 17 KiB.
  int64_t bytes_max = 64 << 10;
  absl::Duration patience = absl::Seconds(10);  // until a request is there
  // How often it is looked whether one has broken the two above.
  absl::Duration look_interval = absl::Milliseconds(20);
};

// Thread-safe. Outlives the server that it is registered with.
class JoinRequests final : public grpc::CallbackGenericService {
 public:
  struct World {
    Metrics& metrics;
    Audit& audit;
    // Bytes that the connection of that peer, as gRPC names it, has sent so far; 0: not known.
    std::function<int64_t(const std::string& peer)> received;
  };
  // Answers a request that is there, by `end`, which both others outlive.
  using Handle = std::function<void(const Ending& end, const v1::JoinRequest& request,
                                    v1::JoinResponse* response)>;
  JoinRequests(JoinRequestBounds bounds, World world, Handle handle);
  ~JoinRequests() override;

  // Of any method that no other service has; those that are not Join are Unimplemented.
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

 private:
  class Call;
  struct Reading {
    grpc::GenericCallbackServerContext* context = nullptr;
    std::string peer, network;
    SteadyTime deadline;
    int64_t bytes_max = 0;  // that its connection may have sent
    absl::Status ended;     // not OK: why it is not read on
  };

  // Its number. One more than there may be ends another.
  uint64_t Add(grpc::GenericCallbackServerContext* context) ABSL_LOCKS_EXCLUDED(mu_);
  // It is not read any more. Why it was ended; OK: it was not.
  absl::Status Take(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the oldest of a network's (empty: of all) if there are `count_max`.
  void MakeRoomLocked(const std::string& network, size_t count_max)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void End(Reading& reading, absl::Status why);
  void LookLocked(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();

  const JoinRequestBounds bounds_;
  const World world_;
  const Handle handle_;
  Mutex mu_;
  CondVar changed_;
  std::map<uint64_t, Reading> reading_ ABSL_GUARDED_BY(mu_);  // oldest first
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  // Last member: joins before anything it reads is destroyed.
  std::jthread thread_;
};

}  // namespace phalanx::coordinator
