#include "coordinator/net/open_peers.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/time/clock.h"
#include "core/posix/peer_name.h"
#include "core/posix/waker.h"

namespace phalanx::coordinator {
namespace {

// For the server to close connections, which takes it some milliseconds.
constexpr absl::Duration kClosingTime = absl::Milliseconds(500);
// It tells nobody when it has closed one.
constexpr absl::Duration kLookInterval = absl::Milliseconds(1);

}  // namespace

uint64_t SocketOf(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

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

int OpenPeers::FdOfLocked(const std::string& peer) const {
  const auto found = by_peer_.find(peer);
  const bool open = found != by_peer_.end() && SocketOf(found->second.fd) == found->second.socket;
  return open ? found->second.fd : -1;
}

bool OpenPeers::IsOpen(const std::string& peer) const {
  MutexLock lock(&mu_);
  return FdOfLocked(peer) >= 0;
}

int64_t OpenPeers::BytesFrom(const std::string& peer) const {
  MutexLock lock(&mu_);
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(FdOfLocked(peer), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  // The server may have closed the descriptor since, and another connection have it.
  if (FdOfLocked(peer) < 0) return 0;
  const bool counts = size >= offsetof(tcp_info, tcpi_bytes_received) + sizeof(uint64_t);
  return counts ? static_cast<int64_t>(info.tcpi_bytes_received) : 0;
}

void OpenPeers::End(const std::string& peer) {
  MutexLock lock(&mu_);
  // As in ShutDownAll.
  if (const int fd = FdOfLocked(peer); fd >= 0) shutdown(fd, SHUT_RDWR);
}

void OpenPeers::EndAll() {
  ShutDownAll(SHUT_RD);
  if (AwaitNone()) return;
  // A caller that does not read holds up what is being written, and nothing is closed before that.
  ShutDownAll(SHUT_RDWR);
  AwaitNone();
}

void OpenPeers::ShutDownAll(int how) {
  MutexLock lock(&mu_);
  for (const auto& [peer, connection] : by_peer_) {
    // Where the server closes it in that moment another socket of this process may lose its peer.
    if (SocketOf(connection.fd) == connection.socket) shutdown(connection.fd, how);
  }
}

bool OpenPeers::AnyOpen() const {
  MutexLock lock(&mu_);
  return std::any_of(by_peer_.begin(), by_peer_.end(), [](const auto& entry) {
    return SocketOf(entry.second.fd) == entry.second.socket;
  });
}

bool OpenPeers::AwaitNone() const {
  const SteadyTime start = SteadyNow();
  while (AnyOpen()) {
    if (Since(start) >= kClosingTime) return false;
    absl::SleepFor(kLookInterval);
  }
  return true;
}

}  // namespace phalanx::coordinator
