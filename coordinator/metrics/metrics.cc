#include "coordinator/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "core/build/build_info.h"

namespace phalanx::coordinator {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Histogram;

const Histogram::BucketBoundaries kFastSeconds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                                  0.05,   0.1,   0.25,   0.5,   1,    2.5};
const Histogram::BucketBoundaries kSlowSeconds = {0.1, 0.5, 1,    5,     15,   60,
                                                  300, 900, 3600, 14400, 86400};

const Histogram::BucketBoundaries kRecoverySeconds = {0.05, 0.1, 0.25, 0.5, 1,   2.5,
                                                      5,    10,  30,   60,  300, 900};

// One value a running job. Made anew at each scrape, so that what has ended leaves no series.
prometheus::MetricFamily OfJobs(const Gauges& gauges, const char* name, const char* help,
                                double (*value)(const JobGauges&)) {
  prometheus::MetricFamily family{name, help, prometheus::MetricType::Gauge, {}};
  for (const JobGauges& job : gauges.running) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label.push_back({"job_name", job.job});
    metric.gauge.value = value(job);
  }
  return family;
}

std::vector<prometheus::MetricFamily> FamiliesOfJobs(const Gauges& gauges) {
  return {OfJobs(gauges, "phalanx_job_step", "Last step of a running job",
                 [](const JobGauges& job) { return static_cast<double>(job.step); }),
          OfJobs(gauges, "phalanx_job_steps", "Steps that a running job is to do",
                 [](const JobGauges& job) { return static_cast<double>(job.steps); }),
          OfJobs(gauges, "phalanx_job_loss", "Loss of the last step of a running job",
                 [](const JobGauges& job) { return job.loss; }),
          OfJobs(gauges, "phalanx_job_tokens_per_second",
                 "Tokens of the last step of a running job over the time that it took",
                 [](const JobGauges& job) { return job.tokens_per_second; }),
          OfJobs(gauges, "phalanx_job_step_seconds", "Time of the last step of a running job",
                 [](const JobGauges& job) { return job.step_seconds; }),
          OfJobs(gauges, "phalanx_job_epoch", "Epoch of a running job",
                 [](const JobGauges& job) { return static_cast<double>(job.epoch); })};
}

// Of one value that is not always known: the registry would keep the last.
prometheus::MetricFamily KnownNow(const char* name, const char* help, double value) {
  prometheus::ClientMetric metric;
  metric.gauge.value = value;
  return {name, help, prometheus::MetricType::Gauge, {metric}};
}

// Of one that is counted elsewhere.
prometheus::MetricFamily Counted(const char* name, const char* help, double value) {
  prometheus::ClientMetric metric;
  metric.counter.value = value;
  return {name, help, prometheus::MetricType::Counter, {metric}};
}

void AddUsage(const ProcessUsage& usage, std::vector<prometheus::MetricFamily>& families) {
  families.push_back(KnownNow("phalanx_resident_bytes", "Memory of the coordinator's process",
                              static_cast<double>(usage.resident_bytes)));
  families.push_back(Counted("phalanx_cpu_seconds_total",
                             "Processor time of the coordinator's process", usage.cpu_seconds));
  families.push_back(KnownNow("phalanx_open_descriptors", "Open files and sockets",
                              static_cast<double>(usage.open_descriptors)));
}

void AddAudit(const AuditCounts& audit, int64_t not_taken,
              std::vector<prometheus::MetricFamily>& families) {
  families.push_back(Counted("phalanx_audit_lines_not_kept_total",
                             "Lines of the audit that could not be written beside the store",
                             static_cast<double>(not_taken + audit.not_written)));
  prometheus::MetricFamily files =
      Counted("phalanx_audit_files_filled_total",
              "Full files of the audit that were put aside, by what is in them", 0);
  files.metric.clear();
  for (const auto& [label, count] :
       {std::pair("done", audit.files_done), std::pair("workers", audit.files_workers),
        std::pair("refused", audit.files_refused)}) {
    prometheus::ClientMetric metric;
    metric.label = {{"file", label}};
    metric.counter.value = static_cast<double>(count);
    files.metric.push_back(metric);
  }
  families.push_back(std::move(files));
}

