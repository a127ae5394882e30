#include "tests/bench/faults/recoveries.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "google/protobuf/util/time_util.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr double kStoppedLimitMilliseconds = 300;  // p99
constexpr double kNextStepLimitMilliseconds = 1000;
constexpr size_t kRanks = 6;
constexpr double kGrowthMax = 0.1;

struct Held {
  int64_t resident_kib = 0, descriptors = 0, processes = 0;
};

// Of the coordinator and the daemons; ranks are others each time.
Held HeldBy(const Cluster& cluster, const std::vector<pid_t>& services) {
  Held held{.processes = static_cast<int64_t>(cluster.Processes().size())};
  for (const pid_t pid : services) {
    const std::filesystem::directory_iterator all(absl::StrCat("/proc/", pid, "/fd"));
    held.descriptors += std::distance(begin(all), end(all));
    std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
    for (std::string line; std::getline(status, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      int64_t kib = 0;
      if (absl::StartsWith(line, "VmRSS:") && words.size() > 1 && absl::SimpleAtoi(words[1], &kib))
        held.resident_kib += kib;
    }
  }
  return held;
}

nlohmann::ordered_json ToJson(const Held& held) {
  return {{"resident_kib", held.resident_kib},
          {"descriptors", held.descriptors},
          {"processes", held.processes}};
}

class Series {
 public:
  void Add(double value) { values_.push_back(value); }
  double Percentile(double part) {
    std::sort(values_.begin(), values_.end());
    const auto index =
        static_cast<size_t>(std::ceil(part * static_cast<double>(values_.size()))) - 1;
    return values_[std::min(index, values_.size() - 1)];
  }
  nlohmann::ordered_json ToJson() {
    return {{"p50", Percentile(0.5)}, {"p99", Percentile(0.99)}, {"max", values_.back()}};
  }

 private:
  std::vector<double> values_;
};

// Of the newest loss, once a step behind it is decided.
v1::Incident NewestLoss(Cluster& cluster, int64_t job) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + support::kPatience));
  v1::ListIncidentsRequest request;
  request.set_job(absl::StrCat("job-", job));
  v1::ListIncidentsResponse response;
  support::Require(cluster.stub().ListIncidents(&context, request, &response).ok(),
                   "there are no incidents");
  const auto loss = std::find_if(
      response.incidents().rbegin(), response.incidents().rend(),
      [](const v1::Incident& incident) { return incident.kind() == v1::Incident::LOSS; });
  support::Require(loss != response.incidents().rend(), "no loss is among the incidents");
  return *loss;
}

// When all that were left had said where their state stands.
absl::Time StoppedAt(const v1::Incident& incident) {
  for (const v1::Incident::Phase& phase : incident.phases()) {
    if (phase.name() != "survivors_quiet" || !phase.has_end()) continue;
    return absl::FromUnixMicros(
               google::protobuf::util::TimeUtil::TimestampToMicroseconds(incident.detected())) +
           absl::Microseconds(phase.end());
  }
  support::Require(false, "the incident does not say when the others had stopped");
  return absl::Time();
}

}  // namespace

bool KillAndReturn(int64_t tries) {
  const DataFolder data = MakeData({.samples = 30, .words = 4});
  Cluster cluster({.devices = 2});
  std::vector<pid_t> services = {cluster.coordinator().pid(), cluster.worker().pid()};
  for (const char* node : {"b", "c"}) services.push_back(cluster.AddWorker(node, 2).pid());
  const int64_t job =
      cluster
          .Submit(Document(data, {.steps = kForEver,
                                  .vision = "ranks: 2",
                                  .language = "ranks: 4, tp: 2",
                                  .batch = 6,
                                  .recovery = "{budget: {total: 1000000, without_progress: 9}}"}))
          .id();
  Prng prng(1);
  Series stopped, next_step;
  Held first;
  const std::string whole = cluster.AwaitStep(job, 1).plan_digest();  // of all ranks
  for (int64_t i = 0; i < tries; ++i) {
    const v1::JobStatus now = cluster.Await(job, [&](const v1::JobStatus& status) {
      return status.plan_digest() == whole && status.last_step().epoch() == status.epoch() &&
             cluster.Ranks(job).size() == kRanks;
    });
    if (i == std::min<int64_t>(tries / 10, 20)) first = HeldBy(cluster, services);
    const auto ranks = cluster.Ranks(job);
    const auto hit = std::next(ranks.begin(), static_cast<int64_t>(prng.Below(ranks.size())));
    const absl::Time killed = absl::Now();
    kill(hit->second.pid(), SIGKILL);
    cluster.Await(
        job, [&](const v1::JobStatus& status) { return status.last_step().epoch() > now.epoch(); });
    next_step.Add(absl::ToDoubleMilliseconds(absl::Now() - killed));
    stopped.Add(absl::ToDoubleMilliseconds(StoppedAt(NewestLoss(cluster, job)) - killed));
    if ((i + 1) % 10 == 0) std::fprintf(stderr, "%s\n", absl::StrCat(i + 1, " of ", tries).c_str());
  }
  const v1::JobStatus last =
      cluster.Await(job, [&](const v1::JobStatus&) { return cluster.Ranks(job).size() == kRanks; });
  const Held end = HeldBy(cluster, services);
  cluster.Cancel(job);
  cluster.AwaitEnd(job);
  const std::vector<Metric> metrics = ReadMetrics(data.path + "/out");
  const std::string fault = StepsFault(metrics, static_cast<int64_t>(metrics.size()));
  const bool flat = end.processes <= first.processes && end.descriptors <= first.descriptors &&
                    static_cast<double>(end.resident_kib) <=
                        (1 + kGrowthMax) * static_cast<double>(first.resident_kib);
  const nlohmann::ordered_json line = {{"benchmark", "rank_kill_and_return"},
                                       {"tries", tries},
                                       {"stopped_ms", stopped.ToJson()},
                                       {"next_step_ms", next_step.ToJson()},
                                       {"steps", metrics.size()},
                                       {"step_fault", fault},
                                       {"epoch", last.epoch()},
                                       {"early", ToJson(first)},
                                       {"late", ToJson(end)}};
  std::printf("%s\n", line.dump().c_str());
  return fault.empty() && flat && stopped.Percentile(0.99) <= kStoppedLimitMilliseconds &&
         next_step.Percentile(0.99) <= kNextStepLimitMilliseconds;
}

}  // namespace phalanx::e2e
