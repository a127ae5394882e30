#include "worker/agent/metrics_port.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/host_port.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "spdlog/spdlog.h"

namespace phalanx::agent {
namespace {

constexpr absl::string_view kWorkers = "phalanx:worker/";

// A certificate of ours names one of ours, and every role but that of nodes may read.
absl::Status MayRead(const transport::ShownCertificate& who) {
  if (who.chain.empty()) {
    return absl::UnauthenticatedError(
        "show a certificate of a viewer, submitter or operator; /livez and /readyz answer without "
        "one");
  }
  int readers = 0;
  for (const std::string& uri : who.uris) {
    if (absl::StartsWith(uri, kWorkers)) readers = 2;  // whatever else it says
    for (const absl::string_view role : {"viewer", "submitter", "operator"}) {
      if (absl::StartsWith(uri, absl::StrCat("phalanx:", role, "/"))) ++readers;
    }
  }
  if (readers == 1) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "the certificate is not that of a viewer, or of one who may more");
}

}  // namespace

absl::Status CheckMetricsPort(const MetricsPortOptions& options) {
  const bool certified = !options.tls.certificate.empty() || !options.tls.key.empty();
  if (options.address.empty()) {
    if (!certified && !options.plaintext) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--metrics-certificate, --metrics-key and --metrics-plaintext: they go with --metrics "
        "HOST:PORT");
  }
  const absl::StatusOr<HostPort> address = ParseHostPort(options.address, 0);
  if (!address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics: ", address.status().message()));
  }
  if (!certified) {
    if (options.plaintext || IsLoopback(address->host)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics: ", options.address,
                     ": whoever reaches it could read it, unencrypted; give --metrics-certificate "
                     "and --metrics-key, or ask for that with --metrics-plaintext"));
  }
  if (options.plaintext) {
    return absl::InvalidArgumentError(
        "--metrics-plaintext: leave it out, or --metrics-certificate and --metrics-key");
  }
  if (options.tls.ca.empty()) {
    return absl::InvalidArgumentError(
        "--metrics-certificate: give --tls-ca too, the authorities of those who may read");
  }
  return transport::CheckTlsFiles(options.tls, "--metrics-");
}

absl::StatusOr<std::unique_ptr<transport::HttpServer>> OpenMetricsPort(
    const MetricsPortOptions& options, std::function<std::string()> metrics,
    std::function<Health()> live, std::function<Health()> ready) {
  RETURN_IF_ERROR(CheckMetricsPort(options));
  ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.address, 0));
  transport::HttpOptions http{.host = address.host, .port = address.port};
  if (!options.tls.certificate.empty()) {
    ASSIGN_OR_RETURN(http.tls, transport::ServerTls::Open(options.tls, [](const std::string& line) {
                       spdlog::warn("{}", LineText(line));
                     }));
    http.guard = {
        .admit = [](const transport::ShownCertificate& who,
                    absl::string_view) { return MayRead(who); },
        .holds = [](const transport::ShownCertificate& who) { return MayRead(who).ok(); }};
  }
  http.metrics = std::move(metrics);
  http.live = std::move(live);
  http.ready = std::move(ready);
  return transport::HttpServer::Start(std::move(http));
}

}  // namespace phalanx::agent
