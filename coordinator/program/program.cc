#include "coordinator/program/program.h"

#include <malloc.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/http/http_server.h"
#include "coordinator/net/socket.h"
#include "coordinator/rpc/server.h"
#include "coordinator/runtime/quota_file.h"
#include "coordinator/status/status_page.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/store/store_check.h"
#include "core/base/host_port.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/posix/signals.h"
#include "core/posix/whole_file.h"
#include "transport/revocation.h"
#include "transport/tls.h"

namespace phalanx::coordinator {
namespace {

constexpr int64_t kJobsMax = 1'000'000'000;

struct Flags {
  std::string listen = "127.0.0.1:4444";
  std::string http = "127.0.0.1:4445";
  std::string store;
  std::string ready_file;
  std::string heartbeat_interval = "3s";
  std::string heartbeat_timeout = "15s";
  std::string grace = "10s";
  int64_t live_jobs_max = CoordinatorOptions().live_jobs_max;
  std::string ended_age_max = "2160h";
  int64_t ended_jobs_max = Retention().count_max;
  transport::TlsFiles tls;
  std::string revoked;
  bool plaintext = false;
  bool http_plaintext = false;
  transport::SignerFiles signer;
  std::string certificate_life = "168h";
  int64_t queued_per_person = ServerOptions().person_queued_jobs_max;
  std::string quotas;
  std::string share_half_life = "168h";
  double calls_per_second = CallRateOptions().calls_per_second;
  bool reflection = false;
  bool allow_inject = false;
  bool check_store = false;
};

absl::StatusOr<HostPort> ParseAddress(const std::string& text, absl::string_view flag) {
  absl::StatusOr<HostPort> address = ParseHostPort(text, 0);
  if (address.ok()) return address;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", address.status().message()));
}

absl::StatusOr<absl::Duration> ParsePositive(const std::string& text, absl::string_view flag) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": \"", text, "\": must be a duration above 0, such as 15s"));
  }
  return duration;
}

std::string JournalPath(const Flags& flags) { return absl::StrCat(flags.store, "/journal.db"); }

// A store is made where there is none, which may be the wrong place. `found`: what was there.
void TellNewStore(const std::string& path, const std::optional<struct stat>& found) {
  if (!found.has_value()) {
    spdlog::info("made a new store reason=\"there was none at {}\"", path);
  } else if (S_ISREG(found->st_mode) && found->st_size == 0) {
    spdlog::warn(
        "made a new store reason=\"{} was empty (0 bytes); jobs that it held are unknown\"", path);
  }
}

// --check-store. OK: the store is whole.
absl::Status Check(const Flags& flags) {
  const absl::StatusOr<StoreReport> report = CheckStore(JournalPath(flags));
  if (!report.ok()) return report.status();
  for (const std::string& line : Lines(*report)) std::printf("%s\n", line.c_str());
  return report->problems.empty() ? absl::OkStatus() : absl::DataLossError("the store is damaged");
}

// A damaged store is refused with everything that is wrong with it.
absl::Status Explain(const Flags& flags, absl::Status status) {
  if (!absl::IsDataLoss(status)) return status;
  const absl::StatusOr<StoreReport> report = CheckStore(JournalPath(flags));
  if (!report.ok()) return status;
  for (const std::string& line : Lines(*report)) spdlog::error("{}", LineText(line));
  return status;
}

// Flags that have a form of their own.
struct Settings {
  HostPort listen, http;
  absl::Duration grace, heartbeat_interval, heartbeat_timeout, ended_age_max, certificate_life;
  absl::Duration share_half_life;
  Quotas quotas;
};

// A token's certificate is renewed when two thirds of its life are over.
constexpr absl::Duration kCertificateLifeMin = absl::Seconds(10);

// Whoever reaches a port in plaintext may do everything there.
absl::Status CheckPlaintext(const Flags& flags, const HostPort& listen) {
  if (flags.tls.on() && flags.plaintext) {
    return absl::InvalidArgumentError(
        "--plaintext: leave it out, or --tls-certificate and the like");
  }
  if (flags.tls.on() || flags.plaintext || IsLoopback(listen.host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--listen: ", flags.listen,
                   ": whoever reaches it could do everything, unencrypted; give --tls-ca, "
                   "--tls-certificate and --tls-key, or ask for that with --plaintext"));
}

