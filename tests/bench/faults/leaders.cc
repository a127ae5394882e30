#include "tests/bench/faults/leaders.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/e2e/jobs/submitter.h"
#include "tests/support/etcd.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr double kBackMaxMilliseconds = 5000;

double Percentile(const std::vector<double>& sorted, double part) {
  const auto index = static_cast<size_t>(std::ceil(part * static_cast<double>(sorted.size()))) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

// Until whoever leads has the worker.
void AwaitWorker(Cluster& cluster) {
  const absl::Time deadline = absl::Now() + support::kPatience;
  while (true) {
    const std::vector<v1::NodeStatus> nodes = cluster.Nodes();
    if (nodes.size() == 1 && nodes[0].state() == v1::NodeStatus::STATE_READY) return;
    support::Require(absl::Now() < deadline, "the worker does not come back");
    cluster.worker().watch().AwaitEnd(absl::Milliseconds(10));
  }
}

}  // namespace

bool KillLeaders(int64_t kills) {
  support::Require(support::EtcdMissing().empty(), support::EtcdMissing());
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 3,
                   .coordinator_flags = {"--jobs-max", "1000000"},
                   .store = support::SharedEtcd().NewPlace(),
                   .coordinators = 2});
  const int64_t job =
      cluster
          .Submit(
              Document(data, {.name = "trains", .steps = kForEver, .language = "ranks: 2, tp: 2"}))
          .id();
  cluster.AwaitStep(job, 1);
  const std::map<int32_t, support::ProcessWatch> ranks = cluster.Ranks(job);
  std::vector<std::unique_ptr<Submitter>> submitters;
  for (int32_t i = 0; i < 2; ++i) {
    submitters.push_back(std::make_unique<Submitter>(cluster.grpc(), data, i));
  }
  Prng prng(2);
  std::vector<double> back;
  for (int64_t i = 0; i < kills; ++i) {
    const size_t leader = cluster.AwaitLeader();
    cluster.coordinator(leader).watch().AwaitEnd(
        absl::Microseconds(static_cast<int64_t>(prng.Below(500'000))));
    const absl::Time killed = absl::Now();
    cluster.KillCoordinator(leader);
    AwaitWorker(cluster);
    back.push_back(absl::ToDoubleMilliseconds(absl::Now() - killed));
    cluster.StartCoordinator("phalanx-coordinator", leader);
  }
  std::map<std::string, int64_t> acknowledged;
  for (const auto& submitter : submitters) acknowledged.merge(submitter->Finish());
  const Kept kept = LookFor(acknowledged, cluster);
  const v1::JobStatus later = cluster.AwaitStep(job, cluster.Get(job).last_step().step() + 1);
  int64_t ranks_lost = ranks.size() == 3 ? 0 : 1;
  for (const auto& [rank, watch] : ranks) ranks_lost += watch.HasEnded();
  cluster.Cancel(job);
  for (const auto& [rank, watch] : ranks) watch.AwaitEnd();
  const std::vector<Metric> metrics = ReadMetrics(data.path + "/out");
  const std::string fault = StepsFault(metrics, static_cast<int64_t>(metrics.size()));
  std::sort(back.begin(), back.end());
  const nlohmann::ordered_json line = {{"benchmark", "leader_kills"},
                                       {"kills", kills},
                                       {"submits", acknowledged.size()},
                                       {"missing", kept.missing},
                                       {"doubled", kept.doubled},
                                       {"steps", metrics.size()},
                                       {"step_fault", fault},
                                       {"epoch", later.epoch()},
                                       {"ranks_lost", ranks_lost},
                                       {"back_p50_ms", Percentile(back, 0.5)},
                                       {"back_max_ms", back.back()}};
  std::printf("%s\n", line.dump().c_str());
  return kept.missing == 0 && kept.doubled == 0 && ranks_lost == 0 && fault.empty() &&
         later.epoch() == 1 && back.back() < kBackMaxMilliseconds;
}

}  // namespace phalanx::e2e
