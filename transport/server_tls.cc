#include "transport/server_tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/posix/file.h"
#include "core/posix/peer_name.h"
#include "core/posix/signals.h"
#include "transport/issuance.h"

namespace phalanx::transport {
namespace {

constexpr int64_t kServedFileBytesMax = 16 << 20;

absl::StatusOr<std::string> JoinedTextsOf(const TlsFiles& files) {
  std::string texts;
  for (const std::string& path : {files.ca, files.certificate, files.key}) {
    const absl::StatusOr<std::string> text = ReadWholeFile(path, kServedFileBytesMax);
    if (!text.ok()) return Annotate(text.status(), path);
    absl::StrAppend(&texts, text->size(), "\n", *text);
  }
  return texts;
}

// Everything is told in plain certificates: no session is resumed, so each handshake shows one
// anew.
bool Configure(SSL_CTX* context, const TlsFiles& files) {
  // Of whoever goes in the midst of a handshake OpenSSL would say that what they sent is spoilt.
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_default_passwd_cb(context, NoPassword);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
      SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1 ||
      SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr) != 1) {
    return false;
  }
  // Browsers offer those of the person's certificates that these have signed.
  SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(files.ca.c_str()));
  return true;
}

}  // namespace

TlsStream::~TlsStream() {
  if (!broken_ && SSL_is_init_finished(ssl_.get()) == 1) SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

ssize_t TlsStream::Outcome(int result) {
  wants_ = 0;
  if (result > 0) return result;
  const int error = SSL_get_error(ssl_.get(), result);
  ERR_clear_error();
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    wants_ = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    errno = EAGAIN;
    return -1;
  }
  broken_ = error != SSL_ERROR_ZERO_RETURN;
  errno = ECONNRESET;
  return broken_ ? -1 : 0;
}

ssize_t TlsStream::Read(char* to, size_t bytes) {
  ERR_clear_error();
  return Outcome(SSL_read(ssl_.get(), to, static_cast<int>(std::min<size_t>(bytes, INT_MAX))));
}

ssize_t TlsStream::Write(const char* from, size_t bytes) {
  ERR_clear_error();
  return Outcome(SSL_write(ssl_.get(), from, static_cast<int>(std::min<size_t>(bytes, INT_MAX))));
}

ShownCertificate TlsStream::peer() const {
  ShownCertificate shown;
  const Certificate own(SSL_get1_peer_certificate(ssl_.get()));
  if (own == nullptr || SSL_get_verify_result(ssl_.get()) != X509_V_OK) return shown;
  const Bio to(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(to.get(), own.get());
  const STACK_OF(X509)* chain = SSL_get0_verified_chain(ssl_.get());
  for (int i = 1; i < sk_X509_num(chain); ++i)
    PEM_write_bio_X509(to.get(), sk_X509_value(chain, i));
  char* text = nullptr;
  const long size = BIO_get_mem_data(to.get(), &text);
  shown.chain.assign(text, static_cast<size_t>(size));
  if (absl::StatusOr<CertificateFacts> facts = FactsOf(shown.chain); facts.ok())
    shown.uris = std::move(facts->uris);
  ERR_clear_error();
  return shown;
}

absl::StatusOr<std::unique_ptr<ServerTls>> ServerTls::Open(
    TlsFiles files, std::function<void(const std::string& line)> log) {
  LetWritesFail();
  RETURN_IF_ERROR(CheckTlsFiles(files, "--tls-"));
  std::unique_ptr<ServerTls> tls(new ServerTls(std::move(files), std::move(log)));
  RETURN_IF_ERROR(tls->Load());
  return tls;
}

absl::Status ServerTls::Load() {
  look_at_ = std::chrono::steady_clock::now() + std::chrono::seconds(files_.refresh_seconds);
  ASSIGN_OR_RETURN(std::string texts, JoinedTextsOf(files_));
  if (texts == texts_) return absl::OkStatus();
  std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> made(SSL_CTX_new(TLS_server_method()));
  const bool sound = made != nullptr && Configure(made.get(), files_);
  ERR_clear_error();
  if (!sound) {
    RETURN_IF_ERROR(CheckTlsFiles(files_, "--tls-"));
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-certificate: ", files_.certificate, ": OpenSSL does not take it"));
  }
  context_ = std::move(made);
  texts_ = std::move(texts);
  return absl::OkStatus();
}

void ServerTls::LookAgain() {
  if (std::chrono::steady_clock::now() < look_at_) return;
  std::string fault(Load().message());
  if (!fault.empty() && fault != told_)
    log_(absl::StrCat("http: ", fault, "; what was read before holds"));
  told_ = std::move(fault);
}

std::unique_ptr<TlsStream> ServerTls::Accept(int fd) {
  LookAgain();
  std::unique_ptr<SSL, Freed<SSL_free>> ssl;
  watch_.Watch(PeerNameOf(fd), [&] { ssl.reset(SSL_new(context_.get())); });
  if (ssl == nullptr || SSL_set_fd(ssl.get(), fd) != 1) return nullptr;
  SSL_set_accept_state(ssl.get());
  return std::make_unique<TlsStream>(std::move(ssl));
}

}  // namespace phalanx::transport
