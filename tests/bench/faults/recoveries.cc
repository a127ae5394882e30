#include "tests/bench/faults/recoveries.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "google/protobuf/util/time_util.h"
#include "nlohmann/json.hpp"
#include "tests/bench/faults/held.h"
#include "tests/bench/faults/percentile.h"
#include "tests/bench/faults/throughput.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/e2e/recovery/trouble.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr double kStoppedLimitMilliseconds = 300;  // p99
constexpr double kNextStepLimitMilliseconds = 1000;
// Steps of the whole layout, before the first kill of a job and behind the last return: so many are
// passed over, in which caches fill and standby communicators are made, and so many are compared.
constexpr int64_t kStepsPassed = 100, kStepsCompared = 200;

class Series {
 public:
  void Add(double value) { values_.push_back(value); }
  void Add(const Series& other) {
    values_.insert(values_.end(), other.values_.begin(), other.values_.end());
  }
  bool empty() const { return values_.empty(); }
  double Percentile(double part) {
    std::sort(values_.begin(), values_.end());
    return e2e::Percentile(values_, part);
  }
  nlohmann::ordered_json ToJson() {
    if (values_.empty()) return nullptr;
    return {{"p50", Percentile(0.5)}, {"p99", Percentile(0.99)}, {"max", values_.back()}};
  }

 private:
  std::vector<double> values_;
};

// The newest of that kind, once a step behind it is decided; nullopt: there is none.
std::optional<v1::Incident> NewestOf(Cluster& cluster, int64_t job, v1::Incident::Kind kind) {
  const std::vector<v1::Incident> all = cluster.Incidents(job);
  const auto newest = std::find_if(all.rbegin(), all.rend(), [kind](const v1::Incident& incident) {
    return incident.kind() == kind;
  });
  if (newest == all.rend()) return std::nullopt;
  return *newest;
}

const v1::Incident::Phase* PhaseOf(const v1::Incident& incident, const std::string& name) {
  for (const v1::Incident::Phase& phase : incident.phases())
    if (phase.name() == name) return &phase;
  return nullptr;
}

// For how long a return has held training up; nullopt: the coordinator was not told.
std::optional<absl::Duration> PauseOf(const v1::Incident& incident) {
  const v1::Incident::Phase* const from = PhaseOf(incident, "survivors_quiet");
  const v1::Incident::Phase* const to = PhaseOf(incident, "resumed");
  if (from == nullptr || to == nullptr || !from->has_begin() || !to->has_end()) return std::nullopt;
  return absl::Microseconds(to->end() - from->begin());
}

// When all that were left had said where their state stands.
absl::Time StoppedAt(const v1::Incident& incident) {
  const v1::Incident::Phase* const quiet = PhaseOf(incident, "survivors_quiet");
  support::Require(quiet != nullptr && quiet->has_end(),
                   "the incident does not say when the others had stopped");
  return absl::FromUnixMicros(
             google::protobuf::util::TimeUtil::TimestampToMicroseconds(incident.detected())) +
         absl::Microseconds(quiet->end());
}

// One layout, whose ranks are killed on three nodes of its own.
struct Case {
  const char* name;
  JobOptions job;
  size_t ranks;
  // Ranks below it have work whoever else is lost, so that their processes stay; 0: all. A replica
  // that lacks a stage leaves its other ranks without any.
  int32_t with_work = 0;
  // So small that what another layout rounds otherwise does not grow to more than is looked for,
  // and the same at every step: a step is the same however many are to come.
  double learning_rate = 1e-5;
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
           6,
           2}};
}

// Milliseconds.
struct Times {
  Series stopped, next_step, pause;
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
  Held first, end;  // of coordinator and daemons; ranks are others each time
  int64_t steps = 0;
  double loss_early = 0, loss_late = 0;  // means over kStepsPassed steps, of the last job
  std::string fault;                     // of its steps, or of its losses
  Differences differences;
  Times times;
  Throughput throughput;
  int64_t restarted = 0;  // processes of ranks that nobody had killed

