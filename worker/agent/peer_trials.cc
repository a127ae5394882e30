#include "worker/agent/peer_trials.h"

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/host_port.h"
#include "core/base/status.h"
#include "core/posix/socket.h"
#include "core/posix/unique_fd.h"

namespace phalanx::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kWordBytes = 32;
constexpr milliseconds kLookInterval{50};  // between two looks whether to stop
// Of a caller, of whom there is one at a time.
constexpr absl::Duration kPatience = absl::Seconds(1);

// The time that something has, and whether it is called off.
struct Limit {
  steady_clock::time_point end;
  const std::atomic<bool>& stopping;
  Limit Within(absl::Duration time) const {
    return {std::min(end, steady_clock::now() + absl::ToChronoMilliseconds(time)), stopping};
  }
};

// False: the time is over.
bool Await(int fd, short events, const Limit& limit) {
  while (!limit.stopping) {
    const auto left = std::chrono::ceil<milliseconds>(limit.end - steady_clock::now());
    if (left <= milliseconds::zero()) return false;
    pollfd one{fd, events, 0};
    if (poll(&one, 1, static_cast<int>(std::min(left, kLookInterval).count())) > 0) return true;
  }
  return false;
}

// On a connection that has been silent, which takes so little at once or is gone.
bool Say(int fd, absl::string_view text) {
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

// Whether that is what comes.
bool Hears(int fd, absl::string_view expected, const Limit& limit) {
  std::string heard;
  while (heard.size() < expected.size()) {
    if (!Await(fd, POLLIN, limit)) return false;
    std::array<char, kWordBytes> piece;
    const ssize_t count =
        recv(fd, piece.data(), std::min(piece.size(), expected.size() - heard.size()), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) return false;
    heard.append(piece.data(), static_cast<size_t>(count));
  }
  return heard == expected;
}

// Until somebody has come who knows the word.
void Serve(int listening, absl::string_view word, const Limit& limit) {
  while (Await(listening, POLLIN, limit)) {
    const UniqueFd caller(accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!caller.is_open()) continue;
    if (!Hears(caller.get(), word.substr(0, kWordBytes / 2), limit.Within(kPatience))) continue;
    Say(caller.get(), word.substr(kWordBytes / 2));
    return;
  }
}

absl::Status Unreached(int error) { return absl::UnavailableError(std::strerror(error)); }

// Errors: Unavailable, InvalidArgument.
absl::Status Connect(const std::string& peer, absl::string_view word, absl::Duration time,
                     const std::atomic<bool>& stopping) {
  const Limit limit{steady_clock::now() + absl::ToChronoMilliseconds(time), stopping};
  const absl::StatusOr<HostPort> place = ParseHostPort(peer, 1);
  RETURN_IF_ERROR(place.status());
  absl::string_view in_brackets = place->host;
  if (absl::ConsumePrefix(&in_brackets, "[")) absl::ConsumeSuffix(&in_brackets, "]");
  const std::string host(in_brackets);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), absl::StrCat(place->port).c_str(), &hints, &found);
      code != 0) {
    return absl::InvalidArgumentError(absl::StrCat(peer, ": ", gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  const UniqueFd fd(socket(found->ai_family, found->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return Unreached(errno);
  const std::string silence = absl::StrCat("no answer within ", absl::FormatDuration(time));
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return Unreached(errno);
    if (!Await(fd.get(), POLLOUT, limit)) return absl::UnavailableError(silence);
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0) return Unreached(error);
  }
  if (Say(fd.get(), word.substr(0, kWordBytes / 2)) &&
      Hears(fd.get(), word.substr(kWordBytes / 2), limit)) {
    return absl::OkStatus();
  }
  if (steady_clock::now() >= limit.end) return absl::UnavailableError(silence);
  return absl::UnavailableError("something else than the node's worker answers there");
}

bool IsWord(absl::string_view word) {
  return word.size() == kWordBytes && std::all_of(word.begin(), word.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

void PeerTrials::Start(const TryPeer& order) {
  trials_.remove_if([](const Trial& trial) { return trial.done.load(); });
  absl::Status refusal;
  if (!IsWord(order.word)) {
    refusal = absl::InvalidArgumentError("word: must be 32 bytes of 0-9 and a-f");
  } else if (trials_.size() >= kTrialsMax) {
    refusal = absl::ResourceExhaustedError(
        absl::StrCat(trials_.size(), " trials are under way on this node; try again"));
  }
  if (!refusal.ok()) {
    inbox_.Post(
        PeerTried{.command_number = order.command_number, .of = order.of, .status = refusal});
    return;
  }
  Trial& trial = trials_.emplace_back();
  trial.thread = std::jthread([this, &trial, order] {
    pthread_setname_np(pthread_self(), "peer-trial");
    Run(order);
    trial.done = true;
  });
}

void PeerTrials::Run(const TryPeer& order) {
  PeerTried tried{.command_number = order.command_number, .of = order.of};
  if (!order.peer.empty()) {
    tried.status = Connect(order.peer, order.word, options_.connect_time, stopping_);
    return inbox_.Post(std::move(tried));
  }
  const absl::StatusOr<UniqueFd> listening = Listen(options_.address, 0);
  const absl::StatusOr<std::string> address = listening.ok()
                                                  ? AddressOf(listening->get())
                                                  : absl::StatusOr<std::string>(listening.status());
  tried.status = address.status();
  if (address.ok()) tried.listens_at = *address;
  inbox_.Post(std::move(tried));
  if (!address.ok()) return;
  const Limit limit{steady_clock::now() + absl::ToChronoMilliseconds(options_.listen_time),
                    stopping_};
  Serve(listening->get(), order.word, limit);
}

bool PeerTrials::busy() const {
  return std::any_of(trials_.begin(), trials_.end(),
                     [](const Trial& trial) { return !trial.done.load(); });
}

}  // namespace phalanx::agent
