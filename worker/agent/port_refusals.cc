#include "worker/agent/port_refusals.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/terminal_text.h"
#include "worker/agent/node_metrics.h"

namespace phalanx::agent {
namespace {

constexpr size_t kBytesShown = 64;  // of what a certificate says
constexpr absl::string_view kUnauthenticated = "unauthenticated", kDenied = "denied",
                            kTooLarge = "too_large", kTooSlow = "too_slow";

absl::string_view ReasonOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kPermissionDenied:
      return kDenied;
    case absl::StatusCode::kInvalidArgument:
      return kTooLarge;
    case absl::StatusCode::kDeadlineExceeded:
      return kTooSlow;
    default:
      return kUnauthenticated;
  }
}

}  // namespace

PortRefusals::PortRefusals(std::function<void(const std::string& line)> log)
    : log_(std::move(log)), lines_(1, std::chrono::steady_clock::now()) {
  for (const transport::HandshakeFault fault : transport::kHandshakeFaults)
    counts_.emplace(transport::ToString(fault), 0);
  for (const absl::string_view reason : {kUnauthenticated, kDenied, kTooLarge, kTooSlow})
    counts_.emplace(reason, 0);
}

void PortRefusals::OfHandshake(const transport::FailedHandshake& failed) {
  Note(transport::ToString(failed.fault),
       absl::StrCat("metrics refused peer=", failed.peer, " reason=\"", failed.reason, "\""));
}

void PortRefusals::OfRequest(const transport::ShownCertificate& who, const absl::Status& why) {
  const std::string shown = who.uris.empty() ? "-" : absl::StrJoin(who.uris, ",");
  Note(ReasonOf(why.code()),
       absl::StrCat("metrics refused who=", LineText(shown.substr(0, kBytesShown)), " reason=\"",
                    why.message(), "\""));
}

void PortRefusals::Note(absl::string_view reason, const std::string& line) {
  std::string told;
  {
    MutexLock lock(&mutex_);
    ++counts_.find(reason)->second;
    if (!lines_.Take(1, std::chrono::steady_clock::now())) {
      ++left_out_;
      return;
    }
    const int64_t left_out = std::exchange(left_out_, 0);
    told = left_out == 0 ? line : absl::StrCat(line, " left_out=", left_out);
  }
  log_(told);
}

std::string PortRefusals::Text() const {
  MutexLock lock(&mutex_);
  return RefusedText(counts_);
}

}  // namespace phalanx::agent
