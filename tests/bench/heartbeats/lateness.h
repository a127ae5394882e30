// tests/bench/heartbeats/lateness.h: how long after they were sent a coordinator heard heartbeats.
//
// Those of a node are numbered from 1. Of each node the coordinator tells which one it heard last,
// and when, by the clock of this machine: when its machine took it, which is how it judges who is
// silent. One that was heard between two looks, and another one after it, counts as heard when that
// one was: the figures may be too large, never too small.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "phalanx/v1/job_service.grpc.pb.h"

namespace phalanx::coordinator {

// Of nodes node-0, node-1 and so on (fleet.h). Of one thread, and one of its own that looks.
class Lateness {
 public:
  // Looks every so often, until Stop.
  static constexpr absl::Duration kPause = absl::Milliseconds(500);
  // For the last heartbeat of each node.
  static constexpr absl::Duration kPatience = absl::Seconds(10);

  Lateness(const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
           size_t nodes);
  // A heartbeat of the node is about to be sent; its number.
  int64_t Send(size_t node);
  // Once nothing is sent any more. What could not be asked throws std::runtime_error.
  void Stop();

  // After Stop. Milliseconds of those sent in [begin, end) that were heard, the shortest first.
  std::vector<double> MillisecondsOf(absl::Time begin, absl::Time end) const;
  // After Stop. Nodes that the coordinator does not have as ready, or whose last was not heard.
  size_t lost() const;

 private:
  struct Heard {
    int64_t number = 0;
    absl::Time at;
  };
  struct Node {
    std::vector<absl::Time> sent;
    std::vector<Heard> heard;
    bool ready = false;
    int64_t last_heard() const { return heard.empty() ? 0 : heard.back().number; }
    bool all_heard() const { return last_heard() >= static_cast<int64_t>(sent.size()); }
  };

  void Look();
  bool AllHeard() const;

  const std::unique_ptr<v1::JobService::Stub> stub_;
  // Of each: `sent` of whoever sends; the rest of the thread, until it has stopped.
  std::vector<Node> nodes_;
  std::string failure_;  // the first; of the thread
  std::jthread thread_;  // last member: joins before the rest ends
};

}  // namespace phalanx::coordinator
