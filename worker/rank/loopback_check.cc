#include "worker/rank/loopback_check.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/posix/unique_fd.h"

namespace phalanx::rank {
namespace {

constexpr size_t kBytes = size_t{32} << 20, kPieceBytes = size_t{64} << 10;
constexpr int kRoundTrips = 200;
constexpr timeval kPatience = {.tv_sec = 5, .tv_usec = 0};
constexpr double kSlowBytesPerSecond = 100e6;

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

struct Pair {
  UniqueFd here, there;
};

void Configure(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
}

absl::StatusOr<Pair> Connect() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Pair pair;
  pair.here.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.is_open() || !pair.here.is_open()) return SystemError("socket");
  Configure(listener.get());
  Configure(pair.here.get());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), generic, size) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), generic, &size) != 0 ||
      connect(pair.here.get(), generic, size) != 0) {
    return SystemError("127.0.0.1");
  }
  pair.there.reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!pair.there.is_open()) return SystemError("accept");
  Configure(pair.there.get());
  return pair;
}

bool SendAll(int fd, size_t bytes) {
  const std::vector<char> piece(std::min(bytes, kPieceBytes));
  while (bytes > 0) {
    const ssize_t n = send(fd, piece.data(), std::min(bytes, piece.size()), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool ReceiveAll(int fd, size_t bytes) {
  std::vector<char> piece(std::min(bytes, kPieceBytes));
  while (bytes > 0) {
    const ssize_t n = recv(fd, piece.data(), std::min(bytes, piece.size()), 0);
    if (n <= 0) return false;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

absl::Status Measure(job::LoopbackCheck& check) {
  ASSIGN_OR_RETURN(const Pair pair, Connect());
  // Takes it all, says so, and then gives every byte back.
  std::jthread other([fd = pair.there.get()] {
    bool sound = ReceiveAll(fd, kBytes) && SendAll(fd, 1);
    for (int i = 0; sound && i < kRoundTrips; ++i) sound = ReceiveAll(fd, 1) && SendAll(fd, 1);
  });
  const int fd = pair.here.get();
  const absl::Time begin = absl::Now();
  const bool sent = SendAll(fd, kBytes) && ReceiveAll(fd, 1);
  const absl::Time middle = absl::Now();
  bool answered = sent;
  for (int i = 0; answered && i < kRoundTrips; ++i) answered = SendAll(fd, 1) && ReceiveAll(fd, 1);
  const absl::Time end = absl::Now();
  if (!answered) {
    shutdown(fd, SHUT_RDWR);
    return absl::UnavailableError("a connection to 127.0.0.1 stood still or broke");
  }
  check.bytes_per_second = kBytes / std::max(absl::ToDoubleSeconds(middle - begin), 1e-9);
  check.round_trip_seconds = absl::ToDoubleSeconds(end - middle) / kRoundTrips;
  return absl::OkStatus();
}

}  // namespace

job::LoopbackCheck CheckLoopback() {
  job::LoopbackCheck check;
  const absl::Status status = Measure(check);
  if (!status.ok()) {
    check.reason = absl::StrCat("not measured: ", status.message());
  } else if (check.bytes_per_second < kSlowBytesPerSecond) {
    check.reason = absl::StrFormat("at %.0f MB/s, below %.0f MB/s", check.bytes_per_second / 1e6,
                                   kSlowBytesPerSecond / 1e6);
  }
  return check;
}

}  // namespace phalanx::rank
