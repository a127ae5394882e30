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
#include "tests/bench/faults/percentile.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/e2e/recovery/trouble.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr double kStoppedLimitMilliseconds = 300;  // p99
constexpr double kNextStepLimitMilliseconds = 1000;
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
    return e2e::Percentile(values_, part);
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

// One layout, whose ranks are killed on three nodes of its own.
struct Case {
  const char* name;
  JobOptions job;
  size_t ranks;
};

std::vector<Case> Cases() {
  return {{"six ranks, vision dp2, language tp2 dp2",
           {.vision = "ranks: 2", .language = "ranks: 4, tp: 2", .batch = 6, .standby = true},
           6},
          {"language dp4", {.vision = "", .language = "ranks: 4", .batch = 7, .standby = true}, 4},
          {"three_phase, vision dp4, language pp2 dp2",
           {.vision = "ranks: 4",
            .language = "ranks: 4, pp: 2",
            .language_offset = "vision",
            .schedule = "{name: three_phase, encoder_chunks: 2}",
            .batch = 8},
           4},
          {"zero_bubble_v, vision dp2, language pp2 dp2",
           {.vision = "ranks: 2",
            .language = "ranks: 4, pp: 2",
            .schedule = "{name: zero_bubble_v}",
            .layers = 4,
            .batch = 8},
           6}};
}

struct Times {
  Series stopped, next_step;
};

// How far losses and norms are at most from those of a run without a failure, in parts of them.
struct Differences {
  double loss = 0, norm = 0;
  void Add(const std::vector<Metric>& hit, const std::vector<Metric>& whole) {
    for (size_t i = 0; i < std::min(hit.size(), whole.size()); ++i) {
      loss = std::max(loss, std::abs(hit[i].loss / whole[i].loss - 1));
      norm = std::max(norm, std::abs(hit[i].gradient_norm / whole[i].gradient_norm - 1));
    }
  }
};

// Of one job: what is rounded otherwise behind a loss grows from step to step.
constexpr int64_t kKillsOfAJob = 20;

// What one layout came to.
struct Found {
  Held first, end;
  int64_t steps = 0;
  std::string fault;  // of its steps, or of its losses
  Differences differences;
  bool flat() const {
    return end.processes <= first.processes && end.descriptors <= first.descriptors &&
           static_cast<double>(end.resident_kib) <=
               (1 + kGrowthMax) * static_cast<double>(first.resident_kib);
  }
};

class Recoveries {
 public:
  explicit Recoveries(const Case& of) : case_(of), data_(MakeData({.samples = 30, .words = 4})) {
    services_ = {cluster_.coordinator().pid(), cluster_.worker().pid()};
    for (const char* node : {"b", "c"}) services_.push_back(cluster_.AddWorker(node, 2).pid());
  }
  Found Run(int64_t tries, Prng& prng, Times& times);

 private:
  int64_t Start(const std::string& name, int64_t steps);
  void KillOne(int64_t job, Prng& prng, Times& times);
  // So many kills of one job, and the same job without them.
  void RunJob(int64_t kills, Prng& prng, Times& times, Found& found);
  v1::JobStatus AwaitWhole(int64_t job);

  const Case& case_;
  const DataFolder data_;
  Cluster cluster_{{.devices = 2}};
  std::vector<pid_t> services_;
  std::string whole_;  // digest of the plan of all ranks
  int64_t kills_done_ = 0;
};

int64_t Recoveries::Start(const std::string& name, int64_t steps) {
  JobOptions options = case_.job;
  options.name = options.output = name;
  options.steps = steps;
  options.precision = "fp64";
  // What another layout rounds otherwise does not grow to more than is looked for, and a step is
  // the same however many are to come.
  options.learning_rate = options.minimum_learning_rate = 1e-5;
  options.recovery = "{budget: {total: 1000000, without_progress: 9}}";
  return cluster_.Submit(Document(data_, options)).id();
}

