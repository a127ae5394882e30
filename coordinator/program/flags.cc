#include "coordinator/program/flags.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "transport/revocation.h"
#include "transport/server_tls.h"

namespace phalanx::coordinator {
namespace {

constexpr int64_t kJobsMax = 1'000'000'000;
// A token's certificate is renewed when two thirds of its life are over.
constexpr absl::Duration kCertificateLifeMin = absl::Seconds(10);
// At less, workers would do little else than say that they live.
constexpr absl::Duration kHeartbeatIntervalMin = absl::Milliseconds(100);

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

constexpr absl::string_view kCertificateFlags = "--tls-ca, --tls-certificate and --tls-key";

// Whoever reaches a port in plaintext may do everything there.
absl::Status CheckListen(const Flags& flags) {
  if (flags.tls.on() && flags.plaintext) {
    return absl::InvalidArgumentError(
        "--plaintext: leave it out, or --tls-certificate and the like");
  }
  if (flags.tls.on()) return absl::OkStatus();
  return transport::CheckPlaintext({.flag = "--listen",
                                    .address = flags.listen,
                                    .asked = flags.plaintext ? "--plaintext" : "",
                                    .files = kCertificateFlags});
}

absl::Status CheckHttp(const Flags& flags) {
  if (!flags.tls.on()) {
    if (flags.http_plaintext) {
      return absl::InvalidArgumentError(absl::StrCat("--http-plaintext: leave it out: without ",
                                                     kCertificateFlags,
                                                     " the HTTP port is in plaintext anyway"));
    }
    return transport::CheckPlaintext({.flag = "--http",
                                      .address = flags.http,
                                      .asked = flags.plaintext ? "--plaintext" : "",
                                      .files = kCertificateFlags});
  }
  if (!flags.http_plaintext) return absl::OkStatus();
  return transport::CheckPlaintext(
      {.flag = "--http", .address = flags.http, .asked = "--http-plaintext"});
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

// Whoever reads what we send to etcd knows all jobs, and whoever answers instead of it says what
// they are.
absl::Status CheckEtcd(const Flags& flags, const std::optional<EtcdPlace>& place) {
  if (!place.has_value()) {
    if (!flags.etcd_tls.on() && !flags.etcd_plaintext && flags.advertise.empty()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "--etcd-ca, --etcd-certificate, --etcd-key, --etcd-plaintext and --advertise: they go with "
        "a store on etcd, --store etcd://HOST:PORT/PREFIX");
  }
  RETURN_IF_ERROR(transport::CheckTlsFiles(flags.etcd_tls, "--etcd-"));
  if (!flags.advertise.empty()) {
    RETURN_IF_ERROR(ParseAddress(flags.advertise, "--advertise").status());
  }
  if (flags.etcd_tls.on() && flags.etcd_plaintext) {
    return absl::InvalidArgumentError(
        "--etcd-plaintext: leave it out, or --etcd-certificate and the like");
  }
  if (flags.etcd_tls.on()) return absl::OkStatus();
  for (const std::string& member : place->members) {
    RETURN_IF_ERROR(
        transport::CheckPlaintext({.flag = IsEtcdPlace(flags.store) ? "--store" : "--copy-store-to",
                                   .address = member,
                                   .asked = flags.etcd_plaintext ? "--etcd-plaintext" : "",
                                   .files = "--etcd-ca, --etcd-certificate and --etcd-key"}));
  }
  return absl::OkStatus();
}

absl::Status CheckCopy(const Flags& flags, const Settings& settings) {
  if (flags.copy_store_to.empty()) return absl::OkStatus();
  if (flags.check_store) {
    return absl::InvalidArgumentError(
        "--check-store: leave it out: --copy-store-to checks the store too");
  }
  if (settings.etcd.has_value() != settings.copy_to.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--copy-store-to: ", flags.copy_store_to,
                   ": it copies from a folder to etcd://HOST:PORT/PREFIX or back; between folders "
                   "the files are copied, between etcds a snapshot is restored"));
}

absl::StatusOr<std::optional<EtcdPlace>> ReadPlace(const std::string& store,
                                                   absl::string_view flag) {
  if (!IsEtcdPlace(store)) {
    if (!absl::StrContains(store, "://")) return std::nullopt;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", LineText(store),
                     ": must be a folder, or etcd://HOST:PORT[,HOST:PORT...]/PREFIX"));
  }
  absl::StatusOr<EtcdPlace> place = ParseEtcdPlace(store);
  if (place.ok()) return *std::move(place);
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", place.status().message()));
}

}  // namespace