void AddCertificates(const std::map<std::string, absl::Time>& expiries,
                     std::vector<prometheus::MetricFamily>& families) {
  if (expiries.empty()) return;
  prometheus::MetricFamily family = KnownNow("phalanx_certificate_expiration_timestamp_seconds",
                                             "When a certificate of the coordinator expires", 0);
  family.metric.clear();
  for (const auto& [use, expiry] : expiries) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = {{"certificate", use}};
    metric.gauge.value = static_cast<double>(absl::ToUnixSeconds(expiry));
  }
  families.push_back(std::move(family));
}

std::string PhaseLabel(job::JobPhase phase) { return absl::AsciiStrToLower(job::ToString(phase)); }

}  // namespace

struct Metrics::Series {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Gauge>& jobs =
      BuildGauge().Name("phalanx_jobs").Help("Jobs by phase").Register(registry);
  prometheus::Gauge& suspended =
      BuildGauge()
          .Name("phalanx_jobs_suspended")
          .Help("Jobs of the queue that wait for somebody to resume them")
          .Register(registry)
          .Add({});
  prometheus::Family<prometheus::Gauge>& nodes =
      BuildGauge().Name("phalanx_nodes").Help("Nodes by state").Register(registry);
  prometheus::Family<prometheus::Gauge>& devices = BuildGauge()
                                                       .Name("phalanx_devices")
                                                       .Help("Devices of connected nodes by state")
                                                       .Register(registry);
  prometheus::Family<prometheus::Gauge>& checks =
      BuildGauge()
          .Name("phalanx_device_checks")
          .Help("Devices of connected nodes by the verdict of their last check")
          .Register(registry);
  prometheus::Gauge& slow = BuildGauge()
                                .Name("phalanx_slow_devices")
                                .Help("Devices that are slower than others with the same work")
                                .Register(registry)
                                .Add({});
  prometheus::Gauge& sessions =
      BuildGauge().Name("phalanx_sessions").Help("Open worker sessions").Register(registry).Add({});
  prometheus::Gauge& watchers =
      BuildGauge().Name("phalanx_watchers").Help("Open job watches").Register(registry).Add({});
  prometheus::Gauge& inbox = BuildGauge()
                                 .Name("phalanx_inbox_events")
                                 .Help("Events that wait for the driver thread")
                                 .Register(registry)
                                 .Add({});
  prometheus::Gauge& watch_pending = BuildGauge()
                                         .Name("phalanx_watch_pending_bytes")
                                         .Help("Steps and events that wait for slow watchers")
                                         .Register(registry)
                                         .Add({});
  prometheus::Gauge& serving = BuildGauge()
                                   .Name("phalanx_serving")
                                   .Help("1 while the coordinator accepts work")
                                   .Register(registry)
                                   .Add({});
  prometheus::Gauge& standby = BuildGauge()
                                   .Name("phalanx_standby")
                                   .Help("1 while the coordinator stands by and another one leads")
                                   .Register(registry)
                                   .Add({});
  prometheus::Family<prometheus::Gauge>& build = BuildGauge()
                                                     .Name("phalanx_build_info")
                                                     .Help("1, labelled with version and commit")
                                                     .Register(registry);
  prometheus::Family<prometheus::Counter>& rpcs =
      BuildCounter()
          .Name("phalanx_rpc_handled_total")
          .Help("Calls that have ended, by method and code")
          .Register(registry);
  prometheus::Family<prometheus::Histogram>& rpc_seconds =
      BuildHistogram().Name("phalanx_rpc_seconds").Help("Time of unary calls").Register(registry);
  prometheus::Histogram& commit_seconds = BuildHistogram()
                                              .Name("phalanx_store_commit_seconds")
                                              .Help("Time of a commit, fsync included")
                                              .Register(registry)
                                              .Add({}, kFastSeconds);
  prometheus::Counter& records = BuildCounter()
                                     .Name("phalanx_store_records_total")
                                     .Help("Records committed")
                                     .Register(registry)
                                     .Add({});
  prometheus::Counter& audit_dropped =
      BuildCounter()
          .Name("phalanx_audit_lines_dropped_total")
          .Help("Refusals that are not in the audit, as one caller had too many")
          .Register(registry)
          .Add({});
  std::atomic<int64_t> audit_not_kept = 0;  // but for those of AuditCounts
  prometheus::Family<prometheus::Counter>& handshakes_failed =
      BuildCounter()
          .Name("phalanx_tls_handshakes_failed_total")
          .Help("Handshakes of TLS that came to nothing, by port and reason")
          .Register(registry);
  prometheus::Counter& upload_waits =
      BuildCounter()
          .Name("phalanx_log_upload_waits_total")
          .Help("Pauses in reading uploads of logs of a node that sends them too fast")
          .Register(registry)
          .Add({});
  prometheus::Counter& log_dropped =
      BuildCounter()
          .Name("phalanx_log_bytes_dropped_total")
          .Help("Bytes of logs of ranks that their nodes dropped, as they came too fast")
          .Register(registry)
          .Add({});
  prometheus::Counter& commit_errors = BuildCounter()
                                           .Name("phalanx_store_errors_total")
                                           .Help("Commits that failed")
                                           .Register(registry)
                                           .Add({});
  prometheus::Histogram& queue_seconds = BuildHistogram()
                                             .Name("phalanx_queue_wait_seconds")
                                             .Help("From submission until devices were given")
                                             .Register(registry)
                                             .Add({}, kSlowSeconds);
  prometheus::Histogram& start_seconds = BuildHistogram()
                                             .Name("phalanx_start_seconds")
                                             .Help("From devices given until all ranks were ready")
                                             .Register(registry)
                                             .Add({}, kSlowSeconds);
  prometheus::Histogram& plan_seconds = BuildHistogram()
                                            .Name("phalanx_plan_seconds")
                                            .Help("Time to plan a job")
                                            .Register(registry)
                                            .Add({}, kFastSeconds);
  prometheus::Family<prometheus::Counter>& ended =
      BuildCounter()
          .Name("phalanx_jobs_ended_total")
          .Help("Jobs that have ended, by phase and cause")
          .Register(registry);
  prometheus::Counter& steps = BuildCounter()
                                   .Name("phalanx_steps_total")
                                   .Help("Optimizer steps reported")
                                   .Register(registry)
                                   .Add({});
  prometheus::Counter& tokens = BuildCounter()
                                    .Name("phalanx_tokens_total")
                                    .Help("Tokens of the steps reported")
                                    .Register(registry)
                                    .Add({});
  prometheus::Counter& step_seconds = BuildCounter()
                                          .Name("phalanx_step_seconds_total")
                                          .Help("Time of the steps reported")
                                          .Register(registry)
                                          .Add({});
  prometheus::Family<prometheus::Counter>& incidents =
      BuildCounter()
          .Name("phalanx_incidents_total")
          .Help("Losses and returns of ranks of jobs that train, by kind and cause")
          .Register(registry);
  prometheus::Family<prometheus::Histogram>& recovery_seconds =
      BuildHistogram()
          .Name("phalanx_recovery_seconds")
          .Help("From the first evidence of an incident until a phase of it ended")
          .Register(registry);
  prometheus::Counter& steps_redone = BuildCounter()
                                          .Name("phalanx_steps_redone_total")
                                          .Help("Steps that incidents made jobs do again")
                                          .Register(registry)
                                          .Add({});
  prometheus::Family<prometheus::Histogram>& detection_seconds =
      BuildHistogram()
          .Name("phalanx_detection_seconds")
          .Help("From the first evidence of a loss to its verdict, by cause")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& restarts =
      BuildCounter()
          .Name("phalanx_restarts_total")
          .Help("Jobs that went on in another epoch or were queued again, by cause and action")
          .Register(registry);
  prometheus::Counter& running_seconds = BuildCounter()
                                             .Name("phalanx_running_seconds_total")
                                             .Help("Time that jobs were running")
                                             .Register(registry)
                                             .Add({});
  prometheus::Counter& useful_seconds = BuildCounter()
                                            .Name("phalanx_useful_seconds_total")
                                            .Help("Of that, time of steps not done before")
                                            .Register(registry)
                                            .Add({});
  prometheus::Family<prometheus::Gauge>& goodput =
      BuildGauge()
          .Name("phalanx_goodput_ratio")
          .Help("Useful time of jobs over the time that they ran, since the start")
          .Register(registry);
  prometheus::Gauge& store_bytes = BuildGauge()
                                       .Name("phalanx_store_bytes")
                                       .Help("Size of the store, as of its last commit")
                                       .Register(registry)
                                       .Add({});
  prometheus::Counter& late_heartbeats = BuildCounter()
                                             .Name("phalanx_heartbeats_late_total")
                                             .Help("Heartbeats later than two intervals")
                                             .Register(registry)
                                             .Add({});
  prometheus::Counter& damaged =
      BuildCounter()
          .Name("phalanx_store_damaged_entries_total")
          .Help("Damaged entries of ended jobs that the reading after the start has found")
          .Register(registry)
          .Add({});
  prometheus::Counter& heartbeats = BuildCounter()
                                        .Name("phalanx_heartbeats_total")
                                        .Help("Heartbeats received")
                                        .Register(registry)
                                        .Add({});
};

