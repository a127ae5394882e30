#include "coordinator/program/several.h"

#include <poll.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/etcd/client.h"
#include "coordinator/etcd/election.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/program/serving.h"
#include "coordinator/rpc/standby.h"
#include "coordinator/runtime/system_clock.h"
#include "coordinator/store/etcd_backend.h"
#include "coordinator/store/etcd_tokens.h"
#include "core/base/health.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/posix/socket.h"
#include "core/posix/unique_fd.h"
#include "core/posix/whole_file.h"
#include "transport/http/http_server.h"

namespace phalanx::coordinator {
namespace {

// A coordinator that stands by looks so often whether somebody leads. Not a watch of etcd's: that
// is a stream, which breaks with the member that serves it, and would save a fifth of a second.
constexpr absl::Duration kLookInterval = absl::Milliseconds(200);

// Without a look for so long it is given up: each ends by itself long before.
constexpr absl::Duration kSilenceMax = absl::Seconds(30);

// For answers that are on their way when a leader stops: they say that it does.
constexpr absl::Duration kAnswerTime = absl::Milliseconds(200);

class AmongOthers {
 public:
  AmongOthers(const Flags& flags, const Settings& settings, PlanFunction plan)
      : flags_(flags), settings_(settings), plan_(std::move(plan)) {}

  absl::Status Run(const sigset_t& signals) {
    signals_.reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.is_open()) return absl::UnavailableError("cannot make a signalfd");
    ASSIGN_OR_RETURN(grpc_, Listen(settings_.listen.host, settings_.listen.port));
    ASSIGN_OR_RETURN(http_, Listen(settings_.http.host, settings_.http.port));
    client_ = std::make_shared<EtcdClient>(EtcdOptionsOf(flags_, *settings_.etcd));
    election_.emplace(client_, settings_.etcd->prefix, Advertised());
    while (true) {
      ASSIGN_OR_RETURN(std::shared_ptr<Leadership> leadership, StandBy());
      if (leadership == nullptr) break;
      ASSIGN_OR_RETURN(const bool ended, Lead(std::move(leadership)));
      if (ended) break;
    }
    spdlog::info("stopped");
    return absl::OkStatus();
  }

 private:
  std::string GrpcAddress() const {
    return absl::StrCat(settings_.listen.host, ":", PortOf(grpc_.get()));
  }
  std::string Advertised() const {
    return flags_.advertise.empty() ? GrpcAddress() : flags_.advertise;
  }

  // With the addresses, as soon as they answer, and who of the coordinators this one is.
  absl::Status WriteReady(bool standby) const {
    const std::string ready =
        absl::StrCat("{\"grpc\":\"", GrpcAddress(), "\",\"http\":\"", settings_.http.host, ":",
                     PortOf(http_.get()), "\",\"standby\":", standby ? "true" : "false", "}");
    spdlog::info("{} {}", standby ? "standing by" : "serving", ready);
    if (flags_.ready_file.empty()) return absl::OkStatus();
    return Annotate(WriteWholeFile(flags_.ready_file, ready + "\n"), "--ready-file");
  }

  // Null: a signal came first.
  absl::StatusOr<std::shared_ptr<Leadership>> StandBy() {
    std::optional<Standby> standby;
    std::string told;  // what the log says last of who leads
    while (true) {
      absl::StatusOr<std::shared_ptr<Leadership>> leadership = election_->Try();
      if (leadership.ok() && *leadership != nullptr) return leadership;
      if (!standby.has_value()) {
        absl::StatusOr<Standby> started = StartStandby();
        if (!started.ok()) {
          if (!MayDoLater(started.status())) return started.status();
          spdlog::error("cannot stand by now reason=\"{}\"", LineText(started.status().message()));
          if (SignalWithin(kLookInterval)) return nullptr;
          continue;
        }
        standby = *std::move(started);
        has_answered_ = true;
        RETURN_IF_ERROR(WriteReady(true));
      }
      standby->pulse->Beat(clock_.Now());
      *standby->knows_who_leads = leadership.ok();
      const std::string leader = leadership.ok() ? election_->leader() : "";
      standby->grpc->SetLeader(leader);
      const std::string tells = !leadership.ok()
                                    ? absl::StrCat("nobody knows who leads reason=\"",
                                                   LineText(leadership.status().message()), "\"")
                                : leader.empty() ? "nobody leads"
                                                 : absl::StrCat(LineText(leader), " leads");
      if (told != tells) spdlog::info("{}", tells);
      told = tells;
      if (SignalWithin(kLookInterval)) return nullptr;
    }
  }