absl::StatusOr<Settings> ReadSettings(const Flags& flags) {
  Settings settings;
  ASSIGN_OR_RETURN(settings.listen, ParseAddress(flags.listen, "--listen"));
  RETURN_IF_ERROR(CheckListen(flags));
  RETURN_IF_ERROR(transport::CheckTlsFiles(flags.tls, "--tls-"));
  RETURN_IF_ERROR(transport::CheckServes(flags.tls, "--tls-"));
  RETURN_IF_ERROR(CheckRevoked(flags));
  RETURN_IF_ERROR(CheckJoin(flags));
  ASSIGN_OR_RETURN(settings.http, ParseAddress(flags.http, "--http"));
  RETURN_IF_ERROR(CheckHttp(flags));
  ASSIGN_OR_RETURN(settings.etcd, ReadPlace(flags.store, "--store"));
  ASSIGN_OR_RETURN(settings.copy_to, ReadPlace(flags.copy_store_to, "--copy-store-to"));
  RETURN_IF_ERROR(CheckCopy(flags, settings));
  RETURN_IF_ERROR(CheckEtcd(flags, settings.etcd.has_value() ? settings.etcd : settings.copy_to));
  ASSIGN_OR_RETURN(settings.certificate_life,
                   ParsePositive(flags.certificate_life, "--join-certificate-life"));
  if (settings.certificate_life < kCertificateLifeMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--join-certificate-life: ", flags.certificate_life, ": must be at least 10s"));
  }
  ASSIGN_OR_RETURN(settings.grace, ParsePositive(flags.grace, "--grace"));
  ASSIGN_OR_RETURN(settings.heartbeat_interval,
                   ParsePositive(flags.heartbeat_interval, "--heartbeat-interval"));
  if (settings.heartbeat_interval < kHeartbeatIntervalMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--heartbeat-interval: ", flags.heartbeat_interval, ": must be at least 100ms"));
  }
  ASSIGN_OR_RETURN(settings.heartbeat_timeout,
                   ParsePositive(flags.heartbeat_timeout, "--heartbeat-timeout"));
  ASSIGN_OR_RETURN(settings.ended_age_max, ParsePositive(flags.ended_age_max, "--ended-age-max"));
  ASSIGN_OR_RETURN(settings.slow_delay, ParsePositive(flags.slow_delay, "--slow-delay"));
  if (!absl::ParseDuration(flags.share_half_life, &settings.share_half_life) ||
      settings.share_half_life < absl::ZeroDuration() ||
      settings.share_half_life == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("--share-half-life: \"", flags.share_half_life,
                                                   "\": must be a duration such as 168h, or 0"));
  }
  // A range has no say over what is no number.
  if (std::isnan(flags.calls_per_second)) {
    return absl::InvalidArgumentError("--calls-per-second: nan: must be a number");
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

EtcdOptions EtcdOptionsOf(const Flags& flags, const EtcdPlace& place) {
  return {.members = place.members, .tls = flags.etcd_tls};
}

ServerOptions OptionsOf(const Flags& flags, const Settings& settings, PlanFunction plan) {
  ServerOptions options{.host = settings.listen.host, .port = settings.listen.port};
  options.driver.plan = std::move(plan);
  options.driver.machine.live_jobs_max = flags.live_jobs_max;
  options.driver.machine.allow_inject = flags.allow_inject;
  options.driver.machine.quotas = settings.quotas;
  options.driver.machine.share_half_life = settings.share_half_life;
  options.driver.machine.pace_delay = settings.slow_delay;
  options.quotas = flags.quotas;
  options.driver.log = [](const std::string& line) { spdlog::info("{}", line); };
  options.warn = [](const std::string& line) { spdlog::warn("{}", LineText(line)); };
  options.audit = [](const std::string& line) { spdlog::info("{}", line); };
  options.tls = flags.tls;
  options.rate = {.calls_per_second = flags.calls_per_second,
                  .calls_at_once = std::max(1.0, 10 * flags.calls_per_second)};
  options.revoked = flags.revoked;
  options.certificates = {{"tls", flags.tls.certificate},
                          {"etcd", flags.etcd_tls.certificate},
                          {"join_ca", flags.signer.certificate}};
  options.join = {.signer = flags.signer, .certificate_life = settings.certificate_life};
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

absl::StatusOr<transport::HttpOptions> PagesOf(const Flags& flags, const Settings& settings) {
  transport::HttpOptions options{.host = settings.http.host, .port = settings.http.port};
  if (!flags.tls.on() || flags.http_plaintext) return options;
  ASSIGN_OR_RETURN(options.tls, transport::ServerTls::Open(flags.tls, [](const std::string& line) {
                     spdlog::warn("{}", LineText(line));
                   }));
  return options;
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--listen", flags.listen, "HOST:PORT for gRPC; port 0: any free one")
      ->capture_default_str();
  app.add_option("--http", flags.http,
                 "HOST:PORT for the status page, /metrics, /livez and /readyz")
      ->capture_default_str();
  app.add_option(
         "--store", flags.store,
         "folder of the journal, made if it is not there; or "
         "etcd://HOST:PORT[,HOST:PORT...]/PREFIX, which several coordinators share: one leads, "
         "the others stand by")
      ->required();
  app.add_option(
      "--advertise", flags.advertise,
      "HOST:PORT of this coordinator, told to those who ask one that stands by; default: "
      "--listen");
  app.add_option(
      "--etcd-ca", flags.etcd_tls.ca,
      "PEM file of the authorities whose certificates etcd must show; with the two below: "
      "mutual TLS with etcd");
  app.add_option("--etcd-certificate", flags.etcd_tls.certificate,
                 "PEM file of this program's own, for etcd");
  app.add_option("--etcd-key", flags.etcd_tls.key, "PEM file of its private key");
  app.add_flag("--etcd-plaintext", flags.etcd_plaintext,
               "talk to etcd without TLS, as without the three above: on loopback alone");
  app.add_option("--ready-file", flags.ready_file, "written with the addresses once serving");
  app.add_option("--heartbeat-interval", flags.heartbeat_interval,
                 "workers say that they live so often; at least 100ms")
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
  app.add_option("--slow-delay", flags.slow_delay,
                 "for how long a device has been slow, or not any more, when the samples of a job "
                 "that wants it are dealt by that")
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
  app.add_flag("--plaintext", flags.plaintext,
               "serve without TLS, as without certificates: on loopback alone, where all who use "
               "this machine may do everything");
  app.add_flag("--http-plaintext", flags.http_plaintext,
               "serve --http without TLS and identities although there are certificates: on "
               "loopback alone");
  app.add_flag("--reflection", flags.reflection, "describe the services to tools such as grpcurl");
  app.add_flag("--allow-inject", flags.allow_inject,
               "bring faults about on demand (phalanx inject), for whoever may submit jobs");
  app.add_flag("--check-store", flags.check_store,
               "read all of the store, say what is wrong with it, and end");
  app.add_option("--copy-store-to", flags.copy_store_to,
                 "copy the store of a coordinator that has ended, from a folder to "
                 "etcd://HOST:PORT/PREFIX or back, where there is nothing yet, and end");
}

}  // namespace phalanx::coordinator
