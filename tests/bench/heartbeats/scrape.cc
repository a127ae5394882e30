#include "tests/bench/heartbeats/scrape.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/support/process.h"
#include "transport/openssl.h"

namespace phalanx::coordinator {
namespace {

// Empty: nobody answers.
std::string ReadMetrics(const std::string& address, const transport::TlsFiles& files) {
  const std::unique_ptr<SSL_CTX, transport::Freed<SSL_CTX_free>> context(
      SSL_CTX_new(TLS_client_method()));
  SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str());
  SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM);
  const transport::Bio bio(BIO_new_ssl_connect(context.get()));
  BIO_set_conn_hostname(bio.get(), address.c_str());
  std::string answer;
  constexpr absl::string_view kRequest = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  if (BIO_do_connect(bio.get()) == 1 &&
      BIO_write(bio.get(), kRequest.data(), static_cast<int>(kRequest.size())) > 0) {
    char buffer[16'384];
    for (int n = 0; (n = BIO_read(bio.get(), buffer, sizeof(buffer))) > 0;)
      answer.append(buffer, static_cast<size_t>(n));
  }
  ERR_clear_error();
  return answer;
}

// What is wrong with it; empty: nothing.
std::string FailureOf(const std::string& answer) {
  if (absl::StartsWith(answer, "HTTP/1.1 200") && absl::StrContains(answer, "phalanx_")) return "";
  return absl::StrCat("/metrics cannot be read: \"", answer.substr(0, answer.find('\r')), "\"");
}

}  // namespace

Scraper::Scraper(const std::string& address, const transport::TlsFiles& files,
                 std::chrono::nanoseconds interval)
    : thread_([this, address, files, interval](const std::stop_token& stop) {
        Mutex mu;
        CondVar stopped;
        const std::stop_callback wake(stop, [&] {
          MutexLock lock(&mu);
          stopped.SignalAll();
        });
        auto next = std::chrono::steady_clock::now();
        while (!stop.stop_requested()) {
          const std::string failure = FailureOf(ReadMetrics(address, files));
          {
            MutexLock lock(&mu_);
            ++reads_;
            if (failure_.empty()) failure_ = failure;
          }
          next += interval;
          MutexLock lock(&mu);
          while (!stop.stop_requested() && !stopped.WaitUntil(&mu, next)) {
          }
        }
      }) {}

int64_t Scraper::reads() {
  MutexLock lock(&mu_);
  support::Require(failure_.empty(), failure_);
  return reads_;
}

}  // namespace phalanx::coordinator
