#include "core/posix/peer_name.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace phalanx {

std::string PeerNameOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const int port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", port);
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat("ipv6:%5B", text, "%5D:", port);
}

std::string NetworkOf(absl::string_view peer) {
  absl::string_view address = peer.substr(0, peer.rfind(':'));
  if (absl::ConsumePrefix(&address, "ipv4:")) return std::string(address);
  in6_addr whole{};
  if (!absl::ConsumePrefix(&address, "ipv6:%5B") || !absl::ConsumeSuffix(&address, "%5D") ||
      inet_pton(AF_INET6, std::string(address.substr(0, address.find('%'))).c_str(), &whole) != 1)
    return std::string(peer);
  std::memset(&whole.s6_addr[8], 0, 8);
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, &whole, text, sizeof(text));
  return absl::StrCat(text, "/64");
}

}  // namespace phalanx
