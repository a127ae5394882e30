#include "transport/http/event_streams.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace phalanx::transport {
namespace {

// What the kernel holds of a stream for a reader who is slow.
constexpr int kSendBufferBytes = 64 << 10;

constexpr char kHead[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
    "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\nretry: 2000\n\n";

std::string EventOf(const HttpResponse& response) {
  if (response.code != 200) return "event: gone\ndata: gone\n\n";
  std::string event = "event: page\n";
  for (absl::string_view line : absl::StrSplit(response.body, '\n')) {
    absl::StrAppend(&event, "data: ", line, "\n");
  }
  return absl::StrCat(event, "\n");
}

}  // namespace

void EventStreams::Add(ByteStream connection, ShownCertificate who, const std::string& target) {
  setsockopt(connection.fd(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof(kSendBufferBytes));
  streams_.push_back({.connection = std::move(connection),
                      .who = std::move(who),
                      .target = target,
                      .begun = SteadyNow(),
                      .sending = std::make_shared<const std::string>(kHead)});
  const auto [feed, is_new] = feeds_.try_emplace(target);
  if (is_new) Ask(target, feed->second);
}

bool EventStreams::IsFullOf(const ShownCertificate& who) const {
  const auto count = std::count_if(streams_.begin(), streams_.end(), [&who](const Stream& stream) {
    return stream.who.uris == who.uris;
  });
  return !who.chain.empty() && static_cast<size_t>(count) >= options_.person_streams_max;
}

void EventStreams::Ask(const std::string& target, Feed& feed) {
  feed.asked = true;
  feed.asked_at = SteadyNow();
  ask_(target);
}

void EventStreams::Answer(const std::string& target, const HttpResponse& response) {
  const auto found = feeds_.find(target);
  if (found == feeds_.end()) return;
  Feed& feed = found->second;
  feed.asked = false;
  // Too busy to make it now: what was shown stays.
  if (response.code == 503) return;
  feed.gone = response.code != 200;
  std::string event = EventOf(response);
  if (feed.event != nullptr && *feed.event == event) return;
  feed.event = std::make_shared<const std::string>(std::move(event));
  ++feed.version;
}

void EventStreams::AppendTo(std::vector<pollfd>& fds) const {
  for (const Stream& stream : streams_) {
    const bool writes = stream.sending != nullptr;
    fds.push_back(
        {stream.connection.fd(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
  }
}

// A reader has nothing to say: what comes is the end, or is no reader's.
bool EventStreams::Read(Stream& stream) const {
  char byte;
  const ssize_t n = stream.connection.Read(&byte, 1);
  return n < 0 && (errno == EAGAIN || errno == EINTR);
}

bool EventStreams::Write(Stream& stream) const {
  while (stream.sending != nullptr) {
    const ssize_t n = stream.connection.Write(stream.sending->data() + stream.sent,
                                              stream.sending->size() - stream.sent);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (n < 0) {
      if (!stream.stuck_since.has_value()) stream.stuck_since = SteadyNow();
      return Since(*stream.stuck_since) < options_.slow_max;
    }
    stream.stuck_since.reset();
    stream.sent += static_cast<size_t>(n);
    if (stream.sent < stream.sending->size()) continue;
    stream.sending = nullptr;
    stream.sent = 0;
  }
  return true;
}

bool EventStreams::Go(Stream& stream, const Feed& feed) const {
  if (!Write(stream)) return false;
  if (stream.sending != nullptr) return true;
  if (stream.version != feed.version) {
    if (holds_ && !holds_(stream.who)) return false;
    stream.version = feed.version;
    stream.sending = feed.event;
    return Write(stream);
  }
  return !feed.gone;
}

void EventStreams::Serve(absl::Span<const pollfd> fds) {
  size_t i = 0;
  std::set<std::string> shown;
  for (auto it = streams_.begin(); it != streams_.end(); ++i) {
    const short seen = i < fds.size() ? fds[i].revents : short{0};
    const bool open = ((seen & ~POLLOUT) == 0 || Read(*it)) && Since(it->begun) < options_.life &&
                      Go(*it, feeds_.at(it->target));
    if (open) shown.insert(it->target);
    it = open ? std::next(it) : streams_.erase(it);
  }
  for (auto it = feeds_.begin(); it != feeds_.end();) {
    Feed& feed = it->second;
    if (!feed.asked && Since(feed.asked_at) >= options_.interval && !feed.gone &&
        shown.contains(it->first)) {
      Ask(it->first, feed);
    }
    // One that was asked for stays until it is answered, so that nobody asks for it twice.
    it = shown.contains(it->first) || feed.asked ? std::next(it) : feeds_.erase(it);
  }
}

absl::Duration EventStreams::patience() const {
  return streams_.empty() ? absl::InfiniteDuration() : options_.interval;
}

}  // namespace phalanx::transport
