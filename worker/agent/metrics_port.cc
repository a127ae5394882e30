#include "worker/agent/metrics_port.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/host_port.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "spdlog/spdlog.h"
#include "transport/revocation.h"
#include "worker/agent/port_refusals.h"

namespace phalanx::agent {
namespace {

constexpr absl::string_view kScheme = "phalanx:";
constexpr size_t kNameBytesMax = 253;

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::StrContains("._@+-", c);
         });
}

// "phalanx:ROLE/NAME" of a role that may read.
bool IsReader(absl::string_view uri) {
  for (const absl::string_view role : {"viewer/", "submitter/", "operator/"}) {
    absl::string_view name = uri.substr(kScheme.size());
    if (absl::ConsumePrefix(&name, role)) return IsName(name);
  }
  return false;
}

transport::RevocationOptions OfRevocations(const MetricsPortOptions& options) {
  return {.file = options.revoked,
          .ca = options.tls.ca,
          .name = "--tls-revoked",
          .refresh_seconds = options.tls.refresh_seconds};
}

// TLS, and who may read. What is refused is counted behind the other metrics.
absl::Status Guard(const MetricsPortOptions& options, transport::HttpOptions& http) {
  const auto warn = [](const std::string& line) { spdlog::warn("{}", LineText(line)); };
  const auto refusals = std::make_shared<PortRefusals>(warn);
  ASSIGN_OR_RETURN(http.tls, transport::ServerTls::Open(options.tls, warn));
  http.tls->OnFailedHandshake(
      [refusals](const transport::FailedHandshake& failed) { refusals->OfHandshake(failed); });
  std::shared_ptr<const transport::Revocations> revoked;  // null: nobody is
  if (!options.revoked.empty()) {
    transport::RevocationOptions lists = OfRevocations(options);
    lists.log = [](const std::string& line) { spdlog::info("{}", LineText(line)); };
    lists.warn = warn;
    ASSIGN_OR_RETURN(revoked, transport::Revocations::Open(std::move(lists)));
  }
  const auto may_read = [revoked](const transport::ShownCertificate& who) {
    RETURN_IF_ERROR(MayReadMetrics(who));
    return revoked == nullptr || !revoked->Has(who.chain)
               ? absl::OkStatus()
               : absl::UnauthenticatedError("the certificate is revoked; ask for another one");
  };
  http.guard = {
      .admit =
          [refusals, may_read](const transport::ShownCertificate& who, absl::string_view) {
            absl::Status status = may_read(who);
            if (!status.ok()) refusals->OfRequest(who, status);
            return status;
          },
      .holds = [may_read](const transport::ShownCertificate& who) { return may_read(who).ok(); }};
  http.unread = [refusals](const transport::ShownCertificate& who, const absl::Status& why) {
    refusals->OfRequest(who, why);
  };
  http.metrics = [metrics = std::move(http.metrics), refusals] {
    return absl::StrCat(metrics(), refusals->Text());
  };
  return absl::OkStatus();
}

}  // namespace

absl::Status MayReadMetrics(const transport::ShownCertificate& who) {
  if (who.chain.empty()) {
    return absl::UnauthenticatedError(
        "show a certificate of a viewer, submitter or operator; /livez and /readyz answer without "
        "one");
  }
  int ours = 0, readers = 0;
  for (const std::string& uri : who.uris) {
    if (!absl::StartsWith(uri, kScheme)) continue;
    ++ours;
    if (IsReader(uri)) ++readers;
  }
  if (ours == 1 && readers == 1) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "the certificate is not that of a viewer, or of one who may more");
}

absl::Status CheckMetricsPort(const MetricsPortOptions& options) {
  const bool certified = !options.tls.certificate.empty() || !options.tls.key.empty();
  if (options.address.empty()) {
    if (!certified && !options.plaintext && options.revoked.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--metrics-certificate, --metrics-key, --metrics-plaintext and --tls-revoked: they go with "
        "--metrics HOST:PORT");
  }
  const absl::StatusOr<HostPort> address = ParseHostPort(options.address, 0);
  if (!address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics: ", address.status().message()));
  }
  if (!certified && !options.revoked.empty()) {
    return absl::InvalidArgumentError(
        "--tls-revoked: there are no certificates of readers without --metrics-certificate and "
        "--metrics-key");
  }
  if (!certified) {
    return transport::CheckPlaintext(
        {.flag = "--metrics",
         .address = options.address,
         .asked = options.plaintext ? "--metrics-plaintext" : "",
         .files = "--tls-ca, --metrics-certificate and --metrics-key"});
  }
  if (options.plaintext) {
    return absl::InvalidArgumentError(
        "--metrics-plaintext: leave it out, or --metrics-certificate and --metrics-key");
  }
  if (options.tls.ca.empty()) {
    return absl::InvalidArgumentError(
        "--metrics-certificate: give --tls-ca too, the authorities of those who may read");
  }
  RETURN_IF_ERROR(transport::CheckTlsFiles(options.tls, "--metrics-"));
  RETURN_IF_ERROR(transport::CheckServes(options.tls, "--metrics-"));
  if (options.revoked.empty()) return absl::OkStatus();
  return transport::Revocations::Open(OfRevocations(options)).status();
}

absl::StatusOr<std::unique_ptr<transport::HttpServer>> OpenMetricsPort(
    const MetricsPortOptions& options, std::function<std::string()> metrics,
    std::function<Health()> live, std::function<Health()> ready) {
  RETURN_IF_ERROR(CheckMetricsPort(options));
  ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.address, 0));
  transport::HttpOptions http{.host = address.host, .port = address.port};
  http.metrics = std::move(metrics);
  if (!options.tls.certificate.empty()) RETURN_IF_ERROR(Guard(options, http));
  http.live = std::move(live);
  http.ready = std::move(ready);
  return transport::HttpServer::Start(std::move(http));
}

}  // namespace phalanx::agent
