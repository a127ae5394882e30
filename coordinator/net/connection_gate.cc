#include "coordinator/net/connection_gate.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>
#include <vector>

#include "coordinator/net/open_peers.h"

namespace phalanx::coordinator {
namespace {

struct Silence {
  absl::Duration length;
  bool mute = false;  // nothing was ever heard
};
Silence SilenceOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  const bool counts = size >= offsetof(tcp_info, tcpi_bytes_received) + sizeof(uint64_t);
  return {.length = absl::Milliseconds(info.tcpi_last_data_recv),
          .mute = counts && info.tcpi_bytes_received == 0};
}

UniqueFd OpenSpare() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Open(
    UniqueFd listening, GateOptions options, std::function<void(int, int)> take) {
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (stop.get() < 0) return absl::UnavailableError("cannot make an eventfd");
  return std::unique_ptr<ConnectionGate>(
      new ConnectionGate(std::move(listening), std::move(stop), options, std::move(take)));
}

ConnectionGate::ConnectionGate(UniqueFd listening, UniqueFd stop, GateOptions options,
                               std::function<void(int, int)> take)
    : listening_(std::move(listening)),
      stop_(std::move(stop)),
      options_(options),
      take_(std::move(take)),
      spare_(OpenSpare()),
      thread_([this] { Run(); }) {}

ConnectionGate::~ConnectionGate() {
  const uint64_t one = 1;
  static_cast<void>(!write(stop_.get(), &one, sizeof(one)));
  thread_.join();
}

void ConnectionGate::Run() {
  pthread_setname_np(pthread_self(), "accept");
  while (true) {
    pollfd fds[] = {{listening_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    if (fds[0].revents != 0) AcceptAll();
  }
}

void ConnectionGate::AcceptAll() {
  while (true) {
    UniqueFd connection(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection.get() >= 0) {
      Admit(std::move(connection));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EMFILE && errno != ENFILE) return;  // there is none, or the network fails
    // Others have taken every descriptor: the caller is turned away rather than left waiting.
    spare_ = {};
    const UniqueFd refused(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ShutDownSilent();
    if (refused.get() < 0) {
      spare_ = OpenSpare();
      return;
    }
    spare_ = {};
  }
}

void ConnectionGate::Admit(UniqueFd connection) {
  if (spare_.get() < 0) spare_ = OpenSpare();
  // Descriptors are given lowest first, so a high one says that few are left.
  const bool full = connection.get() >= DescriptorLimit() - options_.reserved_descriptors;
  if (full && !ShutDownSilent()) return;
  const int yes = 1;
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  const int fd = connection.Release();
  taken_[fd] = SocketOf(fd);
  take_(listening_.get(), fd);
}

bool ConnectionGate::ShutDownSilent() {
  std::vector<std::pair<absl::Duration, int>> silent;
  for (auto it = taken_.begin(); it != taken_.end();) {
    if (SocketOf(it->first) != it->second) {
      it = taken_.erase(it);
      continue;
    }
    const Silence silence = SilenceOf(it->first);
    const absl::Duration min = silence.mute ? options_.mute_min : options_.silence_min;
    if (silence.length >= min) silent.emplace_back(silence.length, it->first);
    ++it;
  }
  const size_t count = std::min(silent.size(), taken_.size() / 8 + 1);
  std::partial_sort(silent.begin(), silent.begin() + static_cast<std::ptrdiff_t>(count),
                    silent.end(), std::greater<>());
  for (size_t i = 0; i < count; ++i) {
    // Its server sees the end of the connection and closes it.
    shutdown(silent[i].second, SHUT_RDWR);
    taken_.erase(silent[i].second);
  }
  return count != 0;
}

}  // namespace phalanx::coordinator
