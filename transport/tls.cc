#include "transport/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/host_port.h"
#include "core/base/status.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "transport/openssl.h"
#include "transport/sound_files.h"

namespace phalanx::transport {
namespace {

absl::StatusOr<Bio> Open(const std::string& path, absl::string_view name) {
  // To open a pipe would wait for its other end.
  struct stat found {};
  if (stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", path, ": is not a regular file"));
  Bio file(BIO_new_file(path.c_str(), "r"));
  if (file != nullptr) return file;
  ERR_clear_error();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", path, ": cannot be read: ", std::strerror(errno)));
}

// The first one; those behind it are read, too.
absl::StatusOr<Certificate> ReadCertificate(const std::string& path, absl::string_view name) {
  ASSIGN_OR_RETURN(const Bio file, Open(path, name));
  Certificate first(PEM_read_bio_X509(file.get(), nullptr, NoPassword, nullptr));
  for (int number = 2; first != nullptr; ++number) {
    const Certificate next(PEM_read_bio_X509(file.get(), nullptr, NoPassword, nullptr));
    if (next != nullptr) continue;
    if (IsEndOfPem()) return first;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", path, ": certificate ", number, " of it must be one in PEM"));
  }
  ERR_clear_error();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", path, ": must begin with a certificate in PEM"));
}

std::shared_ptr<grpc::experimental::CertificateProviderInterface> ProviderOf(
    const TlsFiles& files) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.ca, static_cast<unsigned>(files.refresh_seconds));
}

}  // namespace

absl::Status CheckPlaintext(const PlaintextUse& use) {
  const absl::StatusOr<HostPort> address = ParseHostPort(use.address, 0);
  if (!address.ok() || IsLoopback(address->host)) return absl::OkStatus();
  std::string text = absl::StrCat(use.flag, ": ", use.address, ": plaintext is for loopback alone");
  if (!use.asked.empty()) absl::StrAppend(&text, ", so ", use.asked, " does not go with it");
  if (use.files.empty()) {
    absl::StrAppend(&text, "; leave ", use.asked, " out");
  } else {
    absl::StrAppend(&text, "; give ", use.files, ": scripts/make_ca makes them for development");
  }
  return absl::InvalidArgumentError(text);
}

absl::Status CheckPlaintextTo(absl::string_view servers, absl::string_view flag,
                              const TlsFiles& files, absl::string_view asked) {
  if (files.on() && !asked.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(asked, ": leave it out, or --tls-ca and the like"));
  }
  if (files.on()) return absl::OkStatus();
  for (const absl::string_view server : absl::StrSplit(servers, ',')) {
    RETURN_IF_ERROR(CheckPlaintext({.flag = flag,
                                    .address = server,
                                    .asked = asked,
                                    .files = "--tls-ca, --tls-certificate and --tls-key"}));
  }
  return absl::OkStatus();
}

absl::Status CheckTlsFiles(const TlsFiles& files, absl::string_view prefix) {
  if (!files.on()) return absl::OkStatus();
  const std::string ca = absl::StrCat(prefix, "ca"),
                    certificate = absl::StrCat(prefix, "certificate"),
                    key = absl::StrCat(prefix, "key");
  for (const auto& [name, path] :
       {std::pair(ca, files.ca), std::pair(certificate, files.certificate),
        std::pair(key, files.key)}) {
    if (!path.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, " is missing: TLS needs ", ca, ", ",
                                                   certificate, " and ", key, ", all three"));
  }
  RETURN_IF_ERROR(ReadCertificate(files.ca, ca).status());
  ASSIGN_OR_RETURN(const Certificate own, ReadCertificate(files.certificate, certificate));
  ASSIGN_OR_RETURN(const Bio file, Open(files.key, key));
  const Key secret(PEM_read_bio_PrivateKey(file.get(), nullptr, NoPassword, nullptr));
  if (secret == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": ", files.key, ": must be a private key in PEM, without a password"));
  }
  if (X509_check_private_key(own.get(), secret.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": ", files.key, ": is not the key of ", files.certificate));
  }
  return absl::OkStatus();
}

absl::Status CheckServes(const TlsFiles& files, absl::string_view prefix) {
  if (files.certificate.empty()) return absl::OkStatus();
  const std::string name = absl::StrCat(prefix, "certificate");
  ASSIGN_OR_RETURN(const Certificate own, ReadCertificate(files.certificate, name));
  if (X509_check_purpose(own.get(), X509_PURPOSE_SSL_SERVER, /*ca=*/0) == 1)
    return absl::OkStatus();
  ERR_clear_error();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", files.certificate,
                   ": is not for a server, and nobody would accept it: its extendedKeyUsage must "
                   "have serverAuth (make_ca DIR coordinator HOST, or node HOST)"));
}

absl::Status CheckHolds(const TlsFiles& files, absl::string_view prefix, absl::Time now) {
  if (files.certificate.empty()) return absl::OkStatus();
  const std::string name = absl::StrCat(prefix, "certificate");
  ASSIGN_OR_RETURN(const Certificate own, ReadCertificate(files.certificate, name));
  const absl::Time begin = TimeOf(X509_get0_notBefore(own.get()));
  const absl::Time end = TimeOf(X509_get0_notAfter(own.get()));
  if (begin <= now && now <= end) return absl::OkStatus();
  const std::string when =
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", now > end ? end : begin, absl::UTCTimeZone());
  return absl::FailedPreconditionError(absl::StrCat(
      name, ": ", files.certificate,
      now > end ? absl::StrCat(": expired at ", when)
                : absl::StrCat(": holds from ", when, " on; is the clock here right?")));
}

std::map<std::string, absl::Time> ExpiriesOf(const CertificateFiles& files) {
  std::map<std::string, absl::Time> expiries;
  for (const auto& [use, path] : files) {
    if (path.empty()) continue;
    const absl::StatusOr<Bio> file = Open(path, use);
    if (!file.ok()) continue;
    absl::Time first = absl::InfiniteFuture();
    while (const Certificate next{PEM_read_bio_X509(file->get(), nullptr, NoPassword, nullptr)})
      first = std::min(first, TimeOf(X509_get0_notAfter(next.get())));
    ERR_clear_error();
    if (first != absl::InfiniteFuture()) expiries[use] = first;
  }
  return expiries;
}

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const TlsFiles& files) {
  if (!files.on()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(ProviderOf(files));
  options.watch_root_certs();
  if (!files.certificate.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TlsFiles& files) {
  if (!files.on()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(ProviderOf(SoundCopyOf(files)));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace phalanx::transport
