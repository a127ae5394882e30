#include "transport/http/http_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "core/base/mutex.h"
#include "core/posix/peer_name.h"
#include "core/posix/socket.h"
#include "core/posix/waker.h"
#include "transport/http/byte_stream.h"
#include "transport/http/event_streams.h"
#include "transport/http/http_request.h"

namespace phalanx::transport {
namespace {

absl::string_view ReasonOf(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

struct Connection {
  ByteStream stream;
  SteadyTime end;
  std::string network;  // of its other end, as NetworkOf
  short wants = POLLIN;
  std::string request;
  std::string response;  // not empty: the request was answered
  size_t sent = 0;
  uint64_t waiting = 0;  // for the page of this number; 0: for none
  bool head = false;     // no body is wanted
};

int CodeOf(const absl::Status& refusal) {
  if (absl::IsUnauthenticated(refusal)) return 401;
  return absl::IsResourceExhausted(refusal) ? 429 : 403;
}

// They answer whoever asks.
bool IsProbe(absl::string_view path) {
  return path == "/livez" || path == "/healthz" || path == "/readyz";
}

// Whether `parameter` is behind the '?', alone or among others.
bool Asks(const HttpRequest& request, absl::string_view parameter) {
  absl::string_view query = request.query();
  if (!absl::ConsumePrefix(&query, "?")) return false;
  const std::vector<absl::string_view> all = absl::StrSplit(query, '&');
  return std::find(all.begin(), all.end(), parameter) != all.end();
}

// `verbose`: a line for each part, as those of Kubernetes' own programs are.
HttpResponse AnswerProbe(const Health& health, absl::string_view probe, absl::string_view refusal,
                         bool verbose) {
  std::string lines, reason;
  for (const HealthPart& part : health) {
    if (part.status.ok()) {
      absl::StrAppend(&lines, "[+]", part.name, " ok\n");
      continue;
    }
    absl::StrAppend(&lines, "[-]", part.name, " failed: ", part.status.message(), "\n");
    if (reason.empty()) reason = absl::StrCat(refusal, ": ", part.status.message(), "\n");
  }
  const bool well = reason.empty();
  if (verbose) reason = absl::StrCat(lines, probe, " check ", well ? "passed" : "failed", "\n");
  return {.code = well ? 200 : 503, .body = well && !verbose ? "ok\n" : reason};
}

std::string Encode(const HttpResponse& response, bool with_body) {
  const bool later = response.code == 429 || response.code == 503;
  return absl::StrCat("HTTP/1.1 ", response.code, " ", ReasonOf(response.code),
                      later ? "\r\nRetry-After: 1" : "", "\r\nContent-Type: ", response.type,
                      "\r\nContent-Length: ", response.body.size(),
                      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
                      response.policy.empty() ? "" : "Content-Security-Policy: ", response.policy,
                      response.policy.empty() ? "" : "\r\n", "Connection: close\r\n\r\n",
                      with_body ? response.body : "");
}

// Pages that others have made, on their way to the server's thread. Shared with whoever makes them,
// who may take longer than the server lives. Thread-safe.
class Answers {
 public:
  struct Answer {
    uint64_t number = 0;  // of the connection; 0: for the streams
    std::string target;
    HttpResponse response;
  };
  Answers() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  void Add(Answer answer) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    answers_.push_back(std::move(answer));
    const uint64_t one = 1;
    static_cast<void>(!write(fd_.get(), &one, sizeof(one)));
  }
  std::vector<Answer> TakeAll() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    uint64_t count = 0;
    static_cast<void>(!read(fd_.get(), &count, sizeof(count)));
    return std::exchange(answers_, {});
  }
  int fd() const { return fd_.get(); }  // readable while there are some