absl::Status CheckHttpPlaintext(const Flags& flags, const HostPort& http) {
  if (flags.http_plaintext && !flags.tls.on()) {
    return absl::InvalidArgumentError(
        "--http-plaintext: leave it out: without --tls-ca, --tls-certificate and --tls-key the "
        "HTTP "
        "port is in plaintext anyway");
  }
  if (flags.tls.on() || flags.plaintext || IsLoopback(http.host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--http: ", flags.http,
                   ": whoever reaches it could see every job, unencrypted; give --tls-ca, "
                   "--tls-certificate and --tls-key, or ask for that with --plaintext"));
}

absl::Status CheckJoin(const Flags& flags) {
  if (!flags.signer.on()) return absl::OkStatus();
  if (!flags.tls.on()) {
    return absl::InvalidArgumentError(
        "--join-ca-certificate: nodes join over TLS; give --tls-ca, --tls-certificate and "
        "--tls-key");
  }
  return transport::CheckSignerFiles(flags.signer, flags.tls.ca, "--join-ca-");
}

absl::Status CheckRevoked(const Flags& flags) {
  if (flags.revoked.empty()) return absl::OkStatus();
  if (!flags.tls.on()) {
    return absl::InvalidArgumentError(
        "--tls-revoked: there are no certificates without --tls-ca, --tls-certificate and "
        "--tls-key");
  }
  return transport::Revocations::Open(
             {.file = flags.revoked, .ca = flags.tls.ca, .name = "--tls-revoked"})
      .status();
}

absl::StatusOr<Settings> Read(const Flags& flags) {
  Settings settings;
  ASSIGN_OR_RETURN(settings.listen, ParseAddress(flags.listen, "--listen"));
  RETURN_IF_ERROR(CheckPlaintext(flags, settings.listen));
  RETURN_IF_ERROR(transport::CheckTlsFiles(flags.tls, "--tls-"));
  RETURN_IF_ERROR(CheckRevoked(flags));
  RETURN_IF_ERROR(CheckJoin(flags));
  ASSIGN_OR_RETURN(settings.http, ParseAddress(flags.http, "--http"));
  RETURN_IF_ERROR(CheckHttpPlaintext(flags, settings.http));
  ASSIGN_OR_RETURN(settings.certificate_life,
                   ParsePositive(flags.certificate_life, "--join-certificate-life"));
  if (settings.certificate_life < kCertificateLifeMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--join-certificate-life: ", flags.certificate_life, ": must be at least 10s"));
  }
  ASSIGN_OR_RETURN(settings.grace, ParsePositive(flags.grace, "--grace"));
  ASSIGN_OR_RETURN(settings.heartbeat_interval,
                   ParsePositive(flags.heartbeat_interval, "--heartbeat-interval"));
  ASSIGN_OR_RETURN(settings.heartbeat_timeout,
                   ParsePositive(flags.heartbeat_timeout, "--heartbeat-timeout"));
  ASSIGN_OR_RETURN(settings.ended_age_max, ParsePositive(flags.ended_age_max, "--ended-age-max"));
  if (!absl::ParseDuration(flags.share_half_life, &settings.share_half_life) ||
      settings.share_half_life < absl::ZeroDuration() ||
      settings.share_half_life == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("--share-half-life: \"", flags.share_half_life,
                                                   "\": must be a duration such as 168h, or 0"));
  }
  if (!flags.quotas.empty()) {
    ASSIGN_OR_RETURN(settings.quotas, ReadQuotaFile(flags.quotas, "--quotas"));
  }
  if (settings.heartbeat_timeout < 2 * settings.heartbeat_interval) {
    return absl::InvalidArgumentError(
        absl::StrCat("--heartbeat-timeout: ", flags.heartbeat_timeout,
                     ": must be at least twice --heartbeat-interval, ", flags.heartbeat_interval));
  }
  return settings;
}

