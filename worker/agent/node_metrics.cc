#include "worker/agent/node_metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/build/build_info.h"

namespace phalanx::agent {
namespace {

using Label = prometheus::ClientMetric::Label;
using Labels = std::vector<Label>;

// One family, and its samples.
class Family {
 public:
  Family(const char* name, const char* help, prometheus::MetricType type)
      : family_{name, help, type, {}} {}
  void Put(double value, Labels labels = {}) {
    prometheus::ClientMetric& metric = family_.metric.emplace_back();
    metric.label = std::move(labels);
    if (family_.type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
  }
  void Put(int64_t value, Labels labels = {}) {
    Put(static_cast<double>(value), std::move(labels));
  }
  prometheus::MetricFamily Take() { return std::move(family_); }

 private:
  prometheus::MetricFamily family_;
};

Family GaugeOf(const char* name, const char* help) {
  return Family(name, help, prometheus::MetricType::Gauge);
}
Family CounterOf(const char* name, const char* help) {
  return Family(name, help, prometheus::MetricType::Counter);
}

class Text {
 public:
  void Add(Family family) {
    prometheus::MetricFamily taken = family.Take();
    if (!taken.metric.empty()) families_.push_back(std::move(taken));
  }
  void Add(Family family, double value) {
    family.Put(value);
    Add(std::move(family));
  }
  void Add(Family family, int64_t value) { Add(std::move(family), static_cast<double>(value)); }
  std::string Write() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

Labels OfDevice(size_t device) { return {{"device", absl::StrCat(device)}}; }

void AddProcess(const ProcessUsage& usage, Text& text) {
  Family build = GaugeOf("phalanx_worker_build_info", "1, labelled with version and commit");
  build.Put(int64_t{1},
            {{"version", std::string(BuildVersion())}, {"commit", std::string(BuildCommit())}});
  text.Add(std::move(build));
  text.Add(GaugeOf("phalanx_worker_resident_bytes", "Memory of the daemon's process"),
           usage.resident_bytes);
  text.Add(CounterOf("phalanx_worker_cpu_seconds_total", "Processor time of the daemon's process"),
           usage.cpu_seconds);
  text.Add(GaugeOf("phalanx_worker_open_descriptors", "Open files and sockets of the daemon"),
           usage.open_descriptors);
}

void AddRanks(const MachineFigures& machine, Text& text) {
  Family ranks = GaugeOf("phalanx_worker_ranks", "Processes of ranks by state");
  for (const auto& [state, count] : machine.ranks) ranks.Put(count, {{"state", state}});
  text.Add(std::move(ranks));
  text.Add(CounterOf("phalanx_worker_rank_starts_total", "Starts of processes of ranks"),
           machine.rank_starts);
  Family ends = CounterOf("phalanx_worker_rank_ends_total", "Ends of processes by cause");
  for (const auto& [cause, count] : machine.rank_ends) ends.Put(count, {{"cause", cause}});
  text.Add(std::move(ends));
}

void AddStrangers(const NodeFigures& figures, Text& text) {
  text.Add(CounterOf("phalanx_worker_strangers_refused_total",
                     "Connections to ranks that did not prove to come from their epoch"),
           figures.strangers);
}

void AddCertificates(const NodeFigures& figures, Text& text) {
  Family expiries = GaugeOf("phalanx_worker_certificate_expiration_timestamp_seconds",
                            "When a certificate of the daemon expires");
  for (const auto& [use, expiry] : figures.certificates)
    expiries.Put(absl::ToUnixSeconds(expiry), {{"certificate", use}});
  text.Add(std::move(expiries));
}

void AddSession(const MachineFigures& machine, Text& text) {
  text.Add(GaugeOf("phalanx_worker_session_open", "1 while the coordinator has let the node in"),
           int64_t{machine.session_open});
  text.Add(CounterOf("phalanx_worker_sessions_total", "Sessions that the coordinator welcomed"),
           machine.sessions);
  text.Add(CounterOf("phalanx_worker_session_breaks_total", "Open sessions that broke"),
           machine.session_breaks);
  text.Add(CounterOf("phalanx_worker_session_failures_total", "Attempts without a welcome"),
           machine.session_failures);
  text.Add(CounterOf("phalanx_worker_heartbeats_total", "Heartbeats sent"), machine.heartbeats);
  text.Add(CounterOf("phalanx_worker_heartbeats_late_total",
                     "Heartbeats sent more than an interval after they were due"),
           machine.heartbeats_late);
  text.Add(GaugeOf("phalanx_worker_reports_waiting", "Reports of ranks that are still to be sent"),
           machine.reports_waiting);
  text.Add(GaugeOf("phalanx_worker_draining", "1 once the daemon is to end"),
           int64_t{machine.draining});
  text.Add(CounterOf("phalanx_worker_stalled_seconds_total",
                     "Time in which the daemon's thread did not run though it was due"),
           absl::ToDoubleSeconds(machine.stalled));
}

void AddLogs(const NodeFigures& figures, Text& text) {
  text.Add(CounterOf("phalanx_worker_log_bytes_total", "Of logs of ranks, kept on the node"),
           figures.log_bytes);
  text.Add(CounterOf("phalanx_worker_log_bytes_dropped_total",
                     "Of logs of ranks, dropped as they came too fast"),
           figures.log_bytes_dropped);
  text.Add(CounterOf("phalanx_worker_log_bytes_sent_total",
                     "Of logs of ranks, sent to the coordinator for those who read them"),
           figures.log_bytes_sent);
}

void AddErrors(const std::optional<bool>& watch, const std::vector<DeviceFigures>& devices,
               Text& text) {
  if (watch.has_value())
    text.Add(GaugeOf("phalanx_worker_device_watch", "1 while the driver tells of errors of GPUs"),
             int64_t{*watch});
  static constexpr const char* kEffects[kXidEffects] = {"note", "process", "lost"};
  Family lost = GaugeOf("phalanx_worker_device_lost", "1 once an error has cost the device");
  Family errors = CounterOf("phalanx_worker_device_errors_total", "XIDs by what follows of them");
  Family last = GaugeOf("phalanx_worker_device_last_xid", "Number of the last XID of the device");
  for (size_t i = 0; i < devices.size(); ++i) {
    lost.Put(int64_t{devices[i].lost}, OfDevice(i));
    for (size_t effect = 0; effect < kXidEffects; ++effect) {
      Labels labels = OfDevice(i);
      labels.push_back({"effect", kEffects[effect]});
      errors.Put(devices[i].errors[effect], std::move(labels));
    }
    if (devices[i].last_xid != 0) last.Put(int64_t{devices[i].last_xid}, OfDevice(i));
  }
  text.Add(std::move(lost));
  text.Add(std::move(errors));
  text.Add(std::move(last));
}

void AddChecks(const std::vector<DeviceFigures>& devices, Instant now, Text& text) {
  Family verdict = GaugeOf("phalanx_worker_device_check", "1 for the verdict of the last check");
  Family age = GaugeOf("phalanx_worker_device_check_age_seconds", "Since the last check had ended");
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].verdict == job::CheckVerdict::kNone) continue;
    Labels labels = OfDevice(i);
    labels.push_back({"verdict", std::string(job::ToString(devices[i].verdict))});
    verdict.Put(int64_t{1}, std::move(labels));
    age.Put(absl::ToDoubleSeconds(now - devices[i].checked), OfDevice(i));
  }
  text.Add(std::move(verdict));
  text.Add(std::move(age));
}

// What is below `least` is not known.
template <typename T>
void PutKnown(const std::vector<T>& values, T least, Family& family) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= least) family.Put(static_cast<double>(values[i]), OfDevice(i));
  }
}

