// Any bytes that somebody sends to the port of the pages.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/support/fuzz.h"
#include "transport/http/http_request.h"

namespace phalanx::fuzz {

std::string Check(absl::string_view bytes) {
  const auto request = transport::ReadHttpRequest(bytes);
  if (!request.ok()) return request.status().message().empty() ? "refused without a word" : "";
  const std::string& target = request->target;
  if (target.empty() || target[0] != '/') return "the target is no path: " + target;
  if (std::any_of(target.begin(), target.end(), [](char c) { return c <= ' ' || c >= 0x7F; }))
    return "the target has bytes that are none of a line";
  if (absl::StrCat(request->path(), request->query()) != target)
    return "path and query are not the target";
  const auto again = transport::ReadHttpRequest(
      absl::StrCat(request->head ? "HEAD " : "GET ", target, " HTTP/1.1\r\n\r\n"));
  if (!again.ok() || again->target != target || again->head != request->head)
    return "its own line is read otherwise";
  return "";
}

std::vector<std::string> Corpus() {
  return {"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
          "HEAD /healthz HTTP/1.0\r\n\r\n",
          "GET /api/stream?/api/jobs/job-1?x=%20 HTTP/1.1\r\n\r\n",
          "POST / HTTP/1.1\r\n\r\n",
          "GET http://a/ HTTP/1.1\r\n\r\n",
          "GET / HTTP/1.1\r\nhost : a\r\nHost: b\r\nHOST:c\r\n\r\n",
          "GET /\x1b[2J HTTP/1.1\r\n\r\n",
          "\r\n\r\n",
          ""};
}

}  // namespace phalanx::fuzz