ServerOptions OptionsOf(const Flags& flags, const Settings& settings, PlanFunction plan) {
  ServerOptions options{.host = settings.listen.host, .port = settings.listen.port};
  options.driver.plan = std::move(plan);
  options.driver.machine.live_jobs_max = flags.live_jobs_max;
  options.driver.machine.allow_inject = flags.allow_inject;
  options.driver.machine.quotas = settings.quotas;
  options.driver.machine.share_half_life = settings.share_half_life;
  options.quotas = flags.quotas;
  options.driver.log = [](const std::string& line) { spdlog::info("{}", line); };
  options.audit = [](const std::string& line) { spdlog::info("{}", line); };
  options.tls = flags.tls;
  options.rate = {.calls_per_second = flags.calls_per_second,
                  .calls_at_once = std::max(1.0, 10 * flags.calls_per_second)};
  options.person_queued_jobs_max = flags.queued_per_person;
  options.revoked = flags.revoked;
  options.join = {.file = absl::StrCat(flags.store, "/join-tokens"),
                  .signer = flags.signer,
                  .certificate_life = settings.certificate_life};
  options.reflection = flags.reflection;
  options.driver.journal.retention = {.age_max = settings.ended_age_max,
                                      .count_max = flags.ended_jobs_max};
  options.driver.on_store = [](const absl::Status& status) {
    if (status.ok()) return spdlog::info("the store works again, accepting");
    spdlog::critical("store failed, accepting nothing until it works; jobs train on reason=\"{}\"",
                     LineText(status.message()));
  };
  options.sessions.heartbeat_interval = settings.heartbeat_interval;
  options.sessions.heartbeat_timeout = settings.heartbeat_timeout;
  return options;
}

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

absl::StatusOr<HttpOptions> PagesOf(const Flags& flags, const Settings& settings, Server& server,
                                    StatusPage& page) {
  HttpOptions options{
      .host = settings.http.host,
      .port = settings.http.port,
      .metrics = [&server] { return server.MetricsText(); },
      .ready = [&server] { return server.ready(); },
      .pages = [&page](const std::string& target,
                       HttpAnswer answer) { page.Serve(target, std::move(answer)); }};
  if (!flags.tls.on() || flags.http_plaintext) return options;
  ASSIGN_OR_RETURN(options.tls, transport::ServerTls::Open(flags.tls, [](const std::string& line) {
                     spdlog::warn("{}", LineText(line));
                   }));
  options.guard = {
      .admit = [&server](const transport::ShownCertificate& who,
                         absl::string_view) { return server.AdmitToPage(who); },
      .holds = [&server](const transport::ShownCertificate& who) { return server.Holds(who); }};
  return options;
}

absl::Status Serve(const Flags& flags, const Settings& settings, PlanFunction plan,
                   const sigset_t& signals) {
  const int descriptors = RaiseDescriptorLimit();
  spdlog::info(
      "starting descriptors={} listen={} http={} store={} heartbeat_interval={} "
      "heartbeat_timeout={} tls={} http_tls={} joins={} allow_inject={}",
      descriptors, flags.listen, flags.http, flags.store, flags.heartbeat_interval,
      flags.heartbeat_timeout, flags.tls.on(), flags.tls.on() && !flags.http_plaintext,
      flags.signer.on(), flags.allow_inject);

  std::filesystem::path store = flags.store;
  if (!store.has_filename()) store = store.parent_path();
  std::error_code ignored;  // mkdir says what is wrong with the folders above
  std::filesystem::create_directories(store.parent_path(), ignored);
  if (mkdir(store.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(
        absl::StrCat("cannot make the folder ", flags.store, ": ", std::strerror(errno)));
  }
  const std::string path = JournalPath(flags);
  struct stat found {};
  const bool is_new = stat(path.c_str(), &found) != 0;
  absl::StatusOr<std::unique_ptr<SqliteBackend>> backend = SqliteBackend::Open(path);
  if (!backend.ok()) return Explain(flags, backend.status());
  TellNewStore(path, is_new ? std::nullopt : std::optional(found));
  const std::shared_ptr<EndedJobs> ended = (*backend)->ended_jobs();
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(OptionsOf(flags, settings, std::move(plan)), *std::move(backend));
  if (!server.ok()) return Explain(flags, server.status());
  auto page = std::make_unique<StatusPage>((*server)->board());
  ASSIGN_OR_RETURN(HttpOptions pages, PagesOf(flags, settings, **server, *page));
  ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> http, HttpServer::Start(std::move(pages)));
  const std::string ready =
      absl::StrCat("{\"grpc\":\"", settings.listen.host, ":", (*server)->port(), "\",\"http\":\"",
                   settings.http.host, ":", http->port(), "\"}");
  spdlog::info("serving {}", ready);
  if (!flags.ready_file.empty()) RETURN_IF_ERROR(WriteWholeFile(flags.ready_file, ready + "\n"));

  int signal = 0;
  {
    const EntryCheck check(ended, **server);
    sigwait(&signals, &signal);
  }
  spdlog::info("stopping reason=\"{}\"", signal == SIGTERM ? "SIGTERM" : "SIGINT");
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second one ends at once
  http.reset();
  page.reset();  // before the board that it reads
  (*server)->Shutdown(settings.grace);
  server->reset();
  spdlog::info("stopped");
  return absl::OkStatus();
}

}  // namespace

