// coordinator/net/open_peers.h: which of the connections that a server was handed are still open.
//
// The server closes their descriptors as it likes, so one that is closed is known by its descriptor
// being another's, or nobody's. Memory: an entry for each descriptor that there ever was.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// The socket behind a descriptor; 0: none.
uint64_t SocketOf(int fd);

// Thread-safe.
class OpenPeers {
 public:
  // Of a connection, before the server gets it.
  void Note(int fd) ABSL_LOCKS_EXCLUDED(mu_);

  // `peer`: as gRPC names it, such as "ipv4:127.0.0.1:4444".
  bool IsOpen(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mu_);
  // How many bytes have come from it since it was connected, over all of its calls and with what
  // TLS adds: of one call, take the difference. 0: it is not open, or the kernel does not say.
  int64_t BytesFrom(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mu_);

  // Has the server close the connection of that peer, at once and whatever it is at. Waits for
  // nothing.
  void End(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  // Has the server close all that are open, and waits for it, a second at most: each once it has
  // read what has come and has written what it is at, those that do not get there at once. Nobody
  // notes one meanwhile.
  //
  // For a gRPC server, before it is shut down: gRPC 1.51 ends a call that comes behind that with
  // CANCELLED, as if its caller had wished so. One whose connection is closed ends with
  // UNAVAILABLE.
  void EndAll() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Connection {
    int fd = -1;
    uint64_t socket = 0;
  };

  // -1: it is not open.
  int FdOfLocked(const std::string& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `how`: as of shutdown(2).
  void ShutDownAll(int how) ABSL_LOCKS_EXCLUDED(mu_);
  bool AnyOpen() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether none is open by then.
  bool AwaitNone() const ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  std::map<std::string, Connection> by_peer_ ABSL_GUARDED_BY(mu_);
  std::map<int, std::string> by_fd_ ABSL_GUARDED_BY(mu_);  // the peer that each had last
};

}  // namespace phalanx::coordinator
