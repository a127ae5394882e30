// tests/fuzz/http/exchange.h: an HTTP server of this process, connections to it, and what holds of
// any answer.
//
// Sockets are of this machine's kernel alone: of ports there are too few for thousands of inputs a
// second.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/posix/unique_fd.h"
#include "transport/http/http_server.h"

namespace phalanx::fuzz {

// A server that does not start ends the process. Thread-safe.
class LocalHttp {
 public:
  // `options`: but where it listens.
  explicit LocalHttp(transport::HttpOptions options);
  UniqueFd Connect() const;

 private:
  UniqueFd listening_;
  sockaddr_un address_{};
  socklen_t address_bytes_ = 0;
  std::unique_ptr<transport::HttpServer> server_;
};

// What the other end does not take is lost.
void Send(const UniqueFd& to, absl::string_view bytes);

// Until the other end closes; of a stream of events, until the first of them is there. Errors:
// DeadlineExceeded, if it does neither for long.
absl::StatusOr<std::string> ReadAnswer(const UniqueFd& from);

bool IsStream(absl::string_view answer);

struct Answer {
  int code = 0;
  size_t length = 0;  // of the body, as the head says
  std::string type, body;
};
// An answer that is no stream: one alone, with its head whole and a body of the length that it
// says, or, without `with_body`, none. Errors: InvalidArgument with what is wrong.
absl::StatusOr<Answer> TakeApart(absl::string_view answer, bool with_body);

}  // namespace phalanx::fuzz
