// transport/http/http_response.h: what a page is made of, and the bounds of streams of it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace phalanx::transport {

struct HttpResponse {
  int code = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::string policy;  // Content-Security-Policy; empty: none
};
using HttpAnswer = std::function<void(HttpResponse response)>;

struct StreamOptions {
  size_t streams_max = 32;        // one more is refused with 503
  size_t person_streams_max = 8;  // of one certificate's owner; one more is refused with 429
  // A page is made so often at most, however many streams show it.
  absl::Duration interval = absl::Seconds(1);
  absl::Duration life = absl::Minutes(10);      // then the reader connects again
  absl::Duration slow_max = absl::Seconds(10);  // without taking what was sent; then it is dropped
};

}  // namespace phalanx::transport
