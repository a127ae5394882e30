// transport/issuance.h: certificates that one of our programs asks for and another one signs.
//
// Keys are of NIST P-256; everything is PEM. Of a request nothing but its key is taken: what the
// certificate says is the signer's to decide.
//
// Functions of their arguments and of the files; safe to call from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace phalanx::transport {

// A private key (PKCS #8) and a request for a certificate of it (PKCS #10). Errors: Internal.
struct KeyAndRequest {
  std::string key;
  std::string request;
};
absl::StatusOr<KeyAndRequest> MakeKeyAndRequest();

// SHA-256 of the public key of a request, which its owner has signed: 32 bytes. Errors:
// InvalidArgument, with the rule that it breaks.
absl::StatusOr<std::string> KeyOfRequest(absl::string_view request);

// An authority that signs, in PEM files. All empty: there is none.
struct SignerFiles {
  std::string certificate;
  std::string key;
  bool on() const { return !certificate.empty() || !key.empty(); }
};
// Whether they are both there and of one another, and the authority is one of `ca`, or signed by
// one. OK where there are none. Errors: InvalidArgument, with the name of a file as the user gave
// it: `prefix`certificate, such as "--join-ca-certificate".
absl::Status CheckSignerFiles(const SignerFiles& files, const std::string& ca,
                              absl::string_view prefix);

// What a certificate of a client says. It holds from some minutes before now on.
struct CertificateTerms {
  std::string name;               // its common name, cut to 64 bytes; nothing is read from it
  std::vector<std::string> uris;  // its subject alternative names
  absl::Time end;                 // it holds no longer than the authority's own
};
// The certificate, and the authority's own where that is not a root. The files are read anew each
// time. Errors: InvalidArgument as KeyOfRequest; Unavailable, if the files cannot be used now.
absl::StatusOr<std::string> SignRequest(const SignerFiles& files, absl::string_view request,
                                        const CertificateTerms& terms);

// What is to be known of the first certificate of `pem`.
struct CertificateFacts {
  std::vector<std::string> uris;
  absl::Time begin, end;
};
// Errors: InvalidArgument.
absl::StatusOr<CertificateFacts> FactsOf(absl::string_view pem);

}  // namespace phalanx::transport
