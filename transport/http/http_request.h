// transport/http/http_request.h: the first line of a request over HTTP, which is all that anybody
// here reads of one.
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
  absl::string_view path() const { return absl::string_view(target).substr(0, target.find('?')); }
  absl::string_view query() const { return absl::string_view(target).substr(path().size()); }
};

// `bytes` begin with the request; what follows its first line is not looked at. Errors:
// InvalidArgument if it is no request over HTTP; Unimplemented for any method but GET and HEAD.
absl::StatusOr<HttpRequest> ReadHttpRequest(absl::string_view bytes);

}  // namespace phalanx::transport
