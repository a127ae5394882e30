// transport/join_credentials.h: TLS of a server that nodes join: whoever connects may have no
// certificate yet. What callers without one may do is for the server to judge, in each call.
//
// Thread-safe: a function of its argument and of the files.
#pragma once

#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "transport/tls.h"

namespace phalanx::transport {

// As ServerCredentials of files that are there, but a client's certificate is asked for and not
// insisted on. One that is shown must be sound.
std::shared_ptr<grpc::ServerCredentials> JoinCredentials(const TlsFiles& files);

}  // namespace phalanx::transport
