#include "coordinator/net/open_peers.h"

#include <sys/stat.h>

#include <utility>

#include "core/posix/peer_name.h"

namespace phalanx::coordinator {

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

bool OpenPeers::IsOpen(const std::string& peer) const {
  MutexLock lock(&mu_);
  const auto found = by_peer_.find(peer);
  return found != by_peer_.end() && SocketOf(found->second.fd) == found->second.socket;
}

}  // namespace phalanx::coordinator
