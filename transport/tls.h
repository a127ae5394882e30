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

#include <map>
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
// Of a port that is served: errors InvalidArgument, with the name of the file as above, for a
// certificate that is not for servers; as CheckTlsFiles.
absl::Status CheckServes(const TlsFiles& files, absl::string_view prefix);

// Whether the certificate of one's own holds at `now`; OK of none. Errors: FailedPrecondition, with
// the name of the file as above, and when it expired or begins to hold; as CheckTlsFiles.
absl::Status CheckHolds(const TlsFiles& files, absl::string_view prefix, absl::Time now);

// PEM files by what they are for, such as "tls".
using CertificateFiles = std::map<std::string, std::string>;
// When the first certificate of each file expires, as the file is now; not of what has no name or
// cannot be read.
std::map<std::string, absl::Time> ExpiriesOf(const CertificateFiles& files);

// An address that is to be served, or called, without TLS.
struct PlaintextUse {
  absl::string_view flag;     // that names the address, such as "--listen"
  absl::string_view address;  // HOST:PORT
  absl::string_view asked;    // what asks for plaintext, such as "--plaintext"; empty: nothing does
  absl::string_view files;    // flags to give instead; empty: they are there, and `asked` has to go
};
// OK on loopback, whether or not it is asked for, and nowhere else; also OK of what is no address,
// which is refused elsewhere. Errors: InvalidArgument, with flag, address, rule and what to do.
absl::Status CheckPlaintext(const PlaintextUse& use);

// Whether who calls `servers` ("HOST:PORT[,HOST:PORT...]", named by `flag`) may: with TLS, or on
// loopback. `asked` is what asks for plaintext, such as "--plaintext"; empty: nothing does. Errors:
// as CheckPlaintext, of the first address that is wrong; also where plaintext is asked for beside
// certificates.
absl::Status CheckPlaintextTo(absl::string_view servers, absl::string_view flag,
                              const TlsFiles& files, absl::string_view asked);

// Of plaintext where there are no files. A client accepts a server only under the name, or the
// address, that it was asked for. With `ca` alone it shows no certificate of its own. For one
// channel each: where several share them and connect at the same moment, gRPC (1.51) may fail
// those that come second ("Failed to create security handshaker").
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const TlsFiles& files);
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TlsFiles& files);

}  // namespace phalanx::transport