Metrics::Metrics() : series_(std::make_unique<Series>()) {
  series_->build
      .Add({{"version", std::string(BuildVersion())}, {"commit", std::string(BuildCommit())}})
      .Set(1);
}
Metrics::~Metrics() = default;

bool Metrics::CallBegins() {
  if (!counts_calls_) return false;
  ++calls_open_;
  return true;
}

void Metrics::Rpc(absl::string_view method, absl::StatusCode code, absl::Duration duration) {
  const std::string name(method);
  series_->rpcs.Add({{"method", name}, {"code", absl::StatusCodeToString(code)}}).Increment();
  series_->rpc_seconds.Add({{"method", name}}, kFastSeconds)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::StreamEnded(absl::string_view method, absl::StatusCode code) {
  series_->rpcs.Add({{"method", std::string(method)}, {"code", absl::StatusCodeToString(code)}})
      .Increment();
}

void Metrics::Commit(bool ok, uint64_t records, absl::Duration duration) {
  series_->commit_seconds.Observe(absl::ToDoubleSeconds(duration));
  if (ok) {
    series_->records.Increment(static_cast<double>(records));
  } else {
    series_->commit_errors.Increment();
  }
}

void Metrics::JobStarted(absl::Duration queued) {
  series_->queue_seconds.Observe(absl::ToDoubleSeconds(queued));
}
void Metrics::JobRunning(absl::Duration starting) {
  series_->start_seconds.Observe(absl::ToDoubleSeconds(starting));
}

void Metrics::JobEnded(job::JobPhase phase, std::optional<job::FailureKind> cause) {
  const std::string label(cause.has_value() ? job::ToString(*cause) : "");
  series_->ended.Add({{"phase", PhaseLabel(phase)}, {"cause", label}}).Increment();
}

void Metrics::Step(int64_t tokens, double seconds) {
  series_->steps.Increment();
  // Counters only grow, and what ranks report is theirs.
  if (tokens > 0) series_->tokens.Increment(static_cast<double>(tokens));
  if (std::isfinite(seconds) && seconds > 0) series_->step_seconds.Increment(seconds);
}
void Metrics::IncidentBegun(absl::string_view kind, absl::string_view cause) {
  series_->incidents.Add({{"kind", std::string(kind)}, {"cause", std::string(cause)}}).Increment();
}
void Metrics::IncidentPhase(absl::string_view phase, absl::Duration until_end) {
  series_->recovery_seconds.Add({{"phase", std::string(phase)}}, kRecoverySeconds)
      .Observe(absl::ToDoubleSeconds(until_end));
}
void Metrics::StepsRedone(int64_t steps) {
  if (steps > 0) series_->steps_redone.Increment(static_cast<double>(steps));
}
void Metrics::Detected(absl::string_view cause, absl::Duration duration) {
  series_->detection_seconds.Add({{"cause", std::string(cause)}}, kRecoverySeconds)
      .Observe(absl::ToDoubleSeconds(duration));
}
void Metrics::Restarted(absl::string_view cause, absl::string_view action) {
  series_->restarts.Add({{"cause", std::string(cause)}, {"action", std::string(action)}})
      .Increment();
}
void Metrics::Ran(absl::Duration elapsed, absl::Duration useful) {
  // The system's clock may be set back; a step's time is its rank's word.
  elapsed = std::max(elapsed, absl::ZeroDuration());
  useful = std::clamp(useful, absl::ZeroDuration(), elapsed);
  series_->running_seconds.Increment(absl::ToDoubleSeconds(elapsed));
  series_->useful_seconds.Increment(absl::ToDoubleSeconds(useful));
}
void Metrics::StoreBytes(int64_t bytes) { series_->store_bytes.Set(static_cast<double>(bytes)); }
void Metrics::LateHeartbeat() { series_->late_heartbeats.Increment(); }
void Metrics::Heartbeat() { series_->heartbeats.Increment(); }
void Metrics::HandshakeFailed(absl::string_view port, absl::string_view reason) {
  series_->handshakes_failed.Add({{"port", std::string(port)}, {"reason", std::string(reason)}})
      .Increment();
}
void Metrics::HandshakeMayFail(absl::string_view port, absl::string_view reason) {
  series_->handshakes_failed.Add({{"port", std::string(port)}, {"reason", std::string(reason)}});
}
void Metrics::UploadWaits() { series_->upload_waits.Increment(); }
void Metrics::AuditLineDropped() { series_->audit_dropped.Increment(); }
void Metrics::AuditLineNotKept() { ++series_->audit_not_kept; }
void Metrics::LogBytesDropped(int64_t bytes) {
  series_->log_dropped.Increment(static_cast<double>(bytes));
}
void Metrics::DamagedEntry() { series_->damaged.Increment(); }
void Metrics::Planned(absl::Duration duration) {
  series_->plan_seconds.Observe(absl::ToDoubleSeconds(duration));
}

std::string Metrics::Text(const Gauges& gauges) {
  for (job::JobPhase phase :
       {job::JobPhase::kQueued, job::JobPhase::kStarting, job::JobPhase::kRunning,
        job::JobPhase::kSucceeded, job::JobPhase::kFailed, job::JobPhase::kCancelled}) {
    const auto found = gauges.jobs.find(phase);
    series_->jobs.Add({{"phase", PhaseLabel(phase)}})
        .Set(found == gauges.jobs.end() ? 0 : static_cast<double>(found->second));
  }
  series_->suspended.Set(static_cast<double>(gauges.jobs_suspended));
  series_->nodes.Add({{"state", "ready"}}).Set(static_cast<double>(gauges.nodes_ready));
  series_->nodes.Add({{"state", "suspect"}}).Set(static_cast<double>(gauges.nodes_suspect));
  series_->nodes.Add({{"state", "disconnected"}})
      .Set(static_cast<double>(gauges.nodes_disconnected));
  series_->nodes.Add({{"state", "cordoned"}}).Set(static_cast<double>(gauges.nodes_cordoned));
  series_->devices.Add({{"state", "free"}}).Set(static_cast<double>(gauges.devices_free));
  series_->devices.Add({{"state", "used"}}).Set(static_cast<double>(gauges.devices_used));
  series_->devices.Add({{"state", "failed"}}).Set(static_cast<double>(gauges.devices_failed));
  series_->devices.Add({{"state", "reserved"}}).Set(static_cast<double>(gauges.devices_reserved));
  series_->devices.Add({{"state", "cordoned"}}).Set(static_cast<double>(gauges.devices_cordoned));
  for (const job::CheckVerdict verdict :
       {job::CheckVerdict::kPassed, job::CheckVerdict::kSlow, job::CheckVerdict::kFailed}) {
    const auto found = gauges.checks.find(verdict);
    series_->checks.Add({{"verdict", std::string(job::ToString(verdict))}})
        .Set(found == gauges.checks.end() ? 0 : static_cast<double>(found->second));
  }
  series_->slow.Set(static_cast<double>(gauges.devices_slow));
  series_->sessions.Set(static_cast<double>(gauges.sessions));
  series_->watchers.Set(static_cast<double>(gauges.watchers));
  series_->inbox.Set(static_cast<double>(gauges.inbox));
  series_->serving.Set(gauges.serving ? 1 : 0);
  series_->standby.Set(gauges.standby ? 1 : 0);
  series_->watch_pending.Set(static_cast<double>(gauges.watch_pending_bytes));
  if (const double running = series_->running_seconds.Value(); running > 0)
    series_->goodput.Add({}).Set(series_->useful_seconds.Value() / running);
  std::vector<prometheus::MetricFamily> families = series_->registry.Collect();
  AddUsage(gauges.usage, families);
  AddAudit(gauges.audit, series_->audit_not_kept, families);
  AddCertificates(gauges.certificates, families);
  if (gauges.warmest_celsius > 0) {
    families.push_back(KnownNow("phalanx_warmest_device_celsius",
                                "Temperature of the warmest device of connected nodes",
                                static_cast<double>(gauges.warmest_celsius)));
  }
  if (!gauges.running.empty()) {
    for (prometheus::MetricFamily& family : FamiliesOfJobs(gauges))
      families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace phalanx::coordinator
