// transport/handshakes.h: handshakes of TLS that this process serves: those that come to nothing,
// and the connections that the others become.
//
// gRPC 1.51 tells nobody of either: its services and its auth metadata processor see calls, its
// certificate verifier sees certificates that OpenSSL has found sound, and neither sees an address.
// So OpenSSL itself is asked, through the data that it keeps with each connection (SSL_set_ex_data)
// and the messages that it shows (SSL_CTX_set_msg_callback). That knows nothing of addresses
// either; whoever hands a socket on says whose it is (Watch).
//
// What is not seen: a peer that sends less than the head of a record of TLS, 5 bytes, such as a
// probe that connects and hangs up; and what is refused after the handshake, such as a client whose
// certificate is sound and that speaks no HTTP/2. Of a connection it is seen whose it is, how many
// bytes come over it, before anything of HTTP/2 is read from them, and when it is closed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace phalanx::transport {

enum class HandshakeFault : uint8_t {
  kExpired,         // the peer's certificate holds no longer, or not yet
  kUntrusted,       // no authority of ours has signed it
  kBadCertificate,  // it is of another kind, such as a server's, or spoilt
  kNoCertificate,   // one is asked for, and the peer has shown none
  kPlaintext,       // what the peer sends first is no TLS
  kRefused,         // the peer does not accept ours
  kBrokenOff,       // the peer has gone, or the time was over
  kOther,           // such as no common version
};
inline constexpr HandshakeFault kHandshakeFaults[] = {
    HandshakeFault::kExpired,       HandshakeFault::kUntrusted, HandshakeFault::kBadCertificate,
    HandshakeFault::kNoCertificate, HandshakeFault::kPlaintext, HandshakeFault::kRefused,
    HandshakeFault::kBrokenOff,     HandshakeFault::kOther};
// "expired", "untrusted": for labels of metrics.
absl::string_view ToString(HandshakeFault fault);

struct FailedHandshake {
  std::string peer;  // as Watch was told
  HandshakeFault fault = HandshakeFault::kOther;
  std::string reason;  // one sentence of ours; of the peer it has nothing
};

// A connection whose peer has shown a certificate. Destroyed once it is closed; may outlive its
// watch. Called by one thread at a time, any, which must not be held up; calls nothing of OpenSSL
// or gRPC.
class OpenConnection {
 public:
  virtual ~OpenConnection() = default;
  // So many bytes more come from the peer, with what TLS adds.
  virtual void Came(int64_t bytes) = 0;
};

// Thread-safe.
class HandshakeWatch {
 public:
  using Told = std::function<void(const FailedHandshake& failed)>;
  // For connections of a SSL_CTX that is made from now on. `told` is called on any thread, must not
  // block, and calls nothing of OpenSSL or gRPC.
  explicit HandshakeWatch(Told told) : HandshakeWatch(std::move(told), nullptr) {}
  // `finished` is called under the same rules, at the end of a handshake in which the peer has
  // shown a certificate that is sound and is its own, with the URIs in it; null: nothing is to be
  // told of the connection.
  using Finished = std::function<std::unique_ptr<OpenConnection>(
      const std::string& peer, const std::vector<std::string>& uris)>;
  HandshakeWatch(Told told, Finished finished);
  // `told` and `finished` are called no more.
  ~HandshakeWatch();
  HandshakeWatch(const HandshakeWatch&) = delete;
  HandshakeWatch& operator=(const HandshakeWatch&) = delete;

  // Connections over TLS that `begin` makes, on this thread, come from `peer`.
  void Watch(std::string peer, absl::FunctionRef<void()> begin);

  class Listener;  // of the implementation

 private:
  const std::shared_ptr<Listener> listener_;  // with each connection, which may outlive this
};

}  // namespace phalanx::transport