v1::JobStatus Recoveries::AwaitWhole(int64_t job) {
  return cluster_.Await(job, [&](const v1::JobStatus& status) {
    return status.plan_digest() == whole_ && status.last_step().epoch() == status.epoch() &&
           cluster_.Ranks(job).size() == case_.ranks;
  });
}

void Recoveries::KillOne(int64_t job, Prng& prng, Times& times) {
  const v1::JobStatus now = AwaitWhole(job);
  const auto ranks = cluster_.Ranks(job);
  const auto hit = std::next(ranks.begin(), static_cast<int64_t>(prng.Below(ranks.size())));
  const absl::Time killed = absl::Now();
  kill(hit->second.pid(), SIGKILL);
  cluster_.Await(
      job, [&](const v1::JobStatus& status) { return status.last_step().epoch() > now.epoch(); });
  times.next_step.Add(absl::ToDoubleMilliseconds(absl::Now() - killed));
  times.stopped.Add(absl::ToDoubleMilliseconds(StoppedAt(NewestLoss(cluster_, job)) - killed));
}

void Recoveries::RunJob(int64_t kills, Prng& prng, Times& times, Found& found) {
  const int64_t before = kills_done_;
  const std::string hit_name = absl::StrCat("hit-", before),
                    whole_name = absl::StrCat("whole-", before);
  const int64_t job = Start(hit_name, kForEver);
  whole_ = cluster_.AwaitStep(job, 1).plan_digest();
  while (kills_done_ < before + kills) {
    KillOne(job, prng, times);
    if (++kills_done_ % 10 == 0)
      std::fprintf(stderr, "%s\n", absl::StrCat(case_.name, ": ", kills_done_).c_str());
  }
  AwaitWhole(job);
  found.end = HeldBy(cluster_, services_);
  if (before == 0) found.first = found.end;
  cluster_.Cancel(job);
  cluster_.AwaitEnd(job);
  const std::vector<Metric> hit = MetricsOf(data_, hit_name);
  const auto steps = static_cast<int64_t>(hit.size());
  const int64_t undisturbed = Start(whole_name, steps);
  for (int64_t step = 0; step < steps; step += 100) cluster_.AwaitStep(undisturbed, step);
  cluster_.AwaitEnd(undisturbed);
  const std::vector<Metric> whole = MetricsOf(data_, whole_name);
  found.steps += steps;
  found.differences.Add(hit, whole);
  const std::string fault = CurvesFault(hit, whole, steps);
  if (!fault.empty()) absl::StrAppend(&found.fault, hit_name, ": ", fault, "; ");
}

Found Recoveries::Run(int64_t tries, Prng& prng, Times& times) {
  Found found;
  while (kills_done_ < tries)
    RunJob(std::min(kKillsOfAJob, tries - kills_done_), prng, times, found);
  return found;
}

}  // namespace

bool KillAndReturn(int64_t tries) {
  Prng prng(1);
  Times times;
  nlohmann::ordered_json layouts = nlohmann::ordered_json::array();
  bool right = true;
  const std::vector<Case> cases = Cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto behind = static_cast<int64_t>(cases.size() - i);
    const int64_t part = (tries + behind - 1) / behind;
    if (part == 0) break;
    tries -= part;
    const Found found = Recoveries(cases[i]).Run(part, prng, times);
    right = right && found.fault.empty() && found.flat();
    layouts.push_back(
        {{"layout", cases[i].name},
         {"kills", part},
         {"steps", found.steps},
         {"fault", found.fault},
         {"differences", {{"loss", found.differences.loss}, {"norm", found.differences.norm}}},
         {"early", ToJson(found.first)},
         {"late", ToJson(found.end)}});
  }
  const nlohmann::ordered_json line = {{"benchmark", "rank_kill_and_return"},
                                       {"stopped_ms", times.stopped.ToJson()},
                                       {"next_step_ms", times.next_step.ToJson()},
                                       {"layouts", layouts}};
  std::printf("%s\n", line.dump().c_str());
  return right && times.stopped.Percentile(0.99) <= kStoppedLimitMilliseconds &&
         times.next_step.Percentile(0.99) <= kNextStepLimitMilliseconds;
}

}  // namespace phalanx::e2e
