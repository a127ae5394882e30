// core/posix/peer_name.h: who is at the other end of a socket.
#pragma once

#include <string>

namespace phalanx {

// As gRPC writes it, which takes IPv4 within IPv6 for IPv4: "ipv4:127.0.0.1:4444",
// "ipv6:%5B::1%5D:4444". Empty: no socket of these, or not connected. Thread-safe.
std::string PeerNameOf(int fd);

}  // namespace phalanx
