#include "core/base/host_port.h"

#include <arpa/inet.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace phalanx {

namespace {

constexpr size_t kNameBytesMax = 253, kLabelBytesMax = 63;  // of DNS

// Whether all of it are letters, digits, '-', '_' and '.'.
bool IsWord(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
  });
}

// Between dots.
bool IsLabel(absl::string_view label) {
  return IsWord(label) && label.size() <= kLabelBytesMax && label.front() != '-' &&
         label.back() != '-';
}

bool IsNumber(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
}

// A host whose last label is a number can only be an address.
bool IsName(absl::string_view host) {
  // A dot at the end: a name from the root.
  const std::vector<absl::string_view> labels = absl::StrSplit(absl::StripSuffix(host, "."), '.');
  if (IsNumber(labels.back())) {
    in_addr address;
    return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1;
  }
  return host.size() <= kNameBytesMax && std::all_of(labels.begin(), labels.end(), IsLabel);
}

// "::1", "fe80::1%eth0.7".
bool IsIpv6(absl::string_view host) {
  const size_t percent = host.find('%');
  if (percent != absl::string_view::npos) {
    if (!IsWord(host.substr(percent + 1))) return false;
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
    if (IsNumber(digits) && absl::SimpleAtoi(digits, &address.port) && address.port >= port_min &&
        address.port <= kPortMax) {
      address.host = std::string(host);
      return address;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::Utf8SafeCHexEscape(text),
                                                 "\": must be HOST:PORT with a port from ",
                                                 port_min, " to ", kPortMax));
}

absl::StatusOr<std::vector<std::string>> ParseHostPorts(absl::string_view text, int port_min) {
  std::vector<std::string> addresses = absl::StrSplit(text, ',');
  for (size_t i = 0; i < addresses.size(); ++i) {
    const absl::StatusOr<HostPort> address = ParseHostPort(addresses[i], port_min);
    if (!address.ok()) return address.status();
    if (std::find(addresses.begin(), addresses.begin() + static_cast<std::ptrdiff_t>(i),
                  addresses[i]) != addresses.begin() + static_cast<std::ptrdiff_t>(i)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", addresses[i], "\": must be there once"));
    }
  }
  if (addresses.size() <= kAddressesMax) return addresses;
  return absl::InvalidArgumentError(absl::StrCat(addresses.size(), " addresses: must be at most ",
                                                 kAddressesMax, " between commas"));
}

bool IsLoopback(absl::string_view host) {
  in_addr address;
  const bool is_ipv4 = inet_pton(AF_INET, std::string(host).c_str(), &address) == 1;
  return absl::EqualsIgnoreCase(host, "localhost") || host == "[::1]" ||
         (is_ipv4 && absl::StartsWith(host, "127."));
}

}  // namespace phalanx
