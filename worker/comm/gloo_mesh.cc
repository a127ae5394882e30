#include "worker/comm/gloo_mesh.h"

#include <fcntl.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/posix/unique_fd.h"
#include "worker/comm/links.h"

namespace phalanx::comm {
namespace {

namespace tcp = ::gloo::transport::tcp;
using GlooContext = ::gloo::transport::Context;

// Gloo adds its timeouts to a clock, so they must not be the largest.
constexpr absl::Duration kTimeoutMax = absl::Hours(24 * 365);

// Gloo's pair, which throws in Gloo's thread when something is wrong with a connection, say when
// its peer is gone before it is asked for its name. Nobody catches that there. And a message whose
// buffer is gone, as that of a wait that was woken is, stops all that comes behind it there: it
// would neither be read nor written, nor would the end of the connection be seen. Here it is
// dropped; of one that was begun to be written the rest is kept, for the peer can take nothing else
// for it: what the message ends with must not be made up, and a connection that broke instead would
// tell of the death of this rank where a farewell behind the message says why it leaves.
class CatchingPair final : public tcp::Pair {
 public:
  // `anybody`: the first that connects is the peer.
  CatchingPair(tcp::Context* context, tcp::Device* device, int rank,
               std::chrono::milliseconds timeout, bool anybody)
      : tcp::Pair(context, device, rank, timeout), anybody_(anybody) {}

  // Takes a connection that is made in place of the socket on which the pair would wait for
  // anybody's. Throws what Gloo throws.
  void Take(const UniqueFd& made) {
    const std::lock_guard lock(m_);
    throwIfException();
    if (state_ != LISTENING) throw std::runtime_error("somebody was faster than a peer");
    // What listened is closed by that, and Gloo's loop forgets it.
    if (dup3(made.get(), fd_, O_CLOEXEC) < 0)
      throw std::system_error(errno, std::generic_category(), "dup3");
    try {
      handleConnected();
    } catch (...) {
      CloseUnregistered();
      throw;
    }
  }

  // Before the buffer goes: where its message has been written in part, the rest is copied.
  void KeepRestOf(const tcp::UnboundBuffer& buffer) noexcept {
    const std::lock_guard lock(m_);
    // Only the first that waits to be written can have been begun.
    if (state_ != CONNECTED || tx_.empty()) return;
    tcp::Op& op = tx_.front();
    if (op.getOpcode() != tcp::Op::SEND_UNBOUND_BUFFER || op.nwritten == 0) return;
    if (!op.ubuf.IsOf(&buffer)) return;
    const auto* head = reinterpret_cast<const char*>(&op.preamble);
    const auto* data = static_cast<const char*>(buffer.ptr) + op.offset;
    constexpr size_t kHead = sizeof(op.preamble);
    try {
      rest_.assign(head + std::min(op.nwritten, kHead), head + kHead);
      rest_.insert(rest_.end(), data + (std::max(op.nwritten, kHead) - kHead), data + op.nbytes);
    } catch (const std::bad_alloc&) {
      rest_.clear();
      signalException("no memory for the rest of a message");
    }
  }

  // As the overridden one, except that what is thrown fails the pair.
  void handleEvents(int events) override {
    // Whoever holds the pair may wait for this thread: the events come again.
    const std::unique_lock lock(m_, std::try_to_lock);
    if (!lock || state_ == CLOSED) return;
    try {
      switch (state_) {
        case LISTENING:
          return anybody_ ? handleListening() : void();
        case CONNECTING:
          return handleConnecting();
        default:
          return handleReadWrite(events);
      }
    } catch (const std::exception& error) {
      CloseUnregistered();
      signalException(error.what());
    }
  }

 protected:
  bool read() override { return state_ != CLOSED && (tcp::Pair::read() || ReadForgotten()); }
  bool write(tcp::Op& op) override {
    if (!rest_.empty()) return WriteRest();
    const bool unbound = op.getOpcode() == tcp::Op::SEND_UNBOUND_BUFFER;
    if (unbound && op.nwritten == 0 && op.ubuf.expired()) return true;
    return tcp::Pair::write(op);
  }

