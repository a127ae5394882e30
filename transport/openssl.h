// transport/openssl.h: things of OpenSSL that free themselves, and what several read of them.
//
// Immutable; safe to read from any thread.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace phalanx::transport {

template <auto free>
struct Freed {
  template <typename T>
  void operator()(T* thing) const {
    free(thing);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using CertificateList = std::unique_ptr<X509_CRL, Freed<X509_CRL_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Request = std::unique_ptr<X509_REQ, Freed<X509_REQ_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;

// Reads `text`, which outlives it.
inline Bio Reader(absl::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// A key that is encrypted is refused, where OpenSSL would ask a terminal for its password.
inline int NoPassword(char*, int, int, void*) { return -1; }

// Where PEM_read_bio_... has found nothing: whether that is because there is no more in PEM, and
// not because what comes next is spoilt. Clears the errors of this thread.
bool IsEndOfPem();

// Subject alternative names that are URIs. Leaves the errors of this thread as they are.
std::vector<std::string> UrisIn(const X509& certificate);

// InfinitePast: it is none that OpenSSL reads.
absl::Time TimeOf(const ASN1_TIME* time);

}  // namespace phalanx::transport
