// worker/agent/node_metrics.h: what Prometheus reads of a node's daemon. docs/sight.md lists the
// names. Labels are bounded: devices of the node, states, causes, effects and verdicts; never a job
// or a rank.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "core/base/time.h"
#include "core/posix/process_usage.h"
#include "worker/agent/machine/figures.h"

namespace phalanx::agent {

// At one moment. Of lists of devices an empty one means that nothing is known of any.
struct NodeFigures {
  MachineFigures machine;
  int64_t log_bytes = 0, log_bytes_dropped = 0, log_bytes_sent = 0;  // since the start
  // When certificates of the daemon expire, by what they are for.
  std::map<std::string, absl::Time> certificates;
  int64_t strangers = 0;              // since the start: connections to ranks that were refused
  std::optional<bool> device_watch;   // of GPUs: whether the driver tells of their errors
  std::vector<int64_t> memory_bytes;  // of each device; 0: unknown
  std::vector<int64_t> memory_used_bytes;  // -1: unknown
  std::vector<int32_t> celsius;            // 0: unknown
};

// In the text exposition format, version 0.0.4. What is not known has no sample.
std::string MetricsText(const NodeFigures& figures, const ProcessUsage& usage, Instant now);
// The same of what the port for metrics has refused, by reason (worker/agent/port_refusals.h).
std::string RefusedText(const std::map<std::string, int64_t, std::less<>>& counts);

// Where the daemon's thread leaves its figures for others. Thread-safe.
class NodeBoard {
 public:
  void Put(NodeFigures figures) {
    const MutexLock lock(&mutex_);
    figures_ = std::move(figures);
  }
  NodeFigures Get() const {
    const MutexLock lock(&mutex_);
    return figures_;
  }

 private:
  mutable Mutex mutex_;
  NodeFigures figures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace phalanx::agent
