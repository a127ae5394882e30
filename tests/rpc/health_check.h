// tests/rpc/health_check.h: asks grpc.health.v1.Health/Check without its generated code.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/rpc/fixture.h"

namespace phalanx::coordinator {

// HealthCheckResponse{status}.
inline constexpr absl::string_view kServes = "\x08\x01", kServesNot = "\x08\x02";

// What it answers of `service`, which has 127 bytes at most; else why there is no answer.
inline std::string HealthOf(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& service = "", int seconds = 20) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  SetDeadline(context, seconds);
  // HealthCheckRequest{service}
  const grpc::Slice asked(
      service.empty()
          ? ""
          : absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service));
  const grpc::ByteBuffer request(&asked, 1);
  grpc::ByteBuffer response;
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel.get(),
      grpc::internal::RpcMethod("/grpc.health.v1.Health/Check",
                                grpc::internal::RpcMethod::NORMAL_RPC),
      &context, request, &response);
  if (!status.ok()) return status.error_message();
  grpc::Slice answer;
  if (!response.DumpToSingleSlice(&answer).ok()) return "the answer cannot be read";
  return std::string(reinterpret_cast<const char*>(answer.begin()), answer.size());
}

}  // namespace phalanx::coordinator
