// coordinator/net/connection_gate.h: accepts connections for a server that must never run out of
// descriptors.
//
// gRPC 1.51 stops listening for good when accept fails for want of a descriptor. So the gate
// accepts, and hands on a connection only while enough descriptors are left for everything else.
// When they are not, it shuts the connections down that have been silent longest: a worker is heard
// of in every heartbeat interval, and a caller that waits is pinged.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/posix/socket.h"

namespace phalanx::coordinator {

struct GateOptions {
  // Descriptors that stay free for files and other sockets.
  int reserved_descriptors = 48;
  // Only a connection that was silent for so long is shut down for a newcomer: more than the
  // heartbeat interval of the workers.
  absl::Duration silence_min = absl::Seconds(1);
  // The same of one that has never said anything: whoever speaks gRPC speaks first, and at once.
  absl::Duration mute_min = absl::Seconds(1);
};

// Thread-safe.
class ConnectionGate {
 public:
  // Accepts on `listening` from now on. `take` gets each connection, non-blocking, and owns it.
  // Errors: Unavailable.
  static absl::StatusOr<std::unique_ptr<ConnectionGate>> Open(
      UniqueFd listening, GateOptions options, std::function<void(int listening, int fd)> take);
  // Accepts no more; connections that were taken stay.
  ~ConnectionGate();

  int port() const { return PortOf(listening_.get()); }

 private:
  ConnectionGate(UniqueFd listening, UniqueFd stop, GateOptions options,
                 std::function<void(int, int)> take);
  void Run();
  void AcceptAll();
  void Admit(UniqueFd connection);
  // Shuts down an eighth of the connections, the longest silent. False: none was silent.
  bool ShutDownSilent();

  const UniqueFd listening_;
  const UniqueFd stop_;  // an eventfd
  const GateOptions options_;
  const std::function<void(int, int)> take_;
  // Of the thread: descriptors that were handed on, with the socket that each was then. The server
  // closes them as it likes, so a descriptor may be another's by now.
  std::map<int, uint64_t> taken_;
  UniqueFd spare_;  // given up to accept and close where no descriptor is left
  std::jthread thread_;
};

}  // namespace phalanx::coordinator
