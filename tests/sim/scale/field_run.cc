#include "tests/sim/scale/field_run.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <utility>

#include "tests/sim/scale/light_cluster.h"

namespace phalanx::scale {
namespace {

double MeanOf(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double MostOf(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Events of the machine and its seconds since the last time.
class Since {
 public:
  explicit Since(LightCluster& cluster) : cluster_(cluster) { Restart(); }
  void Restart() {
    machine_ = cluster_.times().machine;
    events_ = cluster_.times().events;
    cluster_.times().planning.clear();
  }
  double machine() const { return cluster_.times().machine - machine_; }
  int64_t events() const { return cluster_.times().events - events_; }

 private:
  LightCluster& cluster_;
  double machine_ = 0;
  int64_t events_ = 0;
};

}  // namespace

FieldRow RunField(const Workload& workload, Policy policy, double failed, double days,
                  uint64_t seed) {
  LightCluster cluster({.workload = workload, .policy = policy});
  cluster.Register();
  cluster.Train();
  Field field(failed, workload.devices(), seed);
  cluster.Break(field.Now());
  cluster.Run(absl::Minutes(10));
  cluster.Measure();
  Since since(cluster);
  const int64_t failures = cluster.failures();
  cluster.Suffer(field);
  cluster.Run(absl::Hours(24) * days);

  FieldRow row{.policy = policy, .failed = failed, .out = cluster.FailedShare()};
  double seconds = 0;
  int64_t ranks = 0, changes = 0;
  for (const JobTally& job : cluster.Tallies()) {
    ranks += job.ranks;
    seconds += job.ranks * job.seconds;
    row.work_lost += job.ranks * job.work_lost;
    row.step_lost += job.ranks * job.step_lost;
    row.broken_off += job.ranks * job.broken_off;
    changes += job.changes;
    row.changes_a_day = std::max(row.changes_a_day, static_cast<double>(job.changes) / days);
    if (row.trouble.empty()) row.trouble = job.ended;
  }
  const double whole = static_cast<double>(ranks) * days * 24 * 60 * 60;
  for (double* share : {&row.work_lost, &row.step_lost, &row.broken_off}) *share /= whole;
  row.stood = 1 - seconds / whole;
  row.failures_a_day = static_cast<double>(cluster.failures() - failures) / days;
  row.plan_mean = MeanOf(cluster.times().planning);
  row.plan_max = MostOf(cluster.times().planning);
  row.machine_a_change = since.machine() / static_cast<double>(std::max<int64_t>(1, changes));
  return row;
}

OwnWork MeasureOwnWork(const Workload& workload, int32_t losses, uint64_t seed) {
  OwnWork work{.nodes = workload.nodes, .ranks = workload.job_ranks()};
  // Longer than all this takes.
  LightCluster cluster({.workload = workload, .heartbeat_timeout = absl::Hours(24)});
  Since since(cluster);
  cluster.Register();
  work.registration = since.machine() / workload.nodes;
  since.Restart();
  cluster.Train();
  work.start = since.machine();
  since.Restart();
  cluster.Heartbeats();
  cluster.Heartbeats();
  work.heartbeat = since.machine() / static_cast<double>(since.events());
  since.Restart();
  Prng prng(seed);
  for (int32_t i = 0; i < losses; ++i) {  // and the return of each
    const std::vector<int32_t>& devices = cluster.DevicesOf(0);
    const int32_t device = devices[prng.Below(devices.size())];
    cluster.Break({{.device = device, .lasts = absl::Minutes(3)}});
    cluster.Run(absl::Minutes(6));
  }
  work.plan_mean = MeanOf(cluster.times().planning);
  work.plan_max = MostOf(cluster.times().planning);
  work.machine = since.machine() / (2 * losses);
  work.events = static_cast<double>(since.events()) / (2 * losses);
  work.resident_bytes = ResidentBytes();
  return work;
}

}  // namespace phalanx::scale
