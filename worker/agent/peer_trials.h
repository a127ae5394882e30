// worker/agent/peer_trials.h: tries whether ranks of this node and of another one would find each
// other.
//
// One worker listens as ranks do: on the address that others are told of, at any free port. The
// other one connects to what the first has said of that, in numbers. Each proves that it knows its
// half of a word, so that nobody takes whoever else listens at an address for the node. Nothing
// listens for longer than a trial takes.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/agent/inbox.h"
#include "worker/agent/machine/actions.h"

namespace phalanx::agent {

struct PeerTrialsOptions {
  std::string address;  // that ranks of this node listen on
  absl::Duration listen_time = absl::Seconds(10);
  absl::Duration connect_time = absl::Seconds(3);
};

// Not thread-safe: the agent's thread owns it. Each trial runs on a thread of its own.
class PeerTrials {
 public:
  static constexpr size_t kTrialsMax = 8;  // under way at one time, of both sides

  PeerTrials(PeerTrialsOptions options, Inbox& inbox)
      : options_(std::move(options)), inbox_(inbox) {}
  // Cuts the trials under way; waits where a name server is asked for the address.
  ~PeerTrials() { stopping_ = true; }

  // Exactly one PeerTried comes to the inbox: that it listens, or how the connection went. Errors
  // in it: ResourceExhausted, InvalidArgument, Unavailable.
  void Start(const TryPeer& order);
  // A trial is under way, which the destructor would wait for.
  bool busy() const;

 private:
  struct Trial {
    std::atomic<bool> done = false;
    std::jthread thread;  // last: ends before what it uses
  };
  void Run(const TryPeer& order);

  const PeerTrialsOptions options_;
  Inbox& inbox_;
  std::atomic<bool> stopping_ = false;
  std::list<Trial> trials_;  // last: their threads end before what they use
};

}  // namespace phalanx::agent
