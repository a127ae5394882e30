#include "transport/http/http_request.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace phalanx::transport {
namespace {

bool IsTarget(absl::string_view target) {
  return absl::StartsWith(target, "/") &&
         std::all_of(target.begin(), target.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

}  // namespace

absl::StatusOr<HttpRequest> ReadHttpRequest(absl::string_view bytes) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(bytes.substr(0, bytes.find("\r\n")), ' ');
  if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/"))
    return absl::InvalidArgumentError("no HTTP request");
  if (words[0] != "GET" && words[0] != "HEAD") return absl::UnimplementedError("GET and HEAD only");
  if (!IsTarget(words[1])) {
    return absl::InvalidArgumentError(
        "the target of the request must begin with / and have printable characters alone");
  }
  return HttpRequest{.head = words[0] == "HEAD", .target = std::string(words[1])};
}

}  // namespace phalanx::transport
