// worker/agent/port_refusals.h: what the daemon's port for metrics has refused, where it speaks
// TLS: counted by reason, and told of in the log.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "transport/handshakes.h"
#include "transport/server_tls.h"
#include "worker/agent/log_budget.h"

namespace phalanx::agent {

// Thread-safe.
class PortRefusals {
 public:
  // `log` gets a line for each, 8 at once and one a second after that; the next one says how many
  // were left out.
  explicit PortRefusals(std::function<void(const std::string& line)> log);

  void OfHandshake(const transport::FailedHandshake& failed) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a request: Unauthenticated, PermissionDenied, or InvalidArgument and DeadlineExceeded of one
  // that did not come whole.
  void OfRequest(const transport::ShownCertificate& who, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // phalanx_worker_metrics_refused_total, in the text exposition format; every reason has a sample.
  std::string Text() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Note(absl::string_view reason, const std::string& line) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::function<void(const std::string& line)> log_;
  mutable Mutex mutex_;
  std::map<std::string, int64_t, std::less<>> counts_ ABSL_GUARDED_BY(mutex_);  // by reason
  LogBudget lines_ ABSL_GUARDED_BY(mutex_);
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace phalanx::agent
