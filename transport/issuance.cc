#include "transport/issuance.h"

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/posix/file.h"
#include "transport/openssl.h"
#include "transport/secret.h"

namespace phalanx::transport {
namespace {

constexpr int64_t kAuthorityBytesMax = 1 << 20;
// RFC 5280 has this bound on a common name.
constexpr size_t kCommonNameBytesMax = 64;
constexpr size_t kSerialBytes = 16;
// A clock of another machine may be that much behind.
constexpr absl::Duration kClockSkew = absl::Minutes(5);

// What `write` puts into a file in memory; empty if it cannot.
template <typename Write>
std::string Written(Write write) {
  const Bio to(BIO_new(BIO_s_mem()));
  if (write(to.get()) != 1) return "";
  char* text = nullptr;
  const long size = BIO_get_mem_data(to.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

Certificate FirstCertificate(absl::string_view pem) {
  const Bio from = Reader(pem);
  Certificate certificate(PEM_read_bio_X509(from.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return certificate;
}

bool IsOfP256(const EVP_PKEY* key) {
  char group[64] = {};
  return EVP_PKEY_is_a(key, "EC") == 1 &&
         EVP_PKEY_get_group_name(key, group, sizeof(group), nullptr) == 1 &&
         absl::string_view(group) == "prime256v1";
}

absl::StatusOr<Request> ReadRequest(absl::string_view pem) {
  const auto fault = [](absl::string_view rule) {
    ERR_clear_error();
    return absl::InvalidArgumentError(absl::StrCat("certificate_request: ", rule));
  };
  const Bio from = Reader(pem);
  Request request(PEM_read_bio_X509_REQ(from.get(), nullptr, NoPassword, nullptr));
  if (request == nullptr) return fault("must be a certificate request (PKCS #10) in PEM");
  EVP_PKEY* key = X509_REQ_get0_pubkey(request.get());
  if (key == nullptr || !IsOfP256(key)) return fault("its key must be one of NIST P-256");
  if (X509_REQ_verify(request.get(), key) != 1) return fault("is not signed with its own key");
  return request;
}

struct Authority {
  Certificate certificate;
  Key key;
};
absl::StatusOr<Authority> ReadAuthority(const SignerFiles& files, absl::string_view prefix) {
  const auto fault = [prefix](absl::string_view flag, const std::string& path,
                              absl::string_view what) {
    ERR_clear_error();
    return absl::InvalidArgumentError(absl::StrCat(prefix, flag, ": ", path, ": ", what));
  };
  const auto certificate = ReadWholeFile(files.certificate, kAuthorityBytesMax);
  if (!certificate.ok())
    return fault("certificate", files.certificate, certificate.status().message());
  const auto key = ReadWholeFile(files.key, kAuthorityBytesMax);
  if (!key.ok()) return fault("key", files.key, key.status().message());
  Authority authority{.certificate = FirstCertificate(*certificate)};
  if (authority.certificate == nullptr)
    return fault("certificate", files.certificate, "must begin with a certificate in PEM");
  if (X509_check_ca(authority.certificate.get()) == 0)
    return fault("certificate", files.certificate, "is not the certificate of an authority");
  const Bio from = Reader(*key);
  authority.key.reset(PEM_read_bio_PrivateKey(from.get(), nullptr, NoPassword, nullptr));
  if (authority.key == nullptr)
    return fault("key", files.key, "must be a private key in PEM, without a password");
  if (X509_check_private_key(authority.certificate.get(), authority.key.get()) != 1)
    return fault("key", files.key, absl::StrCat("is not the key of ", files.certificate));
  return authority;
}

bool IsRoot(X509* certificate) { return X509_check_issued(certificate, certificate) == X509_V_OK; }

bool AddExtension(X509* to, X509V3_CTX* context, int nid, const char* value) {
  const Extension extension(X509V3_EXT_conf_nid(nullptr, context, nid, value));
  return extension != nullptr && X509_add_ext(to, extension.get(), -1) == 1;
}

bool AddUris(X509* to, const std::vector<std::string>& uris) {
  const Names names(GENERAL_NAMES_new());
  for (const std::string& uri : uris) {
    GENERAL_NAME* name = GENERAL_NAME_new();
    ASN1_IA5STRING* text = ASN1_IA5STRING_new();
    if (name == nullptr || text == nullptr ||
        ASN1_STRING_set(text, uri.data(), static_cast<int>(uri.size())) != 1 ||
        sk_GENERAL_NAME_push(names.get(), name) == 0) {
      return false;
    }
    GENERAL_NAME_set0_value(name, GEN_URI, text);
  }
  return X509_add1_ext_i2d(to, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) == 1;
}

bool SetSerial(X509* certificate) {
  std::string bytes = RandomBytes(kSerialBytes);
  bytes[0] = static_cast<char>((bytes[0] & 0x3F) | 0x40);  // positive, and always as long
  BIGNUM* number =
      BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes.data()), kSerialBytes, nullptr);
  const bool set = number != nullptr &&
                   BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return set;
}

bool SetName(X509* certificate, const std::string& name) {
  const std::string cut = name.substr(0, kCommonNameBytesMax);
  return X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(cut.data()),
                                    static_cast<int>(cut.size()), -1, 0) == 1;
}

bool Fill(X509* certificate, const Authority& authority, EVP_PKEY* key,
          const CertificateTerms& terms) {
  const absl::Time end =
      std::min(terms.end, TimeOf(X509_get0_notAfter(authority.certificate.get())));
  X509V3_CTX context;
  X509V3_set_ctx(&context, authority.certificate.get(), certificate, nullptr, nullptr, 0);
  return X509_set_version(certificate, 2) == 1 && SetSerial(certificate) &&
         SetName(certificate, terms.name) &&
         X509_set_issuer_name(certificate, X509_get_subject_name(authority.certificate.get())) ==
             1 &&
         ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(absl::Now() - kClockSkew)) !=
             nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(end)) != nullptr &&
         X509_set_pubkey(certificate, key) == 1 &&
         AddExtension(certificate, &context, NID_basic_constraints, "critical,CA:FALSE") &&
         AddExtension(certificate, &context, NID_key_usage, "critical,digitalSignature") &&
         AddExtension(certificate, &context, NID_ext_key_usage, "clientAuth") &&
         AddUris(certificate, terms.uris);
}

}  // namespace

