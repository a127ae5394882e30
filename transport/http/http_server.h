// transport/http/http_server.h: /metrics, /livez (the process lives; /healthz is the same), /readyz
// (it accepts work), and pages that are made elsewhere, also as streams of events.
//
// What does not live or accept work answers 503 with the first reason; /livez?verbose and
// /readyz?verbose tell of every part; /readyz?standby=ready also passes who stands by. With
// certificates all but these asks for one (http_guard.h). A connection's handshake is part of its
// life.
//
// One thread serves all connections as they become readable and writable, so nobody who is slow
// holds up another. A connection carries one request and is closed after kLife (kPageLife where
// others make the page), whatever it does; of more than kConnectionsMax the oldest is closed for
// the newest, of those of the address that has most. Streams are counted by themselves
// (event_streams.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/health.h"
#include "transport/http/http_guard.h"
#include "transport/http/http_response.h"
#include "transport/server_tls.h"

namespace phalanx::transport {

struct HttpOptions {
  static constexpr size_t kConnectionsMax = 24;
  static constexpr size_t kRequestBytesMax = 16 << 10;
  static constexpr absl::Duration kLife = absl::Seconds(5);
  static constexpr absl::Duration kPageLife = absl::Seconds(20);

  std::string host = "127.0.0.1";
  int port = 0;  // 0: any free one
  // A socket that listens already, which stays open; -1: host and port.
  int listening = -1;
  // nullptr: plaintext, and everybody may see everything who asks for this machine by a name of
  // loopback (IsHostOfLoopback): others are 403 except for probes.
  std::unique_ptr<ServerTls> tls;
  HttpGuard guard;  // of `tls` alone
  // A request that is too large (InvalidArgument) or did not come in time (DeadlineExceeded), and
  // what its sender has shown; none: nobody is told. Called on the server's thread; must not block.
  std::function<void(const ShownCertificate& who, const absl::Status& why)> unread;
  // Called on the server's thread; must not block.
  std::function<std::string()> metrics;
  std::function<Health()> live;  // none: it lives as long as it answers
  std::function<Health()> ready;
  // The same where one that stands by for another is as good (/readyz?standby=ready); none:
  // `ready`.
  std::function<Health()> ready_or_standby;
  // Any other page, by its path with what stands behind a '?'; none: there are no others. Called on
  // the server's thread; must not block, and calls `answer` once, on any thread.
  std::function<void(const std::string& target, HttpAnswer answer)> pages;
  // GET /api/stream?PATH: that page whenever it has changed.
  StreamOptions streams;
};

// Thread-safe.
class HttpServer {
 public:
  // Errors: Unavailable if the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  // Closes the connections and ends the thread. Answers that come later go nowhere.
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
};

}  // namespace phalanx::transport
