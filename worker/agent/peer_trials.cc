#include "worker/agent/peer_trials.h"

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

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
constexpr milliseconds kStopLookInterval{50};  // between two looks whether to stop
// Of a caller, and how many may be there: then whoever has been there longest goes.
constexpr milliseconds kPatience{1'000};
constexpr size_t kCallersMax = 16;

// The time that something has, and whether it is called off.
struct Limit {
  steady_clock::time_point end;
  const std::atomic<bool>& stopping;
};

// False: the time is over.
bool Await(int fd, short events, const Limit& limit) {
  while (!limit.stopping) {
    const auto left = std::chrono::ceil<milliseconds>(limit.end - steady_clock::now());
    if (left <= milliseconds::zero()) return false;
    pollfd one{fd, events, 0};
    if (poll(&one, 1, static_cast<int>(std::min(left, kStopLookInterval).count())) > 0) return true;
  }
  return false;
}

// On a connection that has been silent, which takes so little at once or is gone.
bool Say(int fd, absl::string_view text) {
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

enum class Heard : uint8_t { kMore, kAll, kElse };

// What can be read now, behind what was heard before: `expected`, its beginning, or something else.
Heard Hear(int fd, absl::string_view expected, std::string& heard) {
  std::array<char, kWordBytes> piece;
  const ssize_t count =
      recv(fd, piece.data(), std::min(piece.size(), expected.size() - heard.size()), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Heard::kMore;
  if (count <= 0) return Heard::kElse;
  heard.append(piece.data(), static_cast<size_t>(count));
  if (heard.size() < expected.size()) return Heard::kMore;
  return heard == expected ? Heard::kAll : Heard::kElse;
}

// Whether that is what comes.
bool Hears(int fd, absl::string_view expected, const Limit& limit) {
  std::string heard;
  while (Await(fd, POLLIN, limit)) {
    const Heard what = Hear(fd, expected, heard);
    if (what != Heard::kMore) return what == Heard::kAll;
  }
  return false;
}

struct Caller {
  UniqueFd fd;
  steady_clock::time_point since;
  std::string heard;
};

void Accept(int listening, std::deque<Caller>& callers) {
  UniqueFd fd(accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const bool full = !fd.is_open() && (errno == EMFILE || errno == ENFILE);
  // Else it would be tried again at once, for as long as somebody calls.
  if (full && callers.empty()) return std::this_thread::sleep_for(kStopLookInterval);
  if (full || callers.size() == kCallersMax) callers.pop_front();
  if (fd.is_open())
    callers.push_back({.fd = std::move(fd), .since = steady_clock::now(), .heard = ""});
}

// Until somebody has come who knows the word. Who calls and says nothing keeps nobody waiting.
void Serve(int listening, absl::string_view word, const Limit& limit) {
  std::deque<Caller> callers;  // the longest here first
  while (!limit.stopping) {
    const auto left = std::chrono::ceil<milliseconds>(limit.end - steady_clock::now());
    if (left <= milliseconds::zero()) return;
    std::vector<pollfd> polled;
    for (const Caller& caller : callers) polled.push_back({caller.fd.get(), POLLIN, 0});
    polled.push_back({listening, POLLIN, 0});
    const auto wait = static_cast<int>(std::min(left, kStopLookInterval).count());
    if (poll(polled.data(), polled.size(), wait) < 0) continue;
    std::deque<Caller> stay;
    for (size_t i = 0; i < callers.size(); ++i) {
      Caller& caller = callers[i];
      Heard heard = Heard::kMore;
      if (polled[i].revents != 0)
        heard = Hear(caller.fd.get(), word.substr(0, kWordBytes / 2), caller.heard);
      if (heard == Heard::kAll) {
        Say(caller.fd.get(), word.substr(kWordBytes / 2));
        return;
      }
      if (heard == Heard::kMore && steady_clock::now() - caller.since < kPatience)
        stay.push_back(std::move(caller));
    }
    callers = std::move(stay);
    if (polled.back().revents != 0) Accept(listening, callers);
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
