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
// that has waited longest, and makes room: of an address that has too many, and of all. A call
// counts until a thread of ours has its request in hand, so what is young may be here already and
// makes no room: many nodes that join at once are read all at once, up to a bound of its own.
//
// A call that is ended gets its answer. Who does not take it is cancelled soon after.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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
  // Requests that are being read, of all and of one NetworkOf; at least 1. One more ends the oldest
  // of those that are no longer young.
  size_t reading_max = 32;
  size_t of_network_max = 8;
  absl::Duration youth = absl::Milliseconds(500);
  // The same with those that are young; at least as many. One more is refused.
  size_t burst_max = 256;
  size_t of_network_burst_max = 64;
  // That a connection may send while a request on it is read: one that is sound has at most 17 KiB.
  int64_t bytes_max = 64 << 10;
  absl::Duration patience = absl::Seconds(10);  // until a request is there
  // Until the caller has taken the answer of a call that was ended, or it is cancelled.
  absl::Duration answer_patience = absl::Seconds(1);
  // How often it is looked whether one has broken the three above.
  absl::Duration look_interval = absl::Milliseconds(20);
};

// Thread-safe. Outlives the server that it is registered with.
class JoinRequests final : public grpc::CallbackGenericService {
 public:
  struct World {
    Metrics& metrics;
    Audit& audit;
    // Bytes that the connection of that peer, as gRPC names it, has sent so far, over all of its
    // calls: of one call it is what has come since it began. 0: not known.
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
    Call* call = nullptr;
    std::string peer, network;
    SteadyTime begun, deadline;
    int64_t bytes_max = 0;  // that its connection may have sent
  };
  struct Leaving {
    grpc::CallbackServerContext* context = nullptr;
    SteadyTime deadline;
  };
  struct Verdict {
    Call* call = nullptr;
    absl::Status why;
  };
  using ReadingMap = std::map<uint64_t, Reading>;

  // Gives the call, which its number is written to, a place. Errors: ResourceExhausted, if there is
  // none: the caller ends it with that.
  absl::Status Add(Call& call) ABSL_LOCKS_EXCLUDED(mu_);
  // The call is not read any more. Whether it was until now: whoever takes it ends it, once.
  bool Take(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // The call is over, and its context with it.
  void Forget(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the oldest of a network's (empty: of all) that are not young, down to one below
  // `count_max`. Errors: ResourceExhausted, if there are `burst_max` all the same.
  absl::Status MakeRoomLocked(const std::string& network, size_t count_max, size_t burst_max,
                              SteadyTime now, std::vector<Verdict>& verdicts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the call for a verdict, which is carried out without the lock. The next call.
  ReadingMap::iterator TakeLocked(ReadingMap::iterator reading, absl::Status why, SteadyTime now,
                                  std::vector<Verdict>& verdicts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveLocked(uint64_t number, const Call& call, SteadyTime now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void CarryOut(const std::vector<Verdict>& verdicts);
  std::vector<Verdict> LookLocked(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Some at least. Empty: this is destroyed.
  std::vector<Verdict> AwaitVerdicts() ABSL_LOCKS_EXCLUDED(mu_);
  void Run();

  const JoinRequestBounds bounds_;
  const World world_;
  const Handle handle_;
  Mutex mu_;
  CondVar changed_;
  // By number, so the oldest first.
  ReadingMap reading_ ABSL_GUARDED_BY(mu_);
  // Calls that were ended and are not over, until they are cancelled.
  std::map<uint64_t, Leaving> leaving_ ABSL_GUARDED_BY(mu_);
  SteadyTime next_look_ ABSL_GUARDED_BY(mu_);
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  // Last member: joins before anything it reads is destroyed.
  std::jthread thread_;
};

}  // namespace phalanx::coordinator
