#include "transport/join_credentials.h"

#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "transport/sound_files.h"

namespace phalanx::transport {

std::shared_ptr<grpc::ServerCredentials> JoinCredentials(const TlsFiles& files) {
  const TlsFiles sound = SoundCopyOf(files);
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          sound.key, sound.certificate, sound.ca, static_cast<unsigned>(sound.refresh_seconds)));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace phalanx::transport
