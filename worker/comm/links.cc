#include "worker/comm/links.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/host_port.h"
#include "core/base/status.h"
#include "core/posix/peer_name.h"
#include "core/posix/socket.h"
#include "worker/comm/link_proof.h"

namespace phalanx::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr char kWelcome[] = "W";
// Between two looks whether to stop, and before a call that lost its place is made again.
constexpr milliseconds kLookInterval{20}, kCallAgain{10};
// New ones are let in few at a time, so that those who are here get on however many come.
constexpr int kAcceptedAtOnce = 16;

enum class Heard : uint8_t { kMore, kAll, kGone };

// Never reads past `bytes`: what follows is not for us.
Heard Hear(int fd, size_t bytes, std::string& text) {
  std::array<char, kLinkHelloBytes + 2 * kLinkWordBytes> piece;
  const ssize_t count = recv(fd, piece.data(), std::min(piece.size(), bytes - text.size()), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Heard::kMore;
  if (count <= 0) return Heard::kGone;
  text.append(piece.data(), static_cast<size_t>(count));
  return text.size() == bytes ? Heard::kAll : Heard::kMore;
}

// On a connection that has been silent, which takes so little at once or is gone.
bool Say(int fd, absl::string_view text) {
  return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

struct Announcement {
  std::string secret, address, host;  // host: of the address, without brackets
  int port = 0;
};

// Of a rank that others call: its secret, and then where. Errors: Internal.
absl::StatusOr<Announcement> ParseAnnouncement(int32_t rank, const std::string& text) {
  if (text.size() > kLinkWordBytes) {
    Announcement announced{.secret = text.substr(0, kLinkWordBytes),
                           .address = text.substr(kLinkWordBytes)};
    if (const auto place = ParseHostPort(announced.address, 1); place.ok()) {
      announced.host = std::string(absl::StripSuffix(absl::StripPrefix(place->host, "["), "]"));
      announced.port = place->port;
      return announced;
    }
  }
  return absl::InternalError(absl::StrCat("rank ", rank, " announces ", text.size(),
                                          " bytes that are no secret and address"));
}

// Where ranks above this one call.
class Door {
 public:
  Door(int32_t self, absl::Span<const int32_t> peers) : self_(self) {
    for (const int32_t peer : peers) {
      if (peer > self) awaited_.push_back(peer);
    }
  }

  // Errors: Unavailable.
  absl::Status Open(const std::string& host) {
    if (awaited_.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(listening_, Listen(host, 0));
    ASSIGN_OR_RETURN(const std::string address, AddressOf(listening_.get()));
    announcement_ = absl::StrCat(secret_, address);
    return absl::OkStatus();
  }
  // Empty: nobody calls.
  const std::string& announcement() const { return announcement_; }
  const std::vector<int32_t>& awaited() const { return awaited_; }

  void AddTo(std::vector<pollfd>& polled) const {
    if (!listening_.is_open()) return;
    for (const Caller& caller : callers_) polled.push_back({caller.fd.get(), POLLIN, 0});
    polled.push_back({listening_.get(), POLLIN, 0});
  }
  // `polled`: what AddTo has added, and poll() has answered.
  void Serve(absl::Span<const pollfd> polled, std::map<int32_t, UniqueFd>& links) {
    if (polled.empty()) return;
    const auto now = steady_clock::now();
    std::deque<Caller> stay;
    for (size_t i = 0; i < callers_.size(); ++i) {
      Caller& caller = callers_[i];
      const Answer answer = polled[i].revents == 0 ? Answer::kStays : HearFrom(caller);
      if (answer == Answer::kProved) {
        links[caller.rank] = std::move(caller.fd);
      } else if (answer == Answer::kRefused || now - caller.since > kPatience) {
        Refuse(caller);
      } else if (answer == Answer::kLeft) {
        continue;
      } else {
        stay.push_back(std::move(caller));
      }
    }
    callers_ = std::move(stay);
    if (polled.back().revents != 0) Accept();
  }

  // With those who are still here and have not greeted where `all_met`: else peers are among them.
  int64_t refused(bool all_met) const {
    const auto silent = [](const Caller& caller) { return caller.hello.empty(); };
    return refused_ + (all_met ? std::count_if(callers_.begin(), callers_.end(), silent) : 0);
  }
  const std::string& last_refused() const { return last_refused_; }

 private:
  struct Caller {
    UniqueFd fd;
    steady_clock::time_point since;
    std::string heard, hello, drawn;  // hello: empty until it is whole
    int32_t rank = 0;                 // that it says to be
  };
  enum class Answer : uint8_t { kStays, kProved, kRefused, kLeft };
  static constexpr auto kPatience = milliseconds(5'000);
  static_assert(kProofTimeout == absl::Seconds(5));

  Answer HearFrom(Caller& caller) {
    const bool greets = caller.hello.empty();
    switch (Hear(caller.fd.get(), greets ? kLinkHelloBytes : kLinkWordBytes, caller.heard)) {
      case Heard::kMore:
        return Answer::kStays;
      case Heard::kGone:
        // Who greeted as a peer is likely one whose epoch or process has ended.
        return greets ? Answer::kRefused : Answer::kLeft;
      case Heard::kAll:
        return greets ? Greet(caller) : Judge(caller);
    }
    return Answer::kRefused;
  }
  Answer Greet(Caller& caller) {
    caller.hello = std::exchange(caller.heard, "");
    const std::optional<LinkHello> hello = ParseLinkHello(caller.hello);
    if (!hello.has_value() || hello->listener != self_ ||
        std::find(awaited_.begin(), awaited_.end(), hello->caller) == awaited_.end()) {
      return Answer::kRefused;
    }
    caller.rank = hello->caller;
    caller.drawn = DrawLinkWord();
    const std::string proof = LinkProof(secret_, LinkEnd::kListener, caller.hello, caller.drawn);
    return Say(caller.fd.get(), caller.drawn + proof) ? Answer::kStays : Answer::kRefused;
  }
  Answer Judge(const Caller& caller) {
    const bool same =
        IsSameProof(caller.heard, LinkProof(secret_, LinkEnd::kCaller, caller.hello, caller.drawn));
    return same && Say(caller.fd.get(), kWelcome) ? Answer::kProved : Answer::kRefused;
  }

  void Accept() {
    for (int i = 0; i < kAcceptedAtOnce; ++i) {
      UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      const bool full = !fd.is_open() && (errno == EMFILE || errno == ENFILE);
      if (!fd.is_open() && (!full || callers_.empty())) return;
      if (full || callers_.size() == kCallersMax) {
        Refuse(callers_.front());
        callers_.pop_front();
      }
      if (!full) callers_.push_back({.fd = std::move(fd), .since = steady_clock::now()});
    }
  }
  void Refuse(const Caller& caller) {
    ++refused_;
    if (std::string name = PeerNameOf(caller.fd.get()); !name.empty())
      last_refused_ = std::move(name);
  }

  const int32_t self_;
  const std::string secret_ = DrawLinkWord();
  std::vector<int32_t> awaited_;
  std::string announcement_;
  UniqueFd listening_;
  std::deque<Caller> callers_;  // the longest here first
  int64_t refused_ = 0;
  std::string last_refused_ = "somebody who has gone";
};

// Of this rank to one below.
class Call {
 public:
  Call(int32_t self, int32_t peer, Announcement announced)
      : self_(self), peer_(peer), announced_(std::move(announced)) {}

  int32_t peer() const { return peer_; }
  pollfd polled() const {
    const auto events = static_cast<short>(stage_ == Stage::kConnecting ? POLLOUT : POLLIN);
    return {fd_.get(), events, 0};  // poll() passes over one that is not open
  }
  // Makes the connection where there is none. Errors: Unavailable.
  absl::Status Begin() {
    if (fd_.is_open() || steady_clock::now() < again_) return absl::OkStatus();
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const int code =
        getaddrinfo(announced_.host.c_str(), absl::StrCat(announced_.port).c_str(), &hints, &found);
    if (code != 0) return Unreached(gai_strerror(code));
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
    fd_.reset(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_.is_open()) return Unreached(std::strerror(errno));
    stage_ = Stage::kConnecting;
    if (connect(fd_.get(), found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS)
      return absl::OkStatus();
    return Unreached(std::strerror(errno));
  }
  // What poll() has found. The connection, once the other end has let this one in. Errors:
  // Unavailable.
  absl::StatusOr<std::optional<UniqueFd>> Continue() {
    if (stage_ == Stage::kConnecting) {
      RETURN_IF_ERROR(Greet());
      return std::nullopt;
    }
    const bool welcome = stage_ == Stage::kWelcome;
    switch (Hear(fd_.get(), welcome ? 1 : 2 * kLinkWordBytes, heard_)) {
      case Heard::kMore:
        return std::nullopt;
      case Heard::kGone:
        Again();
        return std::nullopt;
      case Heard::kAll:
        break;
    }
    if (welcome) return std::move(fd_);
    RETURN_IF_ERROR(Answer());
    return std::nullopt;
  }

 private:
  enum class Stage : uint8_t { kConnecting, kChallenge, kWelcome };

  absl::Status Unreached(absl::string_view why) const {
    return absl::UnavailableError(
        absl::StrCat("rank ", peer_, " at ", announced_.address, ": ", why));
  }
  // The other end had too many callers, or has ended: then the next call finds nobody.
  void Again() {
    fd_.reset();
    again_ = steady_clock::now() + kCallAgain;
  }
  absl::Status Greet() {
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0) return Unreached(std::strerror(error));
    hello_ = ToText({.caller = self_, .listener = peer_, .drawn = DrawLinkWord()});
    heard_.clear();
    stage_ = Stage::kChallenge;
    if (!Say(fd_.get(), hello_)) Again();
    return absl::OkStatus();
  }
  absl::Status Answer() {
    const std::string heard = std::exchange(heard_, "");
    const std::string drawn = heard.substr(0, kLinkWordBytes);
    if (!IsSameProof(heard.substr(kLinkWordBytes),
                     LinkProof(announced_.secret, LinkEnd::kListener, hello_, drawn))) {
      return Unreached("whoever answers there does not know the secret of that rank");
    }
    stage_ = Stage::kWelcome;
    if (!Say(fd_.get(), LinkProof(announced_.secret, LinkEnd::kCaller, hello_, drawn))) Again();
    return absl::OkStatus();
  }

  int32_t self_, peer_;
  Announcement announced_;
  UniqueFd fd_;
  Stage stage_ = Stage::kConnecting;
  steady_clock::time_point again_{};
  std::string hello_, heard_;
};

// Both sides at once, in the calling thread.
absl::StatusOr<std::map<int32_t, UniqueFd>> Connect(Door& door, std::vector<Call> calls,
                                                    Deadline deadline,
                                                    const std::stop_token& stop) {
  std::map<int32_t, UniqueFd> links;
  const size_t count = door.awaited().size() + calls.size();
  while (links.size() < count) {
    if (stop.stop_requested()) return absl::CancelledError("asked to stop while connecting");
    if (steady_clock::now() >= deadline) {
      std::vector<int32_t> missing = door.awaited();
      for (const Call& call : calls) missing.push_back(call.peer());
      std::erase_if(missing, [&links](int32_t peer) { return links.contains(peer); });
      return absl::UnavailableError(
          absl::StrCat("no connection in time with rank ", absl::StrJoin(missing, ", ")));
    }
    std::vector<pollfd> polled;
    door.AddTo(polled);
    const size_t at_door = polled.size();
    for (Call& call : calls) {
      RETURN_IF_ERROR(call.Begin());
      polled.push_back(call.polled());
    }
    const int ready = poll(polled.data(), polled.size(), static_cast<int>(kLookInterval.count()));
    if (ready < 0) continue;  // a signal
    door.Serve(absl::MakeConstSpan(polled).subspan(0, at_door), links);
    for (size_t i = 0; i < calls.size(); ++i) {
      if (polled[at_door + i].revents == 0) continue;
      ASSIGN_OR_RETURN(std::optional<UniqueFd> made, calls[i].Continue());
      if (made.has_value()) links[calls[i].peer()] = *std::move(made);
    }
    std::erase_if(calls, [&links](const Call& call) { return links.contains(call.peer()); });
  }
  return links;
}

}  // namespace

absl::StatusOr<std::map<int32_t, UniqueFd>> ConnectLinks(int32_t self,
                                                         absl::Span<const int32_t> peers,
                                                         Rendezvous& rendezvous,
                                                         const WorldOptions& options) {
  const Deadline deadline = DeadlineIn(options.setup_timeout);
  const auto key = [](int32_t rank) { return absl::StrCat("links/", rank); };
  Door door(self, peers);
  RETURN_IF_ERROR(door.Open(options.interface_address));
  RETURN_IF_ERROR(rendezvous.Put(key(self), door.announcement()));
  std::vector<Call> calls;
  for (const int32_t peer : peers) {
    ASSIGN_OR_RETURN(const std::string said, rendezvous.GetFrom(Rank{peer}, key(peer), deadline));
    if (peer > self) continue;
    ASSIGN_OR_RETURN(Announcement announced, ParseAnnouncement(peer, said));
    calls.emplace_back(self, peer, std::move(announced));
  }
  auto links = Connect(door, std::move(calls), deadline, options.stop);
  if (const int64_t refused = door.refused(links.ok()); refused > 0 && options.strangers)
    options.strangers(refused, door.last_refused());
  return links;
}

}  // namespace phalanx::comm
