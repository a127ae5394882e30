#include "tests/bench/faults/coordinators.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "nlohmann/json.hpp"
#include "tests/bench/faults/percentile.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/e2e/jobs/submitter.h"
#include "tests/support/etcd.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr double kBackMaxMilliseconds = 5000;

// A job that trains, and two streams of changes.
class Load {
 public:
  explicit Load(ClusterOptions options) : cluster_(std::move(options)) {
    // Ends only when it is cancelled; its steps are counted at the end.
    job_ = cluster_
               .Submit(Document(
                   data_, {.name = "trains", .steps = kForEver, .language = "ranks: 2, tp: 2"}))
               .id();
    cluster_.AwaitStep(job_, 1);
    ranks_ = cluster_.Ranks(job_);
    for (int32_t i = 0; i < 2; ++i) {
      submitters_.push_back(
          std::make_unique<Submitter>(cluster_.grpc(), data_, i, i == 0 ? "here" : ""));
    }
  }
  Cluster& cluster() { return cluster_; }

  // Ends it and prints what became of it. `back`: after each kill, the milliseconds until somebody
  // served again. Whether nothing is lost. Call once.
  bool Finish(const char* benchmark, std::vector<double> back) {
    Acknowledged acknowledged;
    for (const auto& submitter : submitters_) acknowledged.Add(submitter->Finish());
    const Kept kept = LookFor(acknowledged, cluster_);
    const v1::JobStatus later = cluster_.AwaitStep(job_, cluster_.Get(job_).last_step().step() + 1);
    int64_t ranks_lost = ranks_.size() == 3 ? 0 : 1;
    for (const auto& [rank, watch] : ranks_) ranks_lost += watch.HasEnded();
    cluster_.Cancel(job_);
    for (const auto& [rank, watch] : ranks_) watch.AwaitEnd();
    const std::vector<Metric> metrics = ReadMetrics(data_.path + "/out");
    const auto steps = static_cast<int64_t>(metrics.size());
    const std::string fault = StepsFault(metrics, steps);
    std::sort(back.begin(), back.end());
    const nlohmann::ordered_json line = {{"benchmark", benchmark},
                                         {"kills", back.size()},
                                         {"submits", acknowledged.submits.size()},
                                         {"missing", kept.missing},
                                         {"doubled", kept.doubled},
                                         {"cancels", acknowledged.cancels.size()},
                                         {"cancels_missing", kept.cancels_missing},
                                         {"suspends", acknowledged.suspends.size()},
                                         {"suspends_missing", kept.suspends_missing},
                                         {"cordons", acknowledged.marks},
                                         {"cordons_missing", kept.marks_missing},
                                         {"steps", steps},
                                         {"step_fault", fault},
                                         {"epoch", later.epoch()},
                                         {"ranks_lost", ranks_lost},
                                         {"back_p50_ms", Percentile(back, 0.5)},
                                         {"back_max_ms", back.back()}};
    std::printf("%s\n", line.dump().c_str());
    return kept.all() && ranks_lost == 0 && fault.empty() && later.epoch() == 1 &&
           steps >= later.last_step().step();
  }

 private:
  const DataFolder data_ = MakeData();
  Cluster cluster_;
  int64_t job_ = 0;
  std::map<int32_t, support::ProcessWatch> ranks_;
  std::vector<std::unique_ptr<Submitter>> submitters_;
};

double MillisecondsSince(absl::Time killed) {
  return absl::ToDoubleMilliseconds(absl::Now() - killed);
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

bool KillCoordinators(int64_t kills) {
  Load load({.devices = 3, .coordinator_flags = {"--jobs-max", "1000000"}});
  Cluster& cluster = load.cluster();
  Prng prng(2);
  std::vector<double> back;
  for (int64_t i = 0; i < kills; ++i) {
    // Anywhere between the start and some hundred commits later.
    const absl::Duration life = absl::Microseconds(static_cast<int64_t>(prng.Below(150'000)));
    cluster.coordinator().watch().AwaitEnd(life);
    cluster.KillCoordinator();
    const absl::Time killed = absl::Now();
    cluster.StartCoordinator();
    back.push_back(MillisecondsSince(killed));
  }
  return load.Finish("coordinator_kills", std::move(back));
}

bool KillLeaders(int64_t kills) {
  support::Require(support::EtcdMissing().empty(), support::EtcdMissing());
  ClusterOptions options;
  options.devices = 3;
  options.coordinator_flags = {"--jobs-max", "1000000"};
  options.store = support::SharedEtcd().NewPlace();
  options.coordinators = 2;
  Load load(std::move(options));
  Cluster& cluster = load.cluster();
  Prng prng(2);
  std::vector<double> back;
  for (int64_t i = 0; i < kills; ++i) {
    const size_t leader = cluster.AwaitLeader();
    cluster.coordinator(leader).watch().AwaitEnd(
        absl::Microseconds(static_cast<int64_t>(prng.Below(500'000))));
    const absl::Time killed = absl::Now();
    cluster.KillCoordinator(leader);
    AwaitWorker(cluster);
    back.push_back(MillisecondsSince(killed));
    cluster.StartCoordinator("phalanx-coordinator", leader);
  }
  const double longest = *std::max_element(back.begin(), back.end());
  return load.Finish("leader_kills", std::move(back)) && longest < kBackMaxMilliseconds;
}

}  // namespace phalanx::e2e
