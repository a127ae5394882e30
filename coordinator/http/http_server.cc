#include "coordinator/http/http_server.h"

#include <httplib.h>
#include <pthread.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

constexpr int kThreads = 2;
constexpr size_t kRequestBytesMax = 64 << 10;
constexpr time_t kRequestSeconds = 5;

class HttpServerImpl final : public HttpServer {
 public:
  explicit HttpServerImpl(HttpOptions options) : options_(std::move(options)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_payload_max_length(kRequestBytesMax);
    server_.set_read_timeout(kRequestSeconds, 0);
    server_.set_write_timeout(kRequestSeconds, 0);
    server_.set_keep_alive_timeout(kRequestSeconds);
    // Without SO_REUSEPORT, which is the library's default: two coordinators must not share a port.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(options_.metrics(), "text/plain; version=0.0.4; charset=utf-8");
    });
    server_.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", "text/plain");
    });
    server_.Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
      const absl::Status ready = options_.ready();
      response.status = ready.ok() ? 200 : 503;
      response.set_content(ready.ok() ? "ok\n" : absl::StrCat("not ready: ", ready.message(), "\n"),
                           "text/plain");
    });
  }

  ~HttpServerImpl() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Begin() {
    port_ = options_.port;
    if (port_ == 0) {
      port_ = server_.bind_to_any_port(options_.host);
    } else if (!server_.bind_to_port(options_.host, port_)) {
      port_ = -1;
    }
    if (port_ <= 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", options_.host, ":", options_.port));
    }
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "http");
      server_.listen_after_bind();
    });
    // stop() before the loop runs would be lost.
    while (!server_.is_running()) std::this_thread::yield();
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  const HttpOptions options_;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpOptions options) {
  auto server = std::make_unique<HttpServerImpl>(std::move(options));
  if (absl::Status status = server->Begin(); !status.ok()) return status;
  return server;
}

}  // namespace phalanx::coordinator