  bool right() const {
    return fault.empty() && restarted == 0 && IsFlat(first, end) && throughput.IsBack();
  }
};

nlohmann::ordered_json ToJson(Found& found) {
  nlohmann::ordered_json json = {
      {"steps", found.steps},
      {"losses", {{"early", found.loss_early}, {"late", found.loss_late}}},
      {"fault", found.fault},
      {"differences", {{"loss", found.differences.loss}, {"norm", found.differences.norm}}},
      {"restarted", found.restarted},
      {"throughput_back", found.throughput.ToJson()},
      {"return_pause_ms", found.times.pause.ToJson()}};
  const double step = found.throughput.HealthyStep();
  if (step > 0 && !found.times.pause.empty())
    json["return_pause_in_steps"] = found.times.pause.Percentile(0.5) / step;
  json["early"] = ToJson(found.first);
  json["late"] = ToJson(found.end);
  return json;
}

// Of metrics.jsonl, behind a step.
std::vector<double> SecondsBehind(const std::vector<Metric>& metrics, int64_t step) {
  std::vector<double> seconds;
  for (const Metric& metric : metrics) {
    if (metric.step > step + kStepsPassed && metric.step <= step + kStepsPassed + kStepsCompared)
      seconds.push_back(metric.seconds);
  }
  return seconds;
}

// Of [begin, end), at least one.
double MeanLoss(std::vector<Metric>::const_iterator begin,
                std::vector<Metric>::const_iterator end) {
  const double sum = std::accumulate(
      begin, end, 0.0, [](double loss, const Metric& metric) { return loss + metric.loss; });
  return sum / static_cast<double>(end - begin);
}

class Recoveries {
 public:
  explicit Recoveries(const Case& of) : case_(of), data_(MakeData({.samples = 30, .words = 4})) {
    services_ = {cluster_.coordinator().pid(), cluster_.worker().pid()};
    for (const char* node : {"b", "c"}) services_.push_back(cluster_.AddWorker(node, 2).pid());
  }
  // Jobs of at most kKillsOfAJob.
  Found Run(int64_t tries, Prng& prng);
  // A single job, of which one rank is spared: what its process holds.
  struct Survivor {
    Held first, end;
  };
  Found RunOne(int64_t tries, int32_t spared, Prng& prng, Survivor& survivor);

 private:
  int64_t Start(const std::string& name, int64_t steps);
  // A job that does steps without end, once it has done those that are compared.
  int64_t StartHit(const std::string& name);
  void KillOne(int64_t job, int32_t spared, Prng& prng, Found& found);
  // So many kills of one job, and the same job without them.
  void RunJob(int64_t kills, Prng& prng, Found& found);
  // Ends a job that was hit, and compares it with one that was not.
  void Compare(int64_t job, const std::string& name, bool norms, Found& found);
  // Each wait for some of them has its own patience.
  void AwaitSteps(int64_t job, int64_t behind, int64_t count);
  v1::JobStatus AwaitWhole(int64_t job);
  Held HeldByAll() const;

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
  options.learning_rate = options.minimum_learning_rate = case_.learning_rate;
  options.recovery = "{budget: {total: 1000000, without_progress: 9}}";
  return cluster_.Submit(Document(data_, options)).id();
}

void Recoveries::AwaitSteps(int64_t job, int64_t behind, int64_t count) {
  for (int64_t step = std::min<int64_t>(50, count);; step = std::min(step + 50, count)) {
    cluster_.AwaitStep(job, behind + step);
    if (step == count) return;
  }
}

v1::JobStatus Recoveries::AwaitWhole(int64_t job) {
  return cluster_.Await(job, [&](const v1::JobStatus& status) {
    return status.plan_digest() == whole_ && status.last_step().epoch() == status.epoch() &&
           cluster_.Ranks(job).size() == case_.ranks;
  });
}