  struct Standby {
    std::unique_ptr<Metrics> metrics;
    std::unique_ptr<StandbyServer> grpc;
    std::unique_ptr<Pulse> pulse;  // of the thread that looks who leads
    std::unique_ptr<std::atomic<bool>> knows_who_leads;
    std::unique_ptr<transport::HttpServer> http;
  };
  absl::StatusOr<Standby> StartStandby() const {
    Standby standby;
    standby.metrics = std::make_unique<Metrics>();
    ASSIGN_OR_RETURN(standby.grpc, StandbyServer::Start(ServerOptionsHere(), *standby.metrics));
    standby.pulse = std::make_unique<Pulse>("the election", kSilenceMax, clock_.Now());
    standby.knows_who_leads = std::make_unique<std::atomic<bool>>(false);
    ASSIGN_OR_RETURN(transport::HttpOptions http, HttpOptionsHere());
    http.metrics = [&grpc = *standby.grpc] { return grpc.MetricsText(); };
    http.guard = {
        .admit = [&grpc = *standby.grpc](const transport::ShownCertificate& who,
                                         absl::string_view) { return grpc.AdmitToPage(who); },
        .holds =
            [&grpc = *standby.grpc](const transport::ShownCertificate& who) {
              return grpc.AdmitToPage(who).ok();
            }};
    if (http.tls != nullptr) {
      http.tls->OnFailedHandshake(
          [&grpc = *standby.grpc](const transport::FailedHandshake& failed) {
            grpc.NoteFailedHandshake("http", failed);
          });
    }
    http.live = [this, pulse = standby.pulse.get()] {
      return Health{{"election", pulse->Alive(clock_.Now())}};
    };
    http.ready_or_standby = [live = http.live, knows = standby.knows_who_leads.get()] {
      Health health = live();
      health.push_back(
          {"leader", *knows ? absl::OkStatus() : absl::UnavailableError("nobody knows who leads")});
      return health;
    };
    http.ready = [] {
      return Health{{"leader", absl::UnavailableError("this coordinator stands by")}};
    };
    ASSIGN_OR_RETURN(standby.http, transport::HttpServer::Start(std::move(http)));
    return standby;
  }

  // Whether a signal ended it; else it leads no more, or could not.
  absl::StatusOr<bool> Lead(std::shared_ptr<Leadership> leadership) {
    spdlog::info("leading address={} revision={}", Advertised(), leadership->revision());
    absl::StatusOr<std::unique_ptr<Serving>> serving = StartServing(leadership);
    if (!serving.ok()) {
      if (!MayDoLater(serving.status())) return serving.status();
      spdlog::error("cannot serve now reason=\"{}\"", LineText(serving.status().message()));
      leadership.reset();
      return SignalWithin(kLookInterval);
    }
    has_answered_ = true;
    RETURN_IF_ERROR(WriteReady(false));
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {leadership->lost_descriptor(), POLLIN, 0}};
    while (poll(fds, 2, -1) < 0) {
    }
    if (fds[0].revents == 0) {
      spdlog::warn("serving no more reason=\"{}\"", LineText(leadership->Held().message()));
      (*serving)->Stop(kAnswerTime);
      return false;
    }
    TakeSignal();
    // The store has it until its last commit, and then gives it back.
    leadership.reset();
    (*serving)->Stop(settings_.grace);
    return true;
  }

  absl::StatusOr<std::unique_ptr<Serving>> StartServing(
      const std::shared_ptr<Leadership>& leadership) const {
    ASSIGN_OR_RETURN(std::unique_ptr<EtcdBackend> backend,
                     EtcdBackend::Open(client_, settings_.etcd->prefix, leadership));
    ASSIGN_OR_RETURN(transport::HttpOptions http, HttpOptionsHere());
    ServerOptions options = ServerOptionsHere();
    options.join.store = std::make_shared<EtcdTokens>(client_, settings_.etcd->prefix, leadership);
    return Serving::Start(std::move(options), std::move(http), std::move(backend));
  }

  ServerOptions ServerOptionsHere() const {
    ServerOptions options = OptionsOf(flags_, settings_, plan_);
    options.listening = grpc_.get();
    return options;
  }
  absl::StatusOr<transport::HttpOptions> HttpOptionsHere() const {
    ASSIGN_OR_RETURN(transport::HttpOptions options, PagesOf(flags_, settings_));
    options.listening = http_.get();
    return options;
  }

  // Others may open what this one cannot, but for a store that is damaged or newer; and files that
  // served before, of certificates that are being replaced, will be sound again.
  bool MayDoLater(const absl::Status& status) const {
    return absl::IsUnavailable(status) || absl::IsAborted(status) ||
           (has_answered_ && absl::IsInvalidArgument(status));
  }

  bool SignalWithin(absl::Duration wait) {
    pollfd fd{signals_.get(), POLLIN, 0};
    if (poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(wait))) <= 0) return false;
    TakeSignal();
    return true;
  }
  // From here on a second one ends the program at once.
  void TakeSignal() {
    signalfd_siginfo info{};
    const bool read_whole = read(signals_.get(), &info, sizeof(info)) == sizeof(info);
    spdlog::info("stopping reason=\"{}\"",
                 read_whole && info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
  }

  const Flags& flags_;
  const Settings& settings_;
  const PlanFunction plan_;
  const SystemClock clock_;
  UniqueFd signals_;      // a signalfd
  UniqueFd grpc_, http_;  // listen as long as the program runs, whoever takes the callers
  std::shared_ptr<EtcdClient> client_;
  std::optional<Election> election_;  // from when it listens
  bool has_answered_ = false;         // it has led or stood by
};

}  // namespace

absl::Status ServeAmongOthers(const Flags& flags, const Settings& settings, PlanFunction plan,
                              const sigset_t& signals) {
  return AmongOthers(flags, settings, std::move(plan)).Run(signals);
}

}  // namespace phalanx::coordinator
