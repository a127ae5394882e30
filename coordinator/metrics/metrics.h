// coordinator/metrics/metrics.h: what Prometheus reads of a coordinator. docs/operations.md lists
// the names. Labels are bounded: phases, states, methods, codes, known causes; never a job or a
// rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/job/failure.h"
#include "core/job/job_phase.h"

namespace phalanx::coordinator {

// State at the moment of a scrape.
struct Gauges {
  std::map<job::JobPhase, int64_t> jobs;
  int64_t nodes_ready = 0, nodes_suspect = 0, nodes_disconnected = 0;
  int64_t devices_free = 0, devices_used = 0;
  int64_t sessions = 0, watchers = 0;
  int64_t inbox = 0;
  bool serving = false;
};

// Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  void Rpc(absl::string_view method, absl::StatusCode code, absl::Duration duration);
  void Commit(bool ok, uint64_t records, absl::Duration duration);
  void JobStarted(absl::Duration queued);
  void JobRunning(absl::Duration starting);
  void JobEnded(job::JobPhase phase, std::optional<job::FailureKind> cause);
  void Step();
  void Heartbeat();
  void Planned(absl::Duration duration);
  void DamagedEntry();

  // The text exposition format, version 0.0.4.
  std::string Text(const Gauges& gauges);

 private:
  struct Series;
  const std::unique_ptr<Series> series_;
};

}  // namespace phalanx::coordinator
