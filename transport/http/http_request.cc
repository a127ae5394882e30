#include "transport/http/http_request.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "core/base/host_port.h"
#include "core/base/status.h"

namespace phalanx::transport {
namespace {

bool IsTarget(absl::string_view target) {
  return absl::StartsWith(target, "/") &&
         std::all_of(target.begin(), target.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

// Of the lines behind the first; nothing without one.
absl::StatusOr<std::string> ReadHost(absl::Span<const absl::string_view> lines) {
  std::optional<std::string> host;
  for (const absl::string_view line : lines) {
    if (line.empty()) break;
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (!absl::EqualsIgnoreCase(field.first, "host")) continue;
    if (host.has_value()) return absl::InvalidArgumentError("the request has two Hosts");
    host = std::string(absl::StripAsciiWhitespace(field.second));
  }
  return host.value_or("");
}

}  // namespace

absl::StatusOr<HttpRequest> ReadHttpRequest(absl::string_view bytes) {
  const std::vector<absl::string_view> lines = absl::StrSplit(bytes, "\r\n");
  const std::vector<absl::string_view> words = absl::StrSplit(lines.front(), ' ');
  if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/"))
    return absl::InvalidArgumentError("no HTTP request");
  if (words[0] != "GET" && words[0] != "HEAD") return absl::UnimplementedError("GET and HEAD only");
  if (!IsTarget(words[1])) {
    return absl::InvalidArgumentError(
        "the target of the request must begin with / and have printable characters alone");
  }
  ASSIGN_OR_RETURN(std::string host, ReadHost(absl::MakeConstSpan(lines).subspan(1)));
  return HttpRequest{
      .head = words[0] == "HEAD", .target = std::string(words[1]), .host = std::move(host)};
}

bool IsHostOfLoopback(absl::string_view host) {
  return IsLoopback(host) || IsLoopback(host.substr(0, host.rfind(':')));
}

}  // namespace phalanx::transport
