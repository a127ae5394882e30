// coordinator/rpc/caller_connections.h: what callers with certificates have open and on its way:
// connections, and bytes of messages that have not come whole.
//
// gRPC 1.51 keeps what has come of a message until it is whole, and looks at its size then: one
// call holds up to 4 GiB, from the memory of all messages under way (a ResourceQuota), and past
// that it ends calls of anybody. So of each connection it is counted what comes over it
// (HandshakeWatch), less the messages that came whole. Whoever has too much has the connection with
// most of it closed, and what gRPC holds for it is free; where all people have too much together,
// it is the connection with most of theirs. Before that, while much of a person's comes, what comes
// whole of theirs is refused, and told when to ask again.
//
// What is neither, such as pings, windows and requests that are too large, is counted as well, and
// so it counts no longer once it came a minute or two ago and every request of theirs has come.
//
// Connections are counted from the end of their handshake on. Admission refuses a call over one too
// many, in words and with a hint; past twice as many they are closed before a call can come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/rpc/access.h"
#include "transport/handshakes.h"

namespace phalanx::coordinator {

struct ConnectionBounds {
  // Open, of one identity; 0: any number.
  size_t of_person_max = 512;
  size_t of_worker_max = 128;
  // Of messages that have not come whole: of one person, of all people, of one worker.
  int64_t person_bytes_max = 128 << 20;
  int64_t bytes_max = 512 << 20;
  int64_t worker_bytes_max = 128 << 20;
  // A person who has half as much as one may is refused calls for so long after an eighth of it
  // came.
  absl::Duration refused_for = absl::Seconds(10);
  // What came longer ago than this, or at most twice this, counts no longer, if no request is
  // waited for.
  absl::Duration counts_for = absl::Minutes(1);
};

// Thread-safe. Those in plaintext are not counted, nor strangers without a certificate.
class CallerConnections {
 public:
  // From any thread, also one that reads a connection.
  struct World {
    // Has the connection of that peer closed. Called under a lock: waits for nothing.
    std::function<void(const std::string& peer)> end;
    // Whether the request of a call of theirs has not come (UnreadRequests). Called under a lock.
    std::function<bool(const Caller& caller)> waits;
    // Why one is: too many of them (`bytes`: false), or too many bytes. Called behind it, under no
    // lock, also while another thread does.
    std::function<void(const Caller& caller, bool bytes, const absl::Status& why)> ended;
  };
  CallerConnections(ConnectionBounds bounds, World world);
  // Waits for calls of World::ended. Those that are open are counted no more.
  ~CallerConnections();
  CallerConnections(const CallerConnections&) = delete;
  CallerConnections& operator=(const CallerConnections&) = delete;

  // A connection of a caller with these URIs begins, as HandshakeWatch tells; null: they are
  // nobody.
  std::unique_ptr<transport::OpenConnection> Begin(const std::string& peer,
                                                   const std::vector<std::string>& uris);
  // A request of so many bytes came whole. Errors: ResourceExhausted, if so much else of the
  // caller's is on its way that it is to ask again.
  absl::Status RequestCame(const std::string& peer, size_t bytes);
  // A message of a stream, likewise.
  void MessageCame(const std::string& peer, size_t bytes);

  class All;  // of the implementation

 private:
  const std::shared_ptr<All> all_;  // with each connection, which may outlive this
};

}  // namespace phalanx::coordinator
