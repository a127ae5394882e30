#include "coordinator/net/open_peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

// The socket behind a descriptor; 0: none.
uint64_t SocketOf(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

// As gRPC writes it, which takes IPv4 within IPv6 for IPv4.
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
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const int port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", port);
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat("ipv6:%5B", text, "%5D:", port);
}

}  // namespace

void OpenPeers::Note(int fd) {
  std::string peer = PeerNameOf(fd);
  const Connection connection{fd, SocketOf(fd)};
  MutexLock lock(&mu_);
  std::string& before = by_fd_[fd];
  const auto old = by_peer_.find(before);
  if (old != by_peer_.end() && old->second.fd == fd) by_peer_.erase(old);
  by_peer_[peer] = connection;
  before = std::move(peer);
}

bool OpenPeers::IsOpen(const std::string& peer) const {
  MutexLock lock(&mu_);
  const auto found = by_peer_.find(peer);
  return found != by_peer_.end() && SocketOf(found->second.fd) == found->second.socket;
}

}  // namespace phalanx::coordinator