absl::StatusOr<KeyAndRequest> MakeKeyAndRequest() {
  const Key key(EVP_EC_gen("P-256"));
  const Request request(X509_REQ_new());
  KeyAndRequest made;
  if (key != nullptr && request != nullptr && X509_REQ_set_pubkey(request.get(), key.get()) == 1 &&
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) > 0) {
    made.key = Written([&](BIO* to) {
      return PEM_write_bio_PKCS8PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    made.request = Written([&](BIO* to) { return PEM_write_bio_X509_REQ(to, request.get()); });
  }
  ERR_clear_error();
  if (made.key.empty() || made.request.empty())
    return absl::InternalError("OpenSSL cannot make a key and a certificate request");
  return made;
}

absl::StatusOr<std::string> KeyOfRequest(absl::string_view request) {
  ASSIGN_OR_RETURN(const Request read, ReadRequest(request));
  unsigned char* bytes = nullptr;
  const int size = i2d_PUBKEY(X509_REQ_get0_pubkey(read.get()), &bytes);
  if (size <= 0) return absl::InternalError("OpenSSL cannot write a public key");
  const std::string digest =
      Sha256(absl::string_view(reinterpret_cast<char*>(bytes), static_cast<size_t>(size)));
  OPENSSL_free(bytes);
  return digest;
}

absl::Status CheckSignerFiles(const SignerFiles& files, const std::string& ca,
                              absl::string_view prefix) {
  if (!files.on()) return absl::OkStatus();
  for (const auto& [flag, path] :
       {std::pair("certificate", files.certificate), std::pair("key", files.key)}) {
    if (!path.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(prefix, flag, " is missing: joining needs ",
                                                   prefix, "certificate and ", prefix, "key"));
  }
  ASSIGN_OR_RETURN(const Authority authority, ReadAuthority(files, prefix));
  X509* const own = authority.certificate.get();
  if (TimeOf(X509_get0_notAfter(own)) <= absl::Now()) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, "certificate: ", files.certificate, ": has expired"));
  }
  ASSIGN_OR_RETURN(const std::string trusted, ReadWholeFile(ca, kAuthorityBytesMax));
  const Bio from = Reader(trusted);
  bool known = false;
  while (!known) {
    const Certificate root(PEM_read_bio_X509(from.get(), nullptr, NoPassword, nullptr));
    if (root == nullptr) break;
    known = X509_check_issued(root.get(), own) == X509_V_OK &&
            X509_verify(own, X509_get0_pubkey(root.get())) == 1;
  }
  ERR_clear_error();
  if (known) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(prefix, "certificate: ", files.certificate,
                                                 ": is none of the authorities in ", ca,
                                                 ", nor signed by one"));
}

absl::StatusOr<std::string> SignRequest(const SignerFiles& files, absl::string_view request,
                                        const CertificateTerms& terms) {
  ASSIGN_OR_RETURN(const Request read, ReadRequest(request));
  const absl::StatusOr<Authority> authority = ReadAuthority(files, "");
  if (!authority.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the key to sign with cannot be used: ", authority.status().message()));
  }
  const Certificate certificate(X509_new());
  // Keys of Edwards curves bring their own digest.
  const int type = EVP_PKEY_get_base_id(authority->key.get());
  const bool own_digest = type == EVP_PKEY_ED25519 || type == EVP_PKEY_ED448;
  const bool signed_so =
      certificate != nullptr &&
      Fill(certificate.get(), *authority, X509_REQ_get0_pubkey(read.get()), terms) &&
      X509_sign(certificate.get(), authority->key.get(), own_digest ? nullptr : EVP_sha256()) > 0;
  std::string pem;
  if (signed_so) {
    pem = Written([&](BIO* to) { return PEM_write_bio_X509(to, certificate.get()); });
    if (!IsRoot(authority->certificate.get())) {
      pem += Written([&](BIO* to) { return PEM_write_bio_X509(to, authority->certificate.get()); });
    }
  }
  ERR_clear_error();
  if (pem.empty()) return absl::InternalError("OpenSSL cannot sign a certificate");
  return pem;
}

absl::StatusOr<CertificateFacts> FactsOf(absl::string_view pem) {
  const Certificate certificate = FirstCertificate(pem);
  if (certificate == nullptr)
    return absl::InvalidArgumentError("must begin with a certificate in PEM");
  CertificateFacts facts{.begin = TimeOf(X509_get0_notBefore(certificate.get())),
                         .end = TimeOf(X509_get0_notAfter(certificate.get()))};
  facts.uris = UrisIn(*certificate);
  ERR_clear_error();
  return facts;
}

}  // namespace phalanx::transport
