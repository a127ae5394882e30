// transport/http/http_request.h: the first line of a request over HTTP and whom it is meant for,
// which is all that anybody here reads of one.
//
// Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::transport {

struct HttpRequest {
  bool head = false;   // HEAD: no body is wanted
  std::string target;  // "/api/stream?/api/overview": printable, and begins with '/'
  std::string host;    // its Host, "localhost:7081", as it was sent; empty: it has none
  absl::string_view path() const { return absl::string_view(target).substr(0, target.find('?')); }
  absl::string_view query() const { return absl::string_view(target).substr(path().size()); }
};

// `bytes` begin with the request; of what follows its first line, Host alone is looked at. Errors:
// InvalidArgument if it is no request over HTTP, or has two Hosts; Unimplemented for any method but
// GET and HEAD.
absl::StatusOr<HttpRequest> ReadHttpRequest(absl::string_view bytes);

// Whether the Host of a request, with or without a port, is this machine under a name that nobody
// else gives: a browser that was led here by a name of its page's own (DNS rebinding) says that.
bool IsHostOfLoopback(absl::string_view host);

}  // namespace phalanx::transport
