#include "transport/handshakes.h"

#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "transport/openssl.h"

namespace phalanx::transport {

// Thread-safe.
class HandshakeWatch::Listener {
 public:
  Listener(Told told, Finished finished) : told_(std::move(told)), finished_(std::move(finished)) {}
  void Tell(const FailedHandshake& failed) const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (told_) told_(failed);
  }
  std::unique_ptr<OpenConnection> Finish(const std::string& peer,
                                         const std::vector<std::string>& uris) const
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return finished_ ? finished_(peer, uris) : nullptr;
  }
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    told_ = nullptr;
    finished_ = nullptr;
  }

 private:
  mutable Mutex mu_;
  Told told_ ABSL_GUARDED_BY(mu_);  // none: the watch is over
  Finished finished_ ABSL_GUARDED_BY(mu_);
};

namespace {

constexpr int kNone = -1;
// Of a message with a certificate: its kind, its length, and lists that are empty.
constexpr size_t kEmptyCertificateBytesMax = 8;

// What was seen of one connection.
struct Handshake {
  std::shared_ptr<HandshakeWatch::Listener> listener;
  std::string peer;
  bool spoke = false;   // the peer has sent something
  bool no_tls = false;  // which was no record of TLS
  bool done = false;    // the peer has finished
  bool nothing_shown = false;
  int alert_sent = kNone, alert_received = kNone;
  long verified = X509_V_OK;
  std::shared_ptr<OpenConnection> connection;  // null: nobody asks for it, or it is not there yet
};

// Whose connections this thread begins; nullptr: nobody asks.
thread_local const Handshake* beginning = nullptr;

HandshakeFault FaultOf(long verified) {
  switch (verified) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return HandshakeFault::kExpired;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED:
      return HandshakeFault::kUntrusted;
    default:
      return HandshakeFault::kBadCertificate;
  }
}

FailedHandshake Judge(const Handshake& seen) {
  const auto failed = [&seen](HandshakeFault fault, std::string reason) {
    return FailedHandshake{seen.peer, fault, std::move(reason)};
  };
  if (seen.no_tls) return failed(HandshakeFault::kPlaintext, "what came first is no TLS");
  if (seen.verified != X509_V_OK) {
    return failed(
        FaultOf(seen.verified),
        absl::StrCat("the certificate is refused: ", X509_verify_cert_error_string(seen.verified)));
  }
  if (seen.nothing_shown && seen.alert_sent != kNone)
    return failed(HandshakeFault::kNoCertificate, "no certificate was shown");
  if (seen.alert_received != kNone) {
    return failed(
        HandshakeFault::kRefused,
        absl::StrCat("the peer ended it: ", SSL_alert_desc_string_long(seen.alert_received)));
  }
  if (seen.alert_sent != kNone) {
    return failed(HandshakeFault::kOther,
                  absl::StrCat("OpenSSL ended it: ", SSL_alert_desc_string_long(seen.alert_sent)));
  }
  return failed(HandshakeFault::kBrokenOff, "it was broken off");
}

void OnMessage(int written, int /*version*/, int type, const void* bytes, size_t size, SSL* ssl,
               void* /*argument*/);

// Every SSL_CTX from the first watch on shows its messages; every SSL that is begun under a watch
// has a Handshake.
void OnContext(void* context, void*, CRYPTO_EX_DATA*, int, long, void*) {
  SSL_CTX_set_msg_callback(static_cast<SSL_CTX*>(context), OnMessage);
}
void OnBegin(void*, void*, CRYPTO_EX_DATA* data, int index, long, void*) {
  if (beginning == nullptr) return;
  auto seen = std::make_unique<Handshake>(*beginning);
  if (CRYPTO_set_ex_data(data, index, seen.get()) == 1) static_cast<void>(seen.release());
}
void OnEnd(void*, void* kept, CRYPTO_EX_DATA*, int, long, void*) {
  const std::unique_ptr<const Handshake> seen(static_cast<const Handshake*>(kept));
  if (seen == nullptr || seen->done || !seen->spoke) return;
  seen->listener->Tell(Judge(*seen));
}

