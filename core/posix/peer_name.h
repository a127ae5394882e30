// core/posix/peer_name.h: who is at the other end of a socket.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace phalanx {

// As gRPC writes it, which takes IPv4 within IPv6 for IPv4: "ipv4:127.0.0.1:4444",
// "ipv6:%5B::1%5D:4444". Empty: no socket of these, or not connected. Thread-safe.
std::string PeerNameOf(int fd);

// Of such a name, whom to count as one where nothing else of a caller is known: "127.0.0.1", or of
// IPv6 the network of 64 bits, "2001:db8::/64", as one machine may have every address of it.
// Another name stands for itself. Thread-safe.
std::string NetworkOf(absl::string_view peer);

}  // namespace phalanx
