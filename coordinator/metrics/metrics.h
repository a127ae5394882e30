// coordinator/metrics/metrics.h: what Prometheus reads of a coordinator. docs/sight.md lists
// the names. Labels are bounded: phases, states, methods, codes, known causes, ports, and the jobs
// that run, at most kJobSeriesMax of them; never a rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/job/failure.h"
#include "core/job/job_phase.h"
#include "core/job/node_check.h"
#include "core/posix/process_usage.h"

namespace phalanx::coordinator {

// Running jobs that have series of their own, the newest; the others are in the sums alone.
inline constexpr size_t kJobSeriesMax = 256;

// Of a running job: its last step.
struct JobGauges {
  std::string job;  // its name, unique among jobs that have not ended
  int64_t step = 0, steps = 0;
  double loss = 0;
  double tokens_per_second = 0;  // 0: not known
  double step_seconds = 0;
  int64_t epoch = 0;
};

// Of the audit beside the store, since the start.
struct AuditCounts {
  // Lines that were taken and then not written; not among those of AuditLineNotKept.
  int64_t not_written = 0;
  // How often a full file was put aside, by what its lines are about.
  int64_t files_done = 0, files_workers = 0, files_refused = 0;
};

// State at the moment of a scrape.
struct Gauges {
  std::map<job::JobPhase, int64_t> jobs;
  int64_t jobs_suspended = 0;  // of those that are queued
  // Cordoned: marked by somebody, drained ones among them, connected or not; in no other state.
  int64_t nodes_ready = 0, nodes_suspect = 0, nodes_disconnected = 0, nodes_cordoned = 0;
  // Cordoned: of such nodes, connected, and else free.
  int64_t devices_free = 0, devices_used = 0, devices_failed = 0, devices_reserved = 0,
          devices_cordoned = 0;
  std::map<job::CheckVerdict, int64_t> checks;  // devices of connected nodes, by their last check
  int64_t devices_slow = 0;     // in jobs that train, at most kSlowDevicesMax of each
  int32_t warmest_celsius = 0;  // of devices of connected nodes; 0: not known
  int64_t sessions = 0, watchers = 0;
  int64_t inbox = 0;
  int64_t watch_pending_bytes = 0;
  bool serving = false;
  bool standby = false;  // and another one leads
  AuditCounts audit;
  // When certificates of this process expire, by what they are for.
  std::map<std::string, absl::Time> certificates;
  ProcessUsage usage;              // of this process
  std::vector<JobGauges> running;  // at most kJobSeriesMax
};

// Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  void Rpc(absl::string_view method, absl::StatusCode code, absl::Duration duration);
  // A call of one answer begins; its answer has left, or never will. False: it is not counted among
  // those that are open, as CountNoMoreCalls was called before, and its end is not either.
  [[nodiscard]] bool CallBegins();
  void CallEnds() { --calls_open_; }
  void CountNoMoreCalls() { counts_calls_ = false; }
  int64_t calls_open() const { return calls_open_; }
  // A call that is a stream, and takes as long as its caller likes.
  void StreamEnded(absl::string_view method, absl::StatusCode code);
  void Commit(bool ok, uint64_t records, absl::Duration duration);
  void JobStarted(absl::Duration queued);
  void JobRunning(absl::Duration starting);
  void JobEnded(job::JobPhase phase, std::optional<job::FailureKind> cause);
  // Tokens: of the step; `seconds`: that it took.
  void Step(int64_t tokens, double seconds);
  // An incident of a job has begun. `kind`: "loss" or "return"; `cause`: of a loss, else "".
  void IncidentBegun(absl::string_view kind, absl::string_view cause);
  // A phase of an incident that is over: from its first evidence until the phase ended.
  void IncidentPhase(absl::string_view phase, absl::Duration until_end);
  void StepsRedone(int64_t steps);
  // From the first evidence of a loss to its verdict.
  void Detected(absl::string_view cause, absl::Duration duration);
  // A job trains again, or waits to. `action`: "standby", "replan", "return", "queued"; `cause`: of
  // what it lost, "" where somebody wanted it so.
  void Restarted(absl::string_view cause, absl::string_view action);
  // A job was Running for `elapsed`, of which `useful` went into a step that was not done before.
  void Ran(absl::Duration elapsed, absl::Duration useful);
  void StoreBytes(int64_t bytes);
  void Heartbeat();
  // One that came later than two intervals behind the one before.
  void LateHeartbeat();
  void Planned(absl::Duration duration);
  void DamagedEntry();
  // A line of a refusal that the audit has no room for.
  void AuditLineDropped();
  // A line of the audit that could not be written beside the store.
  void AuditLineNotKept();
  // A handshake of TLS came to nothing. `port`: "grpc" or "http"; `reason`: as
  // transport::ToString(HandshakeFault).
  void HandshakeFailed(absl::string_view port, absl::string_view reason);
  // That may be counted: it is 0 until then, so that an alert on its growth sees the first.
  void HandshakeMayFail(absl::string_view port, absl::string_view reason);
  // An upload of a worker's, which sends logs faster than it may, is not read for a while.
  void UploadWaits();
  // Of logs of ranks, on their nodes.
  void LogBytesDropped(int64_t bytes);

  // The text exposition format, version 0.0.4.
  std::string Text(const Gauges& gauges);

 private:
  struct Series;
  const std::unique_ptr<Series> series_;
  std::atomic<bool> counts_calls_ = true;
  std::atomic<int64_t> calls_open_ = 0;
};

}  // namespace phalanx::coordinator
