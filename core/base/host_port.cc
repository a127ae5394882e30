#include "core/base/host_port.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace phalanx {

namespace {

bool IsName(absl::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
  });
}

// "::1", "fe80::1%eth0".
bool IsIpv6(absl::string_view host) {
  const size_t percent = host.find('%');
  if (percent != absl::string_view::npos) {
    if (!IsName(host.substr(percent + 1))) return false;
    host = host.substr(0, percent);
  }
  in6_addr address;
  return inet_pton(AF_INET6, std::string(host).c_str(), &address) == 1;
}

bool IsBracketedIpv6(absl::string_view host) {
  return absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]") && IsIpv6(host);
}

}  // namespace

bool IsHost(absl::string_view text) { return IsName(text) || IsIpv6(text); }

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, int port_min) {
  constexpr int kPortMax = 65535;
  const size_t colon = text.rfind(':');
  const absl::string_view host = text.substr(0, colon);
  HostPort address;
  if (colon != absl::string_view::npos && !IsName(host) && !IsBracketedIpv6(host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", absl::Utf8SafeCHexEscape(text),
        "\": must be HOST:PORT, where HOST is a name, an IPv4 address or an IPv6 address in "
        "brackets such as [::1]"));
  }
  if (colon != absl::string_view::npos) {
    const absl::string_view digits = text.substr(colon + 1);
    const bool number = std::all_of(digits.begin(), digits.end(), [](char c) {
      return absl::ascii_isdigit(static_cast<unsigned char>(c));
    });
    if (number && absl::SimpleAtoi(digits, &address.port) && address.port >= port_min &&
        address.port <= kPortMax) {
      address.host = std::string(host);
      return address;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::Utf8SafeCHexEscape(text),
                                                 "\": must be HOST:PORT with a port from ",
                                                 port_min, " to ", kPortMax));
}

}  // namespace phalanx
