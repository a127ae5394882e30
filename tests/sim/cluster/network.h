// tests/sim/cluster/network.h: which machines reach each other, and the streams between a daemon
// and the coordinator.
//
// The coordinator has a machine of its own. A cut swallows what would arrive; the sender's machine
// sends it again until the cut is healed or it gives the stream up, as TCP does.
//
// Within a stream nothing is reordered or repeated. Across the streams of one daemon it is: what an
// end had sent before it gave a stream up may arrive behind the hello of the next one, a stream may
// be open at one end alone, and what was delivered without its sender hearing so is said again.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/machine/events.h"
#include "tests/sim/cluster/timeline.h"
#include "worker/agent/machine/events.h"

namespace phalanx::sim {

// Of one node's machine. Cuts are counted, since faults overlap.
struct Cuts {
  int32_t up = 0, down = 0;  // to and from the coordinator
  int32_t peers = 0;         // to and from all other nodes
};

class Network {
 public:
  Network(Timeline& timeline, size_t nodes) : timeline_(timeline), cuts_(nodes) {}

  Cuts& cuts(size_t node) { return cuts_[node]; }
  bool PeersReach(size_t a, size_t b) const {
    return a == b || (cuts_[a].peers == 0 && cuts_[b].peers == 0);
  }
  bool UpReaches(size_t node) const { return cuts_[node].up == 0; }
  bool DownReaches(size_t node) const { return cuts_[node].down == 0; }
  // One way over the network, most often well below a millisecond.
  absl::Duration Delay();
  // Between processes of one machine.
  absl::Duration LocalDelay();
  // Runs `what` once `reaches` holds, looked at as often as a lost packet is sent again.
  void Once(std::function<bool()> reaches, std::function<void()> what);

 private:
  Timeline& timeline_;
  std::vector<Cuts> cuts_;
};

// One direction of a stream: what is sent arrives in order, or not at all once the stream broke.
class Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  Pipe(Timeline& timeline, Network& network, std::function<bool()> reaches,
       std::function<void()> given_up)
      : timeline_(timeline),
        network_(network),
        reaches_(std::move(reaches)),
        given_up_(std::move(given_up)) {}

  void Send(std::function<void()> deliver);
  // What is on its way, or is sent until then, arrives no earlier.
  void Hold(Instant until) { held_until_ = std::max(held_until_, until); }
  // Nothing more arrives.
  void Break() {
    broken_ = true;
    queue_.clear();
  }
  bool broken() const { return broken_; }
  size_t waiting() const { return queue_.size(); }

 private:
  void Pump();

  Timeline& timeline_;
  Network& network_;
  const std::function<bool()> reaches_;
  const std::function<void()> given_up_;  // nothing was confirmed for too long
  std::deque<std::function<void()>> queue_;
  bool pumping_ = false, broken_ = false;
  Instant blocked_since_ = absl::InfiniteFuture();
  Instant held_until_ = absl::InfinitePast();
};

// A stream between a daemon and the coordinator, as each of its ends knows it. An end may be gone
// without the other one knowing.
struct Stream {
  coordinator::SessionId session;
  agent::SessionNumber number;
  size_t node = 0;
  uint64_t daemon_life = 0, coordinator_life = 0;  // of the processes that opened it
  std::shared_ptr<Pipe> up, down;
  bool daemon_closed = false, coordinator_closed = false;  // the end has heard of it
  bool accepted = false;                                   // the coordinator has it
  // What has come in at an end that has closed it is still read there: at the coordinator one
  // message, at the daemon what waits in its inbox.
  bool coordinator_reads = false, daemon_reads = false;
};
using StreamPtr = std::shared_ptr<Stream>;

}  // namespace phalanx::sim