 private:
  const UniqueFd fd_;  // an eventfd
  Mutex mu_;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mu_);
};

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(HttpOptions options, UniqueFd listening)
      : options_(std::move(options)),
        listening_(std::move(listening)),
        stop_(eventfd(0, EFD_CLOEXEC)),
        streams_(
            options_.streams, [this](const std::string& target) { Ask(0, target); },
            options_.tls == nullptr ? nullptr : options_.guard.holds),
        thread_([this] { Run(); }) {}

  ~HttpServerImpl() override {
    const uint64_t one = 1;
    static_cast<void>(!write(stop_.get(), &one, sizeof(one)));
    thread_.join();
  }

  int port() const override { return PortOf(listening_.get()); }

 private:
  void Run() {
    pthread_setname_np(pthread_self(), "http");
    while (true) {
      std::vector<pollfd> fds = {
          {stop_.get(), POLLIN, 0}, {answers_->fd(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
      for (const Connection& connection : connections_) {
        const short wanted = connection.waiting != 0 ? short{0} : connection.wants;
        fds.push_back({connection.stream.fd(), wanted, 0});
      }
      const size_t first_stream = fds.size();
      streams_.AppendTo(fds);
      if (poll(fds.data(), fds.size(), Patience()) < 0 && errno != EINTR) return;
      if (fds[0].revents != 0) return;
      size_t i = 3;
      const SteadyTime now = SteadyNow();
      for (auto it = connections_.begin(); it != connections_.end(); ++i) {
        const bool open = fds[i].revents == 0 || Serve(*it);
        if (open && now >= it->end) TellIfUnread(*it);
        it = open && now < it->end ? std::next(it) : connections_.erase(it);
      }
      for (Answers::Answer& answer : answers_->TakeAll()) Take(answer);
      streams_.Serve(absl::MakeConstSpan(fds).subspan(first_stream));
      if (fds[2].revents != 0) Accept();
    }
  }

  // Milliseconds until the first connection is at its end, or the streams want to be served.
  int Patience() const {
    absl::Duration left = streams_.patience();
    for (const Connection& connection : connections_) left = std::min(left, -Since(connection.end));
    if (left == absl::InfiniteDuration()) return -1;
    return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left))) + 1;
  }

  // A page is there: for its connection, unless that is over, or for the streams.
  void Take(Answers::Answer& answer) {
    if (answer.number == 0) return streams_.Answer(answer.target, answer.response);
    for (Connection& connection : connections_) {
      if (connection.waiting != answer.number) continue;
      connection.waiting = 0;
      connection.wants = POLLOUT;
      connection.response = Encode(answer.response, !connection.head);
    }
  }

  void Ask(uint64_t number, const std::string& target) const {
    options_.pages(target, [answers = answers_, number, target](HttpResponse response) {
      answers->Add({number, target, std::move(response)});
    });
  }

  void Accept() {
    UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    // Without a descriptor left, one of ours is given up; the newcomer is accepted next.
    const bool full = fd.get() < 0 ? errno == EMFILE || errno == ENFILE
                                   : connections_.size() == HttpOptions::kConnectionsMax;
    const std::string network = NetworkOf(PeerNameOf(fd.get()));
    if (full && !connections_.empty()) connections_.erase(OldestOfMost(network));
    if (fd.get() < 0) return;
    std::unique_ptr<TlsStream> tls;
    if (options_.tls != nullptr && (tls = options_.tls->Accept(fd.get())) == nullptr) return;
    connections_.push_back({.stream = ByteStream(std::move(fd), std::move(tls)),
                            .end = SteadyNow() + absl::ToChronoNanoseconds(HttpOptions::kLife),
                            .network = network});
  }

  // Of the network that has most connections, with one more of `newest`: so whoever opens many
  // takes the places of their own. There are some.
  std::list<Connection>::iterator OldestOfMost(const std::string& newest) {
    std::map<std::string, size_t> counts = {{newest, 1}};
    for (const Connection& connection : connections_) ++counts[connection.network];
    return std::max_element(connections_.begin(), connections_.end(),
                            [&counts](const Connection& a, const Connection& b) {
                              return counts.at(a.network) < counts.at(b.network);
                            });
  }

  // False: the connection is to be closed.
  bool Serve(Connection& connection) {
    if (connection.waiting != 0) return false;  // its reader is gone
    if (connection.response.empty() && !Receive(connection)) return false;
    return connection.response.empty() || Send(connection);
  }

  bool Receive(Connection& connection) {
    // To the end of what is there: poll does not see what TLS has read ahead.
    while (connection.request.size() <= HttpOptions::kRequestBytesMax) {
      char buffer[4096];
      const ssize_t n = connection.stream.Read(buffer, sizeof(buffer));
      connection.wants = connection.stream.wants();
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      if (n == 0) return false;
      connection.request.append(buffer, static_cast<size_t>(n));
      if (connection.request.find("\r\n\r\n") != std::string::npos) return Answer(connection);
    }
    connection.response = Encode({.code = 431}, false);
    if (options_.unread) {
      options_.unread(connection.stream.peer(),
                      absl::InvalidArgumentError(absl::StrCat(
                          "the request has more than ", HttpOptions::kRequestBytesMax, " bytes")));
    }
    return true;
  }

  // Its time is over. Whoever has said nothing may have come to see whether somebody listens.
  void TellIfUnread(const Connection& connection) const {
    if (!options_.unread || connection.request.empty() || !connection.response.empty() ||
        connection.waiting != 0) {
      return;
    }
    options_.unread(connection.stream.peer(), absl::DeadlineExceededError(absl::StrCat(
                                                  "the request did not come whole within ",
                                                  absl::FormatDuration(HttpOptions::kLife))));
  }

  // False: all is sent, or nobody reads it.
  bool Send(Connection& connection) {
    while (connection.sent < connection.response.size()) {
      const ssize_t n = connection.stream.Write(connection.response.data() + connection.sent,
                                                connection.response.size() - connection.sent);
      connection.wants = connection.stream.wants();
      if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR);
      connection.sent += static_cast<size_t>(n);
    }
    return false;
  }

  // Answers, or asks for the answer. False: the connection is over, or has become a stream.
  bool Answer(Connection& connection) {
    const absl::StatusOr<HttpRequest> request = ReadHttpRequest(connection.request);
    if (!request.ok()) {
      const int code = absl::IsUnimplemented(request.status()) ? 405 : 400;
      connection.response =
          Encode({.code = code, .body = absl::StrCat(request.status().message(), "\n")}, true);
      return true;
    }
    connection.head = request->head;
    const absl::string_view path = request->path();
    ShownCertificate who;
    if (options_.tls == nullptr && !IsProbe(path) && !request->host.empty() &&
        !IsHostOfLoopback(request->host)) {
      connection.response =
          Encode({.code = 403,
                  .body = "without certificates these pages are for this machine alone: ask "
                          "localhost, 127.0.0.1 or [::1] for them\n"},
                 !connection.head);
      return true;
    }
    if (options_.tls != nullptr && !IsProbe(path)) {
      who = connection.stream.peer();
      if (absl::Status admitted = options_.guard.admit(who, path); !admitted.ok()) {
        connection.response = Encode(
            {.code = CodeOf(admitted), .body = absl::StrCat(admitted.message(), "\n")}, true);
        return true;
      }
    }
    if (std::optional<HttpResponse> probe = Probe(*request); probe.has_value()) {
      connection.response = Encode(*probe, !connection.head);
    } else if (!options_.pages) {
      connection.response = Encode({.code = 404, .body = "no such page\n"}, !connection.head);
    } else if (path == "/api/stream" && !connection.head) {
      return !BecomeStream(connection, std::move(who), std::string(request->query()));
    } else {
      connection.waiting = ++last_number_;
      connection.end = SteadyNow() + absl::ToChronoNanoseconds(HttpOptions::kPageLife);
      Ask(connection.waiting, request->target);
    }
    return true;
  }

  // `query`: "?/api/overview". False: it is answered instead, for there may be no such stream.
  bool BecomeStream(Connection& connection, ShownCertificate who, const std::string& query) {
    if (query.substr(0, 6) != "?/api/") {
      connection.response =
          Encode({.code = 400, .body = "/api/stream?PATH: PATH begins with /api/\n"}, true);
      return false;
    }
    if (streams_.full()) {
      connection.response = Encode({.code = 503, .body = "too many streams are open\n"}, true);
      return false;
    }
    if (streams_.IsFullOf(who)) {
      connection.response =
          Encode({.code = 429, .body = "too many streams of yours are open\n"}, true);
      return false;
    }
    streams_.Add(std::move(connection.stream), std::move(who), query.substr(1));
    return true;
  }

  // Pages that answer whatever else is under way; nothing: it is none of them.
  std::optional<HttpResponse> Probe(const HttpRequest& request) const {
    const absl::string_view path = request.path();
    if (path == "/metrics") {
      return HttpResponse{.type = "text/plain; version=0.0.4; charset=utf-8",
                          .body = options_.metrics()};
    }
    if (!IsProbe(path)) return std::nullopt;
    const bool verbose = Asks(request, "verbose") || Asks(request, "verbose=1");
    if (path == "/readyz") {
      const bool standby = options_.ready_or_standby && Asks(request, "standby=ready");
      return AnswerProbe(standby ? options_.ready_or_standby() : options_.ready(), "readyz",
                         "not ready", verbose);
    }
    return AnswerProbe(options_.live ? options_.live() : Health(), "livez", "not live", verbose);
  }

  const HttpOptions options_;
  const UniqueFd listening_;
  const UniqueFd stop_;  // an eventfd
  const std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  // Of the thread:
  std::list<Connection> connections_;  // oldest first
  EventStreams streams_;
  uint64_t last_number_ = 0;
  std::jthread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpOptions options) {
  absl::StatusOr<UniqueFd> listening =
      options.listening >= 0 ? ListenAlso(options.listening) : Listen(options.host, options.port);
  if (!listening.ok()) return listening.status();
  return std::make_unique<HttpServerImpl>(std::move(options), *std::move(listening));
}

}  // namespace phalanx::transport
