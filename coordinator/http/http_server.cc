#include "coordinator/http/http_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/net/socket.h"
#include "coordinator/net/waker.h"

namespace phalanx::coordinator {
namespace {

struct Response {
  int code = 200;
  absl::string_view reason = "OK";
  absl::string_view type = "text/plain; charset=utf-8";
  std::string body;
};

struct Connection {
  UniqueFd fd;
  SteadyTime end;
  std::string request;
  std::string response;  // not empty: the request was answered
  size_t sent = 0;
};

std::string Encode(const Response& response, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", response.code, " ", response.reason,
                      "\r\nContent-Type: ", response.type,
                      "\r\nContent-Length: ", response.body.size(), "\r\nConnection: close\r\n\r\n",
                      with_body ? response.body : "");
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(HttpOptions options, UniqueFd listening)
      : options_(std::move(options)),
        listening_(std::move(listening)),
        stop_(eventfd(0, EFD_CLOEXEC)),
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
      std::vector<pollfd> fds = {{stop_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
      for (const Connection& connection : connections_) {
        const short wanted = connection.response.empty() ? POLLIN : POLLOUT;
        fds.push_back({connection.fd.get(), wanted, 0});
      }
      if (poll(fds.data(), fds.size(), Patience()) < 0 && errno != EINTR) return;
      if (fds[0].revents != 0) return;
      size_t i = 2;
      const SteadyTime now = SteadyNow();
      for (auto it = connections_.begin(); it != connections_.end(); ++i) {
        const bool open = fds[i].revents == 0 || Serve(*it);
        it = open && now < it->end ? std::next(it) : connections_.erase(it);
      }
      if (fds[1].revents != 0) Accept();
    }
  }

  // Milliseconds until the first connection is at its end.
  int Patience() const {
    if (connections_.empty()) return -1;
    const absl::Duration left = -Since(connections_.front().end);
    return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left))) + 1;
  }

  void Accept() {
    UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    // Without a descriptor left, one of ours is given up; the newcomer is accepted next.
    const bool full = fd.get() < 0 ? errno == EMFILE || errno == ENFILE
                                   : connections_.size() == HttpOptions::kConnectionsMax;
    if (full && !connections_.empty()) connections_.pop_front();
    if (fd.get() < 0) return;
    connections_.push_back(
        {.fd = std::move(fd), .end = SteadyNow() + absl::ToChronoNanoseconds(HttpOptions::kLife)});
  }

  // False: the connection is to be closed.
  bool Serve(Connection& connection) {
    if (connection.response.empty() && !Receive(connection)) return false;
    return connection.response.empty() || Send(connection);
  }

  bool Receive(Connection& connection) {
    char buffer[4096];
    const ssize_t n = recv(connection.fd.get(), buffer, sizeof(buffer), 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    connection.request.append(buffer, static_cast<size_t>(n));
    if (connection.request.find("\r\n\r\n") != std::string::npos) {
      connection.response = Answer(connection.request);
    } else if (connection.request.size() > HttpOptions::kRequestBytesMax) {
      connection.response =
          Encode({.code = 431, .reason = "Request Header Fields Too Large"}, false);
    }
    return true;
  }

  // False: all is sent, or nobody reads it.
  bool Send(Connection& connection) {
    while (connection.sent < connection.response.size()) {
      const ssize_t n = send(connection.fd.get(), connection.response.data() + connection.sent,
                             connection.response.size() - connection.sent, MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      connection.sent += static_cast<size_t>(n);
    }
    return false;
  }

  std::string Answer(absl::string_view request) const {
    const std::vector<absl::string_view> words =
        absl::StrSplit(request.substr(0, request.find("\r\n")), ' ');
    if (words.size() != 3 || words[2].substr(0, 5) != "HTTP/") {
      return Encode({.code = 400, .reason = "Bad Request", .body = "no HTTP request\n"}, true);
    }
    const bool head = words[0] == "HEAD";
    if (words[0] != "GET" && !head) {
      return Encode({.code = 405, .reason = "Method Not Allowed", .body = "GET and HEAD only\n"},
                    true);
    }
    return Encode(Page(words[1].substr(0, words[1].find('?'))), !head);
  }

  Response Page(absl::string_view path) const {
    if (path == "/healthz") return {.body = "ok\n"};
    if (path == "/metrics") {
      return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = options_.metrics()};
    }
    if (path != "/readyz") return {.code = 404, .reason = "Not Found", .body = "no such page\n"};
    const absl::Status ready = options_.ready();
    if (ready.ok()) return {.body = "ok\n"};
    return {.code = 503,
            .reason = "Service Unavailable",
            .body = absl::StrCat("not ready: ", ready.message(), "\n")};
  }

  const HttpOptions options_;
  const UniqueFd listening_;
  const UniqueFd stop_;                // an eventfd
  std::list<Connection> connections_;  // of the thread, oldest first
  std::jthread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpOptions options) {
  absl::StatusOr<UniqueFd> listening = Listen(options.host, options.port);
  if (!listening.ok()) return listening.status();
  return std::make_unique<HttpServerImpl>(std::move(options), *std::move(listening));
}

}  // namespace phalanx::coordinator