int RunCoordinator(int argc, char** argv, PlanFunction plan) {
  Flags flags;
  CLI::App app("Phalanx coordinator: plans training jobs and tells nodes what to run.");
  app.add_option("--listen", flags.listen, "HOST:PORT for gRPC; port 0: any free one")
      ->capture_default_str();
  app.add_option("--http", flags.http,
                 "HOST:PORT for the status page, /metrics, /healthz and /readyz")
      ->capture_default_str();
  app.add_option("--store", flags.store, "folder of the journal; made if it is not there")
      ->required();
  app.add_option("--ready-file", flags.ready_file, "written with the addresses once serving");
  app.add_option("--heartbeat-interval", flags.heartbeat_interval,
                 "workers say that they live so often")
      ->capture_default_str();
  app.add_option("--heartbeat-timeout", flags.heartbeat_timeout,
                 "silence after which a node is given up; at least twice the interval")
      ->capture_default_str();
  app.add_option("--grace", flags.grace, "time to end open calls on SIGTERM")
      ->capture_default_str();
  app.add_option("--jobs-max", flags.live_jobs_max, "jobs that may be queued or run at a time")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, kJobsMax, "POSITIVE"));
  app.add_option("--quotas", flags.quotas,
                 "YAML file of what each owner may have of the cluster, looked at every 10 s");
  app.add_option("--share-half-life", flags.share_half_life,
                 "of device time that counts when owners take turns in the queue; 0: they do not")
      ->capture_default_str();
  app.add_option("--ended-age-max", flags.ended_age_max,
                 "jobs that ended longer ago are deleted from the store")
      ->capture_default_str();
  app.add_option("--ended-jobs-max", flags.ended_jobs_max,
                 "of jobs that have ended so many are kept, the newest")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kJobsMax, "NONNEGATIVE"));
  app.add_option("--tls-ca", flags.tls.ca,
                 "PEM file of the authorities whose certificates callers must show; with the two "
                 "below: mutual TLS on --listen, and TLS on --http");
  app.add_option("--tls-certificate", flags.tls.certificate, "PEM file of this program's own");
  app.add_option("--tls-key", flags.tls.key, "PEM file of its private key");
  app.add_option("--tls-revoked", flags.revoked,
                 "PEM file of revocation lists of those authorities, looked at every 10 s");
  app.add_option("--join-ca-certificate", flags.signer.certificate,
                 "PEM file of the authority that signs for nodes that join with a token; one of "
                 "--tls-ca, or signed by one");
  app.add_option("--join-ca-key", flags.signer.key, "PEM file of its private key");
  app.add_option("--join-certificate-life", flags.certificate_life,
                 "how long such a certificate holds; nodes renew theirs in time")
      ->capture_default_str();
  app.add_option("--calls-per-second", flags.calls_per_second,
                 "that one person may make, and ten times as many at once; 0: any number")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6, "NONNEGATIVE"));
  app.add_option("--queued-per-person", flags.queued_per_person,
                 "jobs that one person may have in the queue; 0: any number")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kJobsMax, "NONNEGATIVE"));
  app.add_flag("--plaintext", flags.plaintext,
               "serve without TLS where others reach --listen: all of them may do everything");
  app.add_flag("--http-plaintext", flags.http_plaintext,
               "serve --http without TLS and identities although there are certificates");
  app.add_flag("--reflection", flags.reflection, "describe the services to tools such as grpcurl");
  app.add_flag("--allow-inject", flags.allow_inject,
               "bring faults about on demand (phalanx inject), for whoever may submit jobs");
  app.add_flag("--check-store", flags.check_store,
               "read all of the store, say what is wrong with it, and end");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  // Documents are large and short-lived in memory: each goes back to the system when it is freed,
  // where the allocator would keep more and more of them for itself.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  spdlog::set_default_logger(spdlog::stderr_color_mt("phalanx"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l coordinator %v", spdlog::pattern_time_type::utc);
  // Blocked before the first thread, so that only sigwait sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  LetWritesFail();
  const absl::StatusOr<Settings> settings = Read(flags);
  if (!settings.ok()) {
    spdlog::error("{}", std::string(settings.status().message()));
    return 2;
  }
  const absl::Status status =
      flags.check_store ? Check(flags) : Serve(flags, *settings, std::move(plan), signals);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace phalanx::coordinator
