#include "coordinator/rpc/status_translation.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/violation.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kDetailsBytesMax = 6000;
constexpr size_t kShownBytesMax = 1000;

std::string Shortened(absl::string_view text) {
  if (text.size() <= kShownBytesMax) return std::string(text);
  return absl::StrCat(text.substr(0, kShownBytesMax), "...");
}

void AddViolations(const std::vector<Violation>& violations, google::rpc::Status& out) {
  google::rpc::BadRequest request;
  size_t left = kDetailsBytesMax;
  for (size_t i = 0; i < violations.size(); ++i) {
    std::string description =
        ToString(Violation{.value = violations[i].value, .rule = violations[i].rule});
    const size_t bytes = violations[i].field.size() + description.size() + 16;
    google::rpc::BadRequest::FieldViolation* added = request.add_field_violations();
    if (bytes > left) {
      added->set_description(absl::StrCat("and ", violations.size() - i, " more violations"));
      break;
    }
    left -= bytes;
    added->set_field(violations[i].field);
    added->set_description(std::move(description));
  }
  out.add_details()->PackFrom(request);
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::vector<Violation> violations = ViolationsOf(status);
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  std::string message = Shortened(status.message());
  if (violations.size() > 1) {
    message = Shortened(absl::StrCat(ToString(violations.front()), " (and ", violations.size() - 1,
                                     " more violations)"));
  }
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(violations.empty() ? absl::StatusCodeToString(status.code())
                                     : "INVALID_DOCUMENT");
  info.set_domain("phalanx");
  details.add_details()->PackFrom(info);
  if (!violations.empty()) AddViolations(violations, details);
  if (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(1);
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      details.SerializeAsString());
}

}  // namespace phalanx::coordinator