 private:
  // Whether what was kept of the first message in the queue has left.
  bool WriteRest() {
    while (state_ == CONNECTED && rest_written_ < rest_.size()) {
      const ssize_t put = ::send(fd_, rest_.data() + rest_written_, rest_.size() - rest_written_,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      // That the peer is gone is found as the connection is read, as by Gloo.
      if (put < 0) return false;
      rest_written_ += static_cast<size_t>(put);
    }
    if (state_ != CONNECTED) return false;
    rest_ = {};
    rest_written_ = 0;
    return true;
  }

  // Whether the message that is under way is one that nobody takes, and has been read to its end.
  bool ReadForgotten() {
    if (state_ != CONNECTED || rx_.nread < sizeof(rx_.preamble) ||
        rx_.getOpcode() != tcp::Op::SEND_UNBOUND_BUFFER || !rx_.ubuf.expired()) {
      return false;
    }
    std::array<char, 16 << 10> scratch;
    while (rx_.nread < rx_.preamble.nbytes) {
      const size_t left = rx_.preamble.nbytes - rx_.nread;
      const ssize_t got = ::recv(fd_, scratch.data(), std::min(left, scratch.size()), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return false;
      if (got <= 0) {
        signalException(got == 0 ? "Connection closed by peer" : strerror(errno));
        return false;
      }
      rx_.nread += static_cast<size_t>(got);
    }
    rx_ = tcp::Op();
    return true;
  }

  // A descriptor that was only just accepted or taken is not registered, and taking it out of
  // Gloo's loop would throw where nothing may. Closing takes out any.
  void CloseUnregistered() {
    if (state_ == CONNECTED || fd_ == -1) return;
    ::close(fd_);
    fd_ = -1;
  }

  const bool anybody_;
  std::vector<char> rest_;  // of the first message in the queue, whose buffer is gone; under m_
  size_t rest_written_ = 0;
};

// Gloo's buffer, which can also be asked, and may go while its message is written.
class AskableBuffer final : public tcp::UnboundBuffer {
 public:
  using tcp::UnboundBuffer::UnboundBuffer;
  ~AskableBuffer() override {
    if (peer_ < 0 || sent()) return;
    static_cast<CatchingPair&>(*context_->getPair(peer_)).KeepRestOf(*this);
  }
  void send(int peer, uint64_t slot, size_t offset, size_t nbytes) override {
    peer_ = peer;
    tcp::UnboundBuffer::send(peer, slot, offset, nbytes);
  }
  bool sent() {
    const std::lock_guard lock(m_);
    return sendCompletions_ > 0;
  }

 private:
  int peer_ = -1;  // that it was sent to; -1: to nobody
};

class CatchingContext final : public tcp::Context {
 public:
  CatchingContext(std::shared_ptr<tcp::Device> device, int rank, int size, bool anybody)
      : tcp::Context(std::move(device), rank, size), anybody_(anybody) {}
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                        size_t size) override {
    return std::make_unique<AskableBuffer>(shared_from_this(), data, size);
  }
  std::unique_ptr<::gloo::transport::Pair>& createPair(int peer) override {
    auto& pair = pairs_[static_cast<size_t>(peer)];
    pair = std::make_unique<CatchingPair>(this, device_.get(), peer, getTimeout(), anybody_);
    return pair;
  }
  // Throws what Gloo throws.
  void Take(std::map<int32_t, UniqueFd> links) {
    for (auto& [peer, link] : links) {
      static_cast<CatchingPair&>(*createPair(peer)).Take(link);
      link.reset();  // the pair has its own
    }
  }

 private:
  const bool anybody_;
};

// Gloo crashes on a name that does not resolve.
absl::Status CheckAddress(const std::string& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("interface_address \"", address, "\": ", gai_strerror(error)));
  }
  freeaddrinfo(found);
  return absl::OkStatus();
}

// Gloo writes to sockets whose peer may be gone; that has to be an error, not the end of the
// process.
void IgnoreBrokenPipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL)
    signal(SIGPIPE, SIG_IGN);
}

// Our end of each connection as its peer is to know it, one after another in the order of ranks.
std::string EndsOf(GlooContext& context, absl::Span<const int32_t> peers) {
  std::string addresses;
  for (const int32_t peer : peers) {
    const std::vector<char> address = context.createPair(peer)->address().bytes();
    addresses.append(address.begin(), address.end());
  }
  return addresses;
}