void AddMemory(const NodeFigures& figures, Text& text) {
  Family bytes = GaugeOf("phalanx_worker_device_memory_bytes", "That jobs may use of a device");
  Family used = GaugeOf("phalanx_worker_device_memory_used_bytes", "In use on a device");
  Family celsius = GaugeOf("phalanx_worker_device_celsius", "Temperature of a device");
  PutKnown(figures.memory_bytes, int64_t{1}, bytes);
  PutKnown(figures.memory_used_bytes, int64_t{0}, used);
  PutKnown(figures.celsius, int32_t{1}, celsius);
  text.Add(std::move(bytes));
  text.Add(std::move(used));
  text.Add(std::move(celsius));
}

}  // namespace

std::string MetricsText(const NodeFigures& figures, const ProcessUsage& usage, Instant now) {
  Text text;
  AddProcess(usage, text);
  AddRanks(figures.machine, text);
  AddStrangers(figures, text);
  AddSession(figures.machine, text);
  AddCertificates(figures, text);
  AddLogs(figures, text);
  AddErrors(figures.device_watch, figures.machine.devices, text);
  AddChecks(figures.machine.devices, now, text);
  AddMemory(figures, text);
  return text.Write();
}

std::string RefusedText(const std::map<std::string, int64_t, std::less<>>& counts) {
  Family refused = CounterOf("phalanx_worker_metrics_refused_total",
                             "Connections and requests that the port for metrics refused");
  for (const auto& [reason, count] : counts) refused.Put(count, {{"reason", reason}});
  Text text;
  text.Add(std::move(refused));
  return text.Write();
}

}  // namespace phalanx::agent