int IndexOfHandshakes() {
  static const int index = [] {
    static_cast<void>(SSL_CTX_get_ex_new_index(0, nullptr, OnContext, nullptr, nullptr));
    return SSL_get_ex_new_index(0, nullptr, OnBegin, nullptr, OnEnd);
  }();
  return index;
}

// Whoever says that it has finished has shown before that the certificate's key is its own.
std::shared_ptr<OpenConnection> ConnectionOf(const Handshake& seen, const SSL* ssl) {
  const X509* const shown = SSL_get0_peer_certificate(ssl);
  if (shown == nullptr || SSL_get_verify_result(ssl) != X509_V_OK) return nullptr;
  return seen.listener->Finish(seen.peer, UrisIn(*shown));
}

void OnMessage(int written, int, int type, const void* bytes, size_t size, SSL* ssl, void*) {
  auto* const seen = static_cast<Handshake*>(SSL_get_ex_data(ssl, IndexOfHandshakes()));
  if (seen == nullptr) return;
  const auto* const text = static_cast<const uint8_t*>(bytes);
  if (seen->done) {
    if (seen->connection != nullptr && written == 0 && type == SSL3_RT_HEADER &&
        size >= SSL3_RT_HEADER_LENGTH)
      seen->connection->Came(SSL3_RT_HEADER_LENGTH + int64_t{text[3]} * 256 + text[4]);
    return;
  }
  if (type == SSL3_RT_ALERT && size >= 2) {
    if (written == 0) seen->spoke = true;
    if (text[1] == SSL_AD_CLOSE_NOTIFY || text[1] == SSL_AD_USER_CANCELLED) return;
    (written != 0 ? seen->alert_sent : seen->alert_received) = text[1];
    if (written != 0) seen->verified = SSL_get_verify_result(ssl);
    return;
  }
  if (written != 0) return;
  if (type == SSL3_RT_HEADER && !seen->spoke)
    seen->no_tls = size < 2 || text[0] != SSL3_RT_HANDSHAKE || text[1] != SSL3_VERSION_MAJOR;
  seen->spoke = true;
  if (type != SSL3_RT_HANDSHAKE || size == 0) return;
  if (text[0] == SSL3_MT_CERTIFICATE) seen->nothing_shown = size <= kEmptyCertificateBytesMax;
  seen->done = text[0] == SSL3_MT_FINISHED;
  if (seen->done) seen->connection = ConnectionOf(*seen, ssl);
}

}  // namespace

absl::string_view ToString(HandshakeFault fault) {
  switch (fault) {
    case HandshakeFault::kExpired:
      return "expired";
    case HandshakeFault::kUntrusted:
      return "untrusted";
    case HandshakeFault::kBadCertificate:
      return "bad_certificate";
    case HandshakeFault::kNoCertificate:
      return "no_certificate";
    case HandshakeFault::kPlaintext:
      return "plaintext";
    case HandshakeFault::kRefused:
      return "refused";
    case HandshakeFault::kBrokenOff:
      return "broken_off";
    case HandshakeFault::kOther:
      return "other";
  }
  return "";
}

HandshakeWatch::HandshakeWatch(Told told, Finished finished)
    : listener_(std::make_shared<Listener>(std::move(told), std::move(finished))) {
  static_cast<void>(IndexOfHandshakes());
}

HandshakeWatch::~HandshakeWatch() { listener_->Stop(); }

void HandshakeWatch::Watch(std::string peer, absl::FunctionRef<void()> begin) {
  const Handshake from{.listener = listener_, .peer = std::move(peer), .connection = nullptr};
  beginning = &from;
  begin();
  beginning = nullptr;
}

}  // namespace phalanx::transport
