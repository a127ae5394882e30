// coordinator/net/socket.h: descriptors that close themselves, and sockets that listen.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace phalanx::coordinator {

// Not thread-safe.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// A non-blocking socket that listens on host and port (0: any free one); the first address of the
// host that can be listened on. Errors: Unavailable.
absl::StatusOr<UniqueFd> Listen(const std::string& host, int port);

// The port that a socket is bound to.
int PortOf(int fd);

// Raises this process's soft limit of open descriptors to the hard one. Returns the limit.
int RaiseDescriptorLimit();
int DescriptorLimit();

}  // namespace phalanx::coordinator
