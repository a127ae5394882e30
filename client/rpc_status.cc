#include "client/rpc_status.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "core/base/violation.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace phalanx::client {
namespace {

constexpr char kNextPayload[] = "phalanx/next", kMaybeDonePayload[] = "phalanx/maybe-done";

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  return details;
}

// A server describes a violation as "value: rule" or by its rule alone; either is shown as it is.
std::vector<Violation> ViolationsIn(const google::rpc::Status& details) {
  std::vector<Violation> violations;
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::BadRequest request;
    if (!any.Is<google::rpc::BadRequest>() || !any.UnpackTo(&request)) continue;
    for (const auto& field : request.field_violations()) {
      violations.push_back({.field = field.field(), .value = "", .rule = field.description()});
    }
  }
  return violations;
}

// Of a coordinator; nothing: gRPC says it, on the way to one.
std::optional<google::rpc::ErrorInfo> InfoOf(const grpc::Status& status) {
  const google::rpc::Status details = DetailsOf(status);
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::ErrorInfo info;
    if (any.Is<google::rpc::ErrorInfo>() && any.UnpackTo(&info) && info.domain() == "phalanx") {
      return info;
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (code == absl::StatusCode::kInvalidArgument) {
    const std::vector<Violation> violations = ViolationsIn(DetailsOf(status));
    if (!violations.empty()) return ViolationsStatus(violations);
  }
  return absl::Status(code, status.error_message());
}

bool SaidByCoordinator(const grpc::Status& status) { return InfoOf(status).has_value(); }

bool IsOfStandby(const grpc::Status& status) {
  const std::optional<google::rpc::ErrorInfo> info = InfoOf(status);
  return info.has_value() && info->reason() == "STANDBY";
}

bool IsOfEnding(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

absl::Duration RetryDelayOf(const grpc::Status& status) {
  const google::rpc::Status details = DetailsOf(status);
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::RetryInfo info;
    if (any.Is<google::rpc::RetryInfo>() && any.UnpackTo(&info)) {
      return absl::Seconds(info.retry_delay().seconds()) +
             absl::Nanoseconds(info.retry_delay().nanos());
    }
  }
  return absl::ZeroDuration();
}

absl::Status AsMaybeDone(absl::Status status) {
  if (!status.ok()) status.SetPayload(kMaybeDonePayload, absl::Cord());
  return status;
}

bool MayBeDone(const absl::Status& status) {
  return status.GetPayload(kMaybeDonePayload).has_value();
}

absl::Status WithNext(absl::Status status, absl::string_view next) {
  status.SetPayload(kNextPayload, absl::Cord(next));
  return status;
}

std::string NextOf(const absl::Status& status) {
  const absl::optional<absl::Cord> next = status.GetPayload(kNextPayload);
  return next.has_value() ? std::string(*next) : "";
}

}  // namespace phalanx::client