Held Recoveries::HeldByAll() const {
  Held held = HeldBy(services_);
  held.processes = static_cast<int64_t>(cluster_.Processes().size());  // ranks, too
  return held;
}

int64_t Recoveries::StartHit(const std::string& name) {
  const int64_t job = Start(name, kForEver);
  whole_ = cluster_.AwaitStep(job, 1).plan_digest();
  AwaitSteps(job, 0, kStepsPassed + kStepsCompared);
  return job;
}

void Recoveries::KillOne(int64_t job, int32_t spared, Prng& prng, Found& found) {
  const v1::JobStatus now = AwaitWhole(job);
  auto ranks = cluster_.Ranks(job);
  std::vector<int32_t> victims;
  for (const auto& [rank, watch] : ranks)
    if (rank != spared) victims.push_back(rank);
  const int32_t hit = victims[prng.Below(victims.size())];
  const absl::Time killed = absl::Now();
  kill(ranks.at(hit).pid(), SIGKILL);
  cluster_.Await(
      job, [&](const v1::JobStatus& status) { return status.last_step().epoch() > now.epoch(); });
  found.times.next_step.Add(absl::ToDoubleMilliseconds(absl::Now() - killed));
  const std::optional<v1::Incident> loss = NewestOf(cluster_, job, v1::Incident::LOSS);
  support::Require(loss.has_value(), "no loss is among the incidents");
  found.times.stopped.Add(absl::ToDoubleMilliseconds(StoppedAt(*loss) - killed));
  AwaitWhole(job);
  for (const auto& [rank, watch] : cluster_.Ranks(job)) {
    const bool stays = case_.with_work == 0 || rank < case_.with_work;
    found.restarted += stays && rank != hit && watch.pid() != ranks.at(rank).pid();
  }
  const std::optional<v1::Incident> back = NewestOf(cluster_, job, v1::Incident::RETURN);
  if (back.has_value() && back->from_epoch() > now.epoch()) {
    if (const std::optional<absl::Duration> pause = PauseOf(*back))
      found.times.pause.Add(absl::ToDoubleMilliseconds(*pause));
  }
  if (++kills_done_ % 10 == 0)
    std::fprintf(stderr, "%s\n", absl::StrCat(case_.name, ": ", kills_done_).c_str());
}

void Recoveries::Compare(int64_t job, const std::string& name, bool norms, Found& found) {
  const int64_t back = AwaitWhole(job).last_step().step();
  AwaitSteps(job, back, kStepsPassed + kStepsCompared);
  found.end = HeldByAll();
  cluster_.Cancel(job);
  cluster_.AwaitEnd(job);
  const std::vector<Metric> hit = MetricsOf(data_, name);
  const auto steps = static_cast<int64_t>(hit.size());
  const std::string whole_name = absl::StrCat("whole-", name);
  const int64_t undisturbed = Start(whole_name, steps);
  AwaitSteps(undisturbed, 0, steps - 1);
  cluster_.AwaitEnd(undisturbed);
  const std::vector<Metric> whole = MetricsOf(data_, whole_name);
  found.steps += steps;
  found.loss_early = MeanLoss(hit.begin(), hit.begin() + kStepsPassed);
  found.loss_late = MeanLoss(hit.end() - kStepsPassed, hit.end());
  found.differences.Add(hit, whole);
  found.throughput.Add(SecondsBehind(hit, 0), SecondsBehind(hit, back));
  const std::string fault = norms ? CurvesFault(hit, whole, steps) : LossesFault(hit, whole, steps);
  if (!fault.empty()) absl::StrAppend(&found.fault, name, ": ", fault, "; ");
}

void Recoveries::RunJob(int64_t kills, Prng& prng, Found& found) {
  const int64_t before = kills_done_;
  const std::string name = absl::StrCat("hit-", before);
  const int64_t job = StartHit(name);
  while (kills_done_ < before + kills) KillOne(job, /*spared=*/-1, prng, found);
  Compare(job, name, /*norms=*/true, found);
  if (before == 0) found.first = found.end;
}

