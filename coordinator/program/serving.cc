#include "coordinator/program/serving.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <thread>
#include <utility>

#include "coordinator/store/store_check.h"
#include "coordinator/store/token_store.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"

namespace phalanx::coordinator {

// Tells of damaged entries of ended jobs. To read them all takes too long for the start; one that
// is damaged is refused when it is read.
class EntryCheck {
 public:
  EntryCheck(std::shared_ptr<EndedJobs> ended, Server& server)
      : thread_([this, ended = std::move(ended), &server] {
          pthread_setname_np(pthread_self(), "entry-check");
          CheckEnded(
              *ended, stop_, [&server] { server.CountDamagedEntry(); },
              [](const std::string& line) { spdlog::error("{}", LineText(line)); });
        }) {}
  ~EntryCheck() { stop_ = true; }

 private:
  std::atomic<bool> stop_ = false;
  std::jthread thread_;  // last member: joins before what it reads is destroyed
};

// Without certificates nobody joins, and a start goes on without the tokens; the day that
// certificates come it would not.
void TellUnreadTokens(const ServerOptions& options) {
  if (options.tls.on() || options.join.store == nullptr) return;
  const absl::Status read = options.join.store->Load().status();
  if (!read.ok())
    spdlog::warn("the join tokens cannot be read reason=\"{}\"", LineText(read.message()));
}

absl::StatusOr<std::unique_ptr<Serving>> Serving::Start(ServerOptions options,
                                                        transport::HttpOptions http,
                                                        std::unique_ptr<Backend> backend) {
  std::unique_ptr<Serving> serving(new Serving());
  const std::shared_ptr<EndedJobs> ended = backend->ended_jobs();
  TellUnreadTokens(options);
  ASSIGN_OR_RETURN(serving->server_, Server::Start(std::move(options), std::move(backend)));
  Server& server = *serving->server_;
  serving->page_ = std::make_unique<StatusPage>(
      server.board(), [&server](std::vector<JobId> jobs, QueueCallback answer) {
        server.AskQueue(std::move(jobs), std::move(answer));
      });
  http.metrics = [&server] { return server.MetricsText(); };
  http.live = [&server] { return server.liveness(); };
  http.ready = [&server] { return server.readiness(); };
  http.unread = [&server](const transport::ShownCertificate& who, const absl::Status& why) {
    server.NoteUnreadPage(who, why);
  };
  http.pages = [&page = *serving->page_](const std::string& target, transport::HttpAnswer answer) {
    page.Serve(target, std::move(answer));
  };
  if (http.tls != nullptr) {
    http.tls->OnFailedHandshake([&server](const transport::FailedHandshake& failed) {
      server.NoteFailedHandshake("http", failed);
    });
    http.guard = {
        .admit = [&server](const transport::ShownCertificate& who,
                           absl::string_view) { return server.AdmitToPage(who); },
        .holds = [&server](const transport::ShownCertificate& who) { return server.Holds(who); }};
  }
  ASSIGN_OR_RETURN(serving->http_, transport::HttpServer::Start(std::move(http)));
  serving->check_ = std::make_unique<EntryCheck>(ended, server);
  return serving;
}

Serving::~Serving() { Stop(absl::ZeroDuration()); }

void Serving::Stop(absl::Duration grace) {
  if (server_ != nullptr) server_->Shutdown(grace);
  check_.reset();
  http_.reset();
  page_.reset();
  server_.reset();
}

}  // namespace phalanx::coordinator
