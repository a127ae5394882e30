// tests/rpc/tls_http.h: connections over TLS to a port that knows nothing of gRPC.
#pragma once

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/rpc/plain_http.h"
#include "transport/openssl.h"
#include "transport/tls.h"

namespace phalanx::coordinator {

// A client that shows the certificate of `files`, or none. Waits at most 10 s for anything.
class TlsClient {
 public:
  // `protocol`: that it asks for, as ALPN has it; empty: none. `from`: as Connect.
  TlsClient(int port, const transport::TlsFiles& files, const std::string& protocol = "",
            const std::string& from = "127.0.0.1")
      : fd_(Connect(port, from)) {
    SSL_CTX_load_verify_locations(context_.get(), files.ca.c_str(), nullptr);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    if (!files.certificate.empty()) {
      SSL_CTX_use_certificate_chain_file(context_.get(), files.certificate.c_str());
      SSL_CTX_use_PrivateKey_file(context_.get(), files.key.c_str(), SSL_FILETYPE_PEM);
    }
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), fd_);
    if (!protocol.empty()) {
      const std::string list = static_cast<char>(protocol.size()) + protocol;
      SSL_set_alpn_protos(ssl_.get(), reinterpret_cast<const unsigned char*>(list.data()),
                          static_cast<unsigned>(list.size()));
    }
    connected_ = SSL_connect(ssl_.get()) == 1;
  }
  ~TlsClient() { close(fd_); }

  bool connected() const { return connected_; }
  void Send(absl::string_view text) {
    SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()));
  }
  void SendGet(absl::string_view path) {
    Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  }
  // What comes next; empty: the end, or nothing for 10 s.
  std::string ReadSome() {
    char buffer[4096];
    const int n = SSL_read(ssl_.get(), buffer, sizeof(buffer));
    ERR_clear_error();
    return std::string(buffer, static_cast<size_t>(n > 0 ? n : 0));
  }
  // What comes until `text` has, or until the end.
  std::string ReadTo(absl::string_view text) {
    std::string answer;
    char buffer[4096];
    while (text.empty() || !absl::StrContains(answer, text)) {
      const int n = SSL_read(ssl_.get(), buffer, sizeof(buffer));
      if (n <= 0) break;
      answer.append(buffer, static_cast<size_t>(n));
    }
    ERR_clear_error();
    return answer;
  }
  std::string ReadAll() { return ReadTo(""); }
  // Reads on; whether the server has ended the connection, rather than saying nothing for 10 s.
  bool ReadsToTheEnd() {
    char buffer[4096];
    int n = 1;
    while (n > 0) n = SSL_read(ssl_.get(), buffer, sizeof(buffer));
    const bool ended = SSL_get_error(ssl_.get(), n) != SSL_ERROR_WANT_READ;
    ERR_clear_error();
    return ended;
  }
  // Of the server, in PEM.
  std::string Certificate() const {
    const transport::Certificate shown(SSL_get1_peer_certificate(ssl_.get()));
    const transport::Bio to(BIO_new(BIO_s_mem()));
    if (shown == nullptr || PEM_write_bio_X509(to.get(), shown.get()) != 1) return "";
    char* text = nullptr;
    const long size = BIO_get_mem_data(to.get(), &text);
    return std::string(text, static_cast<size_t>(size));
  }

 private:
  const std::unique_ptr<SSL_CTX, transport::Freed<SSL_CTX_free>> context_{
      SSL_CTX_new(TLS_client_method())};
  const int fd_;
  std::unique_ptr<SSL, transport::Freed<SSL_free>> ssl_;
  bool connected_ = false;
};

// Empty: the server says nothing.
inline std::string TlsGet(int port, const transport::TlsFiles& files, absl::string_view path) {
  TlsClient client(port, files);
  client.SendGet(path);
  return client.ReadAll();
}

}  // namespace phalanx::coordinator
