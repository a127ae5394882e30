// transport/tls.h: TLS between our programs, mutual wherever there is any.
//
// Each side shows a certificate and asks for one of the other. The files are looked at again while
// the program runs: what is put in their place, by a rename, is used for connections from then on,
// and what cannot be read changes nothing; nor does what is spoilt, of a server
// (transport/sound_files.h). A client whose files are spoilt makes no connection until they are
// mended.
//
// Thread-safe: functions of their arguments and of the files.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace phalanx::transport {

// PEM files. All empty: plaintext.
struct TlsFiles {
  std::string ca;           // the authorities that may have signed the other side's certificate
  std::string certificate;  // of this program, and those between it and an authority
  std::string key;          // of the certificate
  // How often the files are looked at again.
  int refresh_seconds = 10;

  bool on() const { return !ca.empty() || !certificate.empty() || !key.empty(); }
};

// Whether they are all there, whole, of the right kind and of one another; OK of plaintext. Errors:
// InvalidArgument, with the name of a file as the user gave it: `prefix`ca, such as "--tls-ca".
absl::Status CheckTlsFiles(const TlsFiles& files, absl::string_view prefix);

// Whether the certificate of one's own holds at `now`; OK of none. Errors: FailedPrecondition, with
// the name of the file as above, and when it expired or begins to hold; as CheckTlsFiles.
absl::Status CheckHolds(const TlsFiles& files, absl::string_view prefix, absl::Time now);

// Whether who calls `servers` ("HOST:PORT[,HOST:PORT...]", named by `flag`) may: with TLS, on
// loopback, or `plaintext`, where that was asked for by --plaintext. Errors: InvalidArgument,
// naming flag, value and rule; also for --plaintext beside certificates.
absl::Status CheckPlaintextTo(absl::string_view servers, absl::string_view flag,
                              const TlsFiles& files, bool plaintext);

// Of plaintext where there are no files. A client accepts a server only under the name, or the
// address, that it was asked for. With `ca` alone it shows no certificate of its own.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const TlsFiles& files);
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TlsFiles& files);

}  // namespace phalanx::transport