Found Recoveries::Run(int64_t tries, Prng& prng) {
  Found found;
  while (kills_done_ < tries) RunJob(std::min(kKillsOfAJob, tries - kills_done_), prng, found);
  return found;
}

Found Recoveries::RunOne(int64_t tries, int32_t spared, Prng& prng, Survivor& survivor) {
  Found found;
  const int64_t job = StartHit("hit");
  const pid_t process = cluster_.Ranks(job).at(spared).pid();
  // What is made once is there by then: communicators of each loss, scratch of each layout.
  const int64_t settled = (tries + 4) / 5;
  while (kills_done_ < tries) {
    KillOne(job, spared, prng, found);
    if (kills_done_ != settled) continue;
    AwaitSteps(job, AwaitWhole(job).last_step().step(), kStepsPassed + kStepsCompared);
    found.first = HeldByAll();
    survivor.first = HeldBy({process});
  }
  AwaitSteps(job, AwaitWhole(job).last_step().step(), kStepsPassed + kStepsCompared);
  survivor.end = HeldBy({process});
  Compare(job, "hit", /*norms=*/false, found);
  return found;
}

// Of ReturnBesideTraining.
constexpr double kLongStep = 1;  // seconds
constexpr int64_t kStepsOfProbe = 12;
constexpr int32_t kBatchOfProbe = 256;
constexpr size_t kRanksOfLongSteps = 4;

// A job whose steps are as long as its batch is large.
int64_t SubmitLongSteps(Cluster& cluster, const DataFolder& data, const std::string& name,
                        int64_t steps, int32_t batch) {
  return cluster
      .Submit(Document(data, {.name = name,
                              .steps = steps,
                              .vision = "",
                              .language = "ranks: 4, tp: 2",
                              .batch = batch,
                              .micro = batch / 16,
                              .recovery = "{budget: {total: 1000000}}",
                              .standby = true,
                              .output = name}))
      .id();
}

double MedianSeconds(const DataFolder& data, const std::string& output) {
  std::vector<double> seconds;
  for (const Metric& metric : MetricsOf(data, output)) seconds.push_back(metric.seconds);
  support::Require(!seconds.empty(), "no step is in metrics.jsonl");
  std::sort(seconds.begin(), seconds.end());
  return Percentile(seconds, 0.5);
}

// All ranks train, in an epoch behind `epoch`.
v1::JobStatus AwaitAllOf(Cluster& cluster, int64_t job, int64_t epoch) {
  return cluster.Await(job, [&](const v1::JobStatus& status) {
    return status.epoch() > epoch && status.last_step().epoch() == status.epoch() &&
           cluster.Ranks(job).size() == kRanksOfLongSteps;
  });
}

}  // namespace

bool KillAndReturn(int64_t tries) {
  Prng prng(1);
  Times times;
  nlohmann::ordered_json layouts = nlohmann::ordered_json::array();
  bool right = true;
  Throughput throughput;
  const std::vector<Case> cases = Cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto behind = static_cast<int64_t>(cases.size() - i);
    const int64_t part = (tries + behind - 1) / behind;
    if (part == 0) break;
    tries -= part;
    Found found = Recoveries(cases[i]).Run(part, prng);
    right = right && found.right();
    times.stopped.Add(found.times.stopped);
    times.next_step.Add(found.times.next_step);
    throughput.Add(found.throughput);
    nlohmann::ordered_json layout = {{"layout", cases[i].name}, {"kills", part}};
    layout.update(ToJson(found));
    layouts.push_back(std::move(layout));
  }
  const nlohmann::ordered_json line = {{"benchmark", "rank_kill_and_return"},
                                       {"stopped_ms", times.stopped.ToJson()},
                                       {"next_step_ms", times.next_step.ToJson()},
                                       {"throughput_back", throughput.ToJson()},
                                       {"layouts", layouts}};
  std::printf("%s\n", line.dump().c_str());
  return right && throughput.IsBack() &&
         times.stopped.Percentile(0.99) <= kStoppedLimitMilliseconds &&
         times.next_step.Percentile(0.99) <= kNextStepLimitMilliseconds;
}

