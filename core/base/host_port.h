// core/base/host_port.h: addresses as people write them. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx {

struct HostPort {
  std::string host;  // as it was written, "[::1]" with its brackets
  int port = 0;
};

// Whether `text` is a name, an IPv4 address or an IPv6 address without brackets. A name has at most
// 253 bytes in labels between dots, each of at most 63 letters, digits, '-' and '_' without a '-'
// at its ends; the last one is no number.
bool IsHost(absl::string_view text);

// "HOST:PORT". HOST is a name, an IPv4 address, or an IPv6 address in brackets. `port_min`: 0 where
// that means any free port, else 1. Errors: InvalidArgument, with the text and the rule.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, int port_min);

// Of a service that runs at several addresses.
inline constexpr size_t kAddressesMax = 16;
// "HOST:PORT[,HOST:PORT...]": each as it was written, at most kAddressesMax, none twice. Errors: as
// ParseHostPort.
absl::StatusOr<std::vector<std::string>> ParseHostPorts(absl::string_view text, int port_min);

// Whether only this machine reaches the host of a HostPort: localhost, 127.0.0.0/8 or [::1].
bool IsLoopback(absl::string_view host);

}  // namespace phalanx
