// client/channel.h: gRPC's way to a coordinator.
//
// Thread-safe.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

namespace phalanx::client {

// `server`: HOST:PORT. With no credentials its calls fail at once.
std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& server, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

}  // namespace phalanx::client
