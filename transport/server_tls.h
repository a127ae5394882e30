// transport/server_tls.h: TLS for a server that reads and writes its sockets itself, such as that
// of HTTP. Whoever connects may show a certificate; one that is shown must be sound.
//
// The files are looked at again while the server runs, as those of transport/tls.h are: what is put
// in their place is used for connections from then on, and what cannot be read changes nothing.
#pragma once

#include <openssl/ssl.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/handshakes.h"
#include "transport/openssl.h"
#include "transport/tls.h"

namespace phalanx::transport {

// What a peer has shown.
struct ShownCertificate {
  std::vector<std::string> uris;  // of its own certificate
  std::string chain;              // PEM: its own first; empty: it has shown none
};

// One connection, over a socket that does not block and outlives it. Not thread-safe.
class TlsStream {
 public:
  explicit TlsStream(std::unique_ptr<SSL, Freed<SSL_free>> ssl) : ssl_(std::move(ssl)) {}
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // As recv and send: how many bytes, 0 at the end, or below 0, with errno EAGAIN where wants() is
  // to be waited for. The handshake is part of the first of them.
  ssize_t Read(char* to, size_t bytes);
  ssize_t Write(const char* from, size_t bytes);
  // POLLIN or POLLOUT, after a Read or Write that has to wait; else 0.
  short wants() const { return wants_; }
  // Once something was read.
  ShownCertificate peer() const;

 private:
  ssize_t Outcome(int result);

  const std::unique_ptr<SSL, Freed<SSL_free>> ssl_;
  short wants_ = 0;
  bool broken_ = false;
};

// Not thread-safe.
class ServerTls {
 public:
  // From then on writes to peers that are gone fail, rather than end this process by a signal.
  // `log` gets a line when other files are used, or cannot be. Errors: InvalidArgument, as
  // CheckTlsFiles.
  static absl::StatusOr<std::unique_ptr<ServerTls>> Open(
      TlsFiles files, std::function<void(const std::string& line)> log);

  // `told` gets handshakes that come to nothing from now on (transport/handshakes.h). Before the
  // first connection.
  void OnFailedHandshake(HandshakeWatch::Told told) { told_of_handshake_ = std::move(told); }

  // nullptr: OpenSSL has no memory.
  std::unique_ptr<TlsStream> Accept(int fd);

 private:
  ServerTls(TlsFiles files, std::function<void(const std::string& line)> log)
      : files_(std::move(files)), log_(std::move(log)) {}
  absl::Status Load();
  void LookAgain();

  const TlsFiles files_;
  const std::function<void(const std::string& line)> log_;
  HandshakeWatch::Told told_of_handshake_ = [](const FailedHandshake&) {};
  // Before the contexts, which it has to see made.
  HandshakeWatch watch_{[this](const FailedHandshake& failed) { told_of_handshake_(failed); }};
  std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context_;
  std::string texts_;  // of the files that context_ was made of
  std::string told_;   // the fault that log_ was told last
  std::chrono::steady_clock::time_point look_at_;
};

}  // namespace phalanx::transport
