// transport/http/event_streams.h: pages whose readers are told of each change, by server-sent
// events.
//
// A stream gets its page at once and again whenever it has changed, as an event "page" whose data
// is the page; an event "gone", and its end, where there is no such page. What changes while a
// reader is busy is left out but for the newest. All streams of one page share its making. Memory
// is bounded: a stream holds one event.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/posix/waker.h"
#include "transport/http/byte_stream.h"
#include "transport/http/http_response.h"
#include "transport/server_tls.h"

namespace phalanx::transport {

// Not thread-safe.
class EventStreams {
 public:
  // `ask`: for the page of a target, answered by Answer. `holds`: whether a reader may be told
  // more; none: everybody may.
  EventStreams(StreamOptions options, std::function<void(const std::string& target)> ask,
               std::function<bool(const ShownCertificate& who)> holds)
      : options_(options), ask_(std::move(ask)), holds_(std::move(holds)) {}

  bool full() const { return streams_.size() >= options_.streams_max; }
  size_t size() const { return streams_.size(); }
  // Whether somebody has as many as one person may. Nobody is asked who they are in plaintext.
  bool IsFullOf(const ShownCertificate& who) const;
  // From then on the connection is a stream. Not when full.
  void Add(ByteStream connection, ShownCertificate who, const std::string& target);
  void Answer(const std::string& target, const HttpResponse& response);

  // What to poll for, one a stream.
  void AppendTo(std::vector<pollfd>& fds) const;
  // What poll said of those, in the same order; then whatever is due.
  void Serve(absl::Span<const pollfd> fds);
  // When Serve is to be called at the latest; infinite: there are no streams.
  absl::Duration patience() const;

 private:
  // A page that is shown, as the event that shows it.
  struct Feed {
    SteadyTime asked_at;
    bool asked = false;  // and not answered
    uint64_t version = 0;
    bool gone = false;
    std::shared_ptr<const std::string> event;
  };
  struct Stream {
    ByteStream connection;
    ShownCertificate who;
    std::string target;
    SteadyTime begun;
    uint64_t version = 0;  // that it was sent last
    std::shared_ptr<const std::string> sending;
    size_t sent = 0;
    std::optional<SteadyTime> stuck_since;
  };

  // False: the stream is over.
  bool Read(Stream& stream) const;
  bool Write(Stream& stream) const;
  bool Go(Stream& stream, const Feed& feed) const;
  void Ask(const std::string& target, Feed& feed);

  const StreamOptions options_;
  const std::function<void(const std::string& target)> ask_;
  const std::function<bool(const ShownCertificate& who)> holds_;
  std::list<Stream> streams_;  // oldest first
  std::map<std::string, Feed> feeds_;
};

}  // namespace phalanx::transport