bool KillOneJob(int64_t tries) {
  Prng prng(1);
  // The spared rank is one of both modules. A tenth of the others' learning rate: in thousands of
  // steps of theirs what is rounded otherwise grows to 1e-5 of the loss.
  const Case layout = {"vision dp4, language tp2 dp2 on the same ranks",
                       {.vision = "ranks: 4",
                        .language = "ranks: 4, tp: 2",
                        .language_offset = "vision",
                        .batch = 8,
                        .standby = true},
                       4,
                       0,
                       1e-6};
  Recoveries::Survivor survivor;
  Found found = Recoveries(layout).RunOne(tries, /*spared=*/0, prng, survivor);
  nlohmann::ordered_json line = {
      {"benchmark", "one_job_kill_and_return"},
      {"layout", layout.name},
      {"kills", tries},
      {"judged",
       "losses to 1e-9, and that they fall; gradient norms are told alone: what other widths round "
       "otherwise grows in them from step to step"},
      {"stopped_ms", found.times.stopped.ToJson()},
      {"next_step_ms", found.times.next_step.ToJson()}};
  line.update(ToJson(found));
  line["rank_0_early"] = ToJson(survivor.first);
  line["rank_0_late"] = ToJson(survivor.end);
  std::printf("%s\n", line.dump().c_str());
  const bool learns = found.loss_late < found.loss_early;
  return found.right() && learns && IsFlat(survivor.first, survivor.end);
}

bool ReturnBesideTraining(int64_t tries) {
  const DataFolder data = MakeData({.samples = 30, .images_min = 0, .images_max = 0, .words = 4});
  Cluster cluster({.devices = 2});
  cluster.AddWorker("b", 2);
  cluster.AwaitEnd(SubmitLongSteps(cluster, data, "probe", kStepsOfProbe, kBatchOfProbe));
  const double seconds = MedianSeconds(data, "probe");
  const auto batch =
      static_cast<int32_t>(std::clamp(kLongStep / seconds, 1.0, 64.0) * kBatchOfProbe);
  const int64_t job = SubmitLongSteps(cluster, data, "hit", kForEver, batch);
  Prng prng(1);
  Series pause;
  for (int64_t i = 0; i < tries; ++i) {
    const v1::JobStatus now = AwaitAllOf(cluster, job, 0);
    const auto ranks = cluster.Ranks(job);
    kill(std::next(ranks.begin(), static_cast<int64_t>(prng.Below(ranks.size())))->second.pid(),
         SIGKILL);
    AwaitAllOf(cluster, job, now.epoch() + 1);
    const std::optional<v1::Incident> back = NewestOf(cluster, job, v1::Incident::RETURN);
    support::Require(back.has_value(), "no return is among the incidents");
    if (const std::optional<absl::Duration> paused = PauseOf(*back))
      pause.Add(absl::ToDoubleMilliseconds(*paused));
  }
  cluster.Cancel(job);
  cluster.AwaitEnd(job);
  const double step = 1e3 * MedianSeconds(data, "hit");
  const bool right = !pause.empty() && pause.Percentile(0.99) < step;
  const nlohmann::ordered_json line = {{"benchmark", "return_beside_training"},
                                       {"returns", tries},
                                       {"batch", batch},
                                       {"step_p50_ms", step},
                                       {"return_pause_ms", pause.ToJson()},
                                       {"less_than_a_step", right}};
  std::printf("%s\n", line.dump().c_str());
  return right;
}

}  // namespace phalanx::e2e