// Where `peer` waits for this rank, out of what it announced.
absl::StatusOr<std::vector<char>> AddressIn(const std::string& announced, int32_t peer,
                                            int32_t self, absl::Span<const int32_t> peers) {
  const size_t count = peers.size(), bytes = announced.size() / count;
  if (bytes != tcp::Address().bytes().size() || announced.size() % count != 0) {
    return absl::InternalError(absl::StrCat("rank ", peer, " announces ", announced.size(),
                                            " bytes where ", count, " addresses are expected"));
  }
  // Where `self` stands in the list of `peer`, which has it instead of itself.
  const int64_t place = std::count_if(peers.begin(), peers.end(),
                                      [&](int32_t other) { return other < self && other != peer; });
  const char* begin = announced.data() + static_cast<size_t>(place) * bytes;
  return std::vector<char>(begin, begin + bytes);
}

// Throws what Gloo throws.
absl::Status ConnectPairs(GlooContext& context, absl::Span<const int32_t> peers,
                          Rendezvous& rendezvous, Deadline deadline, const std::stop_token& stop) {
  const auto key = [](int32_t rank) { return absl::StrCat("gloo/", rank); };
  RETURN_IF_ERROR(rendezvous.Put(key(context.rank), EndsOf(context, peers)));
  // A pair that is closed waits no longer for its peer.
  const std::stop_callback close(stop, [&context, peers] {
    for (const int32_t peer : peers) context.getPair(peer)->close();
  });
  for (const int32_t peer : peers) {
    ASSIGN_OR_RETURN(const std::string announced,
                     rendezvous.GetFrom(Rank{peer}, key(peer), deadline));
    ASSIGN_OR_RETURN(const std::vector<char> address,
                     AddressIn(announced, peer, context.rank, peers));
    if (stop.stop_requested()) return absl::CancelledError("asked to stop while connecting");
    context.getPair(peer)->connect(address);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<GlooContext>> ConnectGlooMesh(int32_t self, int32_t world,
                                                             absl::Span<const int32_t> peers,
                                                             Rendezvous& rendezvous,
                                                             const WorldOptions& options) {
  const Deadline deadline = DeadlineIn(options.setup_timeout);
  RETURN_IF_ERROR(CheckAddress(options.interface_address));
  IgnoreBrokenPipes();
  std::map<int32_t, UniqueFd> links;
  if (options.proven_links) {
    ASSIGN_OR_RETURN(links, ConnectLinks(self, peers, rendezvous, options));
  }
  try {
    auto device = std::make_shared<tcp::Device>(
        tcp::CreateDeviceAttr(tcp::attr(options.interface_address.c_str())));
    auto context = std::make_shared<CatchingContext>(std::move(device), self, world,
                                                     /*anybody=*/!options.proven_links);
    // Gloo waits five times as long for a connection.
    const absl::Duration timeout = std::min(options.setup_timeout, kTimeoutMax) / 5;
    context->setTimeout(
        std::max(absl::ToChronoMilliseconds(timeout), std::chrono::milliseconds(1)));
    if (options.proven_links) {
      context->Take(std::move(links));
    } else {
      RETURN_IF_ERROR(ConnectPairs(*context, peers, rendezvous, deadline, options.stop));
    }
    return context;
  } catch (const std::exception& error) {
    return ConnectingFailed(error);
  }
}

absl::Status ConnectingFailed(const std::exception& error) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  const std::error_code code = system != nullptr ? system->code() : std::error_code();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      code == std::errc::not_enough_memory || code == std::errc::resource_unavailable_try_again) {
    return job::WithKind(job::FailureKind::kOutOfMemory,
                         absl::ResourceExhaustedError(absl::StrCat(
                             "this node has no memory or no thread left for this rank: ",
                             error.what(), "; look at the limits of phalanx-worker (ulimit -a)")));
  }
  return absl::UnavailableError(error.what());
}

bool IsSent(::gloo::transport::UnboundBuffer& buffer) {
  return static_cast<AskableBuffer&>(buffer).sent();
}

}  // namespace phalanx::comm
