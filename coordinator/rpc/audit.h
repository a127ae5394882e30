// coordinator/rpc/audit.h: lines about who changed what, or was not let.
//
//   audit who=alice role=submitter method=CancelJob job=7 outcome=OK
//   audit who=bob role=viewer method=CancelJob outcome=PERMISSION_DENIED reason="..."
//
//   audit who=- role=- method=handshake port=grpc peer=ipv4:10.0.0.9:51764
//       outcome=UNAUTHENTICATED reason="..."
//
// who and role are "-" where nobody was asked, or has said. What was done is always told; of
// refusals so many a second of one caller, and how many were left out:
//
//   audit left_out=17 reason="who=viewer/bob is refused too often"
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/rpc/access.h"
#include "coordinator/rpc/call_rate.h"
#include "core/base/mutex.h"
#include "transport/handshakes.h"

namespace phalanx::coordinator {

// `object`: "job=7", "node=a"; empty: it is not known.
std::string AuditLine(const Caller& caller, absl::string_view method, absl::string_view object,
                      const absl::Status& outcome);
// Text of others in quotes, cut to 256 bytes: nothing in it ends the quotes, or the line.
std::string Quoted(absl::string_view text);

// Failed handshakes of both ports are 0 in the metrics until there are some.
void ExpectFailedHandshakes(Metrics& metrics);

// Takes lines. Thread-safe.
using AuditLog = std::function<void(const std::string& line)>;

// Lines about what people did, about what workers did, and about what was not done.
enum class AuditKind : uint8_t { kDone, kByWorker, kNotDone };
// Keeps lines. Of kDone it returns when the line is kept; of others, whose callers can make many,
// it waits for no disk. Errors: of the line, which is not kept. Thread-safe.
using AuditKeeper = std::function<absl::Status(const std::string& line, AuditKind kind)>;

// Thread-safe.
class Audit {
 public:
  // `left_out` is called for each line that is not told. `refusals`: of one caller.
  Audit(AuditLog log, CallRateOptions refusals, std::function<void()> left_out)
      : log_(std::move(log)), refusals_(refusals), left_out_(std::move(left_out)) {}
  // Each line is also kept; `not_kept` is called for one that could not be, which changes nothing
  // else. `keep`: none: no line is kept.
  void Keep(AuditKeeper keep, std::function<void()> not_kept) {
    keep_ = std::move(keep);
    not_kept_ = std::move(not_kept);
  }

  // Returns when the line is told and, of what a person did, kept: whoever answers the call behind
  // it can rely on that.
  void Tell(const Caller& caller, absl::string_view method, absl::string_view object,
            const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  // A refusal of a stranger, who got no further than the handshake with a port, "grpc" or "http".
  // Such are as one caller, and no stranger.
  void TellOfHandshake(absl::string_view port, const transport::FailedHandshake& failed)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // False: of `whose` there were too many, and this one is counted instead.
  bool MayTell(const std::string& whose, absl::string_view why_not) ABSL_LOCKS_EXCLUDED(mu_);
  // The line, behind how many were left out before it.
  void Log(const std::string& line, AuditKind kind) ABSL_LOCKS_EXCLUDED(mu_);
  void KeepAndLog(const std::string& line, AuditKind kind) const;

  const AuditLog log_;
  CallRate refusals_;
  const std::function<void()> left_out_;
  // Constant once the first line is told.
  AuditKeeper keep_;
  std::function<void()> not_kept_;
  Mutex mu_;
  int64_t count_ ABSL_GUARDED_BY(mu_) = 0;   // left out since that was told
  std::string reason_ ABSL_GUARDED_BY(mu_);  // of the last of them
};

}  // namespace phalanx::coordinator
