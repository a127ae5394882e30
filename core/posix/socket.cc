#include "core/posix/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace phalanx {
namespace {

constexpr int kBacklog = 1024;

// Of an address that is resolved; -1 with errno.
int ListenOn(const addrinfo& address) {
  UniqueFd fd(socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                     address.ai_protocol));
  const int yes = 1;
  // Not SO_REUSEPORT: two coordinators on one port would share its callers between them.
  if (fd.get() < 0 || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0) {
    return -1;
  }
  return fd.Release();
}

}  // namespace

absl::StatusOr<UniqueFd> Listen(const std::string& host, int port) {
  std::string name = host;
  if (absl::StartsWith(name, "[") && absl::EndsWith(name, "]")) {
    name = name.substr(1, name.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(name.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (code != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", host, ":", port, ": ", gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (const int fd = ListenOn(*address); fd >= 0) return UniqueFd(fd);
  }
  const int fault = errno;
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", host, ":", port, ": ", std::strerror(fault),
                   fault == EADDRINUSE ? "; stop what listens there, or take another port" : ""));
}

absl::StatusOr<UniqueFd> ListenAlso(int listening) {
  UniqueFd fd(fcntl(listening, F_DUPFD_CLOEXEC, 0));
  if (fd.is_open()) return fd;
  return absl::UnavailableError(absl::StrCat("cannot share a socket: ", std::strerror(errno)));
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

absl::StatusOr<std::string> AddressOf(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  std::array<char, NI_MAXHOST> host{};
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (getsockname(fd, generic, &bytes) != 0 ||
      getnameinfo(generic, bytes, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return absl::UnavailableError("a socket that listens has no address");
  }
  const bool six = address.ss_family == AF_INET6;
  return absl::StrCat(six ? "[" : "", host.data(), six ? "]:" : ":", PortOf(fd));
}

int DescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max()));
}

int RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return DescriptorLimit();
}

}  // namespace phalanx
