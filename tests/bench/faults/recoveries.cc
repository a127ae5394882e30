#include "tests/bench/faults/recoveries.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "core/checkpoint_io/checkpoints.h"
#include "google/protobuf/util/time_util.h"
#include "nlohmann/json.hpp"
#include "tests/bench/faults/found.h"
#include "tests/bench/faults/held.h"
#include "tests/bench/faults/layouts.h"
#include "tests/bench/faults/percentile.h"
#include "tests/bench/faults/throughput.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/e2e/recovery/elements.h"
#include "tests/e2e/recovery/trouble.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

constexpr double kStoppedLimitMilliseconds = 300;  // p99
constexpr double kNextStepLimitMilliseconds = 1000;
// Steps of the whole layout, before the first kill of a job and behind the last return: so many are
// passed over, in which caches fill and standby communicators are made, and so many are compared.
constexpr int64_t kStepsPassed = 100, kStepsCompared = 200;

// Of an element of masters and moments at the end.
constexpr double kModelDifferenceMax = 1e-9;
// Within which a kill comes: tens of steps.
constexpr absl::Duration kMomentMax = absl::Milliseconds(150);

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

// Its phases, in milliseconds since it was detected.
std::string WordsOf(const v1::Incident& incident) {
  std::string words;
  for (const v1::Incident::Phase& phase : incident.phases()) {
    absl::StrAppend(&words, words.empty() ? "" : ", ", phase.name(), " ", phase.begin() / 1000,
                    " to ", phase.end() / 1000);
  }
  return words;
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

// Of one job: what is rounded otherwise behind a loss grows from step to step.
constexpr int64_t kKillsOfAJob = 12;

// Of the steps in (after, last].
std::vector<double> SecondsBetween(const std::vector<Metric>& metrics, int64_t after,
                                   int64_t last) {
  std::vector<double> seconds;
  for (const Metric& metric : metrics)
    if (metric.step > after && metric.step <= last) seconds.push_back(metric.seconds);
  return seconds;
}

// Of those that are compared behind a step.
std::vector<double> SecondsBehind(const std::vector<Metric>& metrics, int64_t step) {
  const int64_t after = step + kStepsPassed;
  return SecondsBetween(metrics, after, after + kStepsCompared);
}

// Of [begin, end), at least one.
double MeanLoss(std::vector<Metric>::const_iterator begin,
                std::vector<Metric>::const_iterator end) {
  const double sum = std::accumulate(
      begin, end, 0.0, [](double loss, const Metric& metric) { return loss + metric.loss; });
  return sum / static_cast<double>(end - begin);
}

// What is done to one job.
struct Hits {
  int64_t kills = 0;
  int32_t spared = 0;       // the rank that is never hit
  int64_t settled = 0;      // kills after which what is made once is there: communicators, scratch
  bool norms = true;        // are judged
  int64_t jobs_beside = 0;  // that have no losses, at the end
};

// While a job without losses trained beside the one that was hit.
struct Window {
  std::string beside;  // output of that job
  // Steps of that one, and of the one that was hit.
  int64_t after = 0, last = 0, hit_after = 0, hit_last = 0;
};

class Recoveries {
 public:
  explicit Recoveries(const KilledLayout& layout) : layout_(layout), data_(MakeData(layout.data)) {
    services_ = {{"coordinator", cluster_.coordinator().pid()}, {"a", cluster_.worker().pid()}};
    for (const char* node : {"b", "c"})
      services_.emplace_back(node, cluster_.AddWorker(node, layout.devices).pid());
  }
  // Jobs of at most kKillsOfAJob.
  Found Run(int64_t tries, Prng& prng);
  // A single job. `beside`: pairs of it and of so many jobs that are not hit.
  Found RunOne(int64_t tries, int32_t spared, int64_t jobs_beside, Prng& prng, Throughput& beside);

 private:
  int64_t Start(const std::string& name, int64_t steps);
  // A job that does steps without end, once it has done those that are compared.
  int64_t StartHit(const std::string& name);
  void KillOne(int64_t job, int32_t spared, Prng& prng, Found& found);
  // So many kills of one job, and the same job without them. Pairs, as many as it wants.
  Throughput RunJob(const Hits& hits, Prng& prng, Found& found);
  // The job is whole, has done so many steps more, and what is made beside its steps is there.
  void AwaitSettled(int64_t job, int64_t steps);
  Window RunBeside(int64_t job, int64_t number);
  // Steps of a job that was hit: behind its last return, the last that is compared, and that of its
  // checkpoint.
  struct Ended {
    int64_t back = 0, last = 0, saved = 0;
  };
  // Compares it with one that was not hit: steps, and what the two have in their last checkpoints.
  void Compare(const std::string& name, const Ended& ended, bool norms, Found& found);
  // Ends a job with a checkpoint, and returns of which step that is.
  int64_t EndWithCheckpoint(int64_t job);
  std::string NewestCheckpoint(const std::string& name) const;
  // Each wait for some of them has its own patience.
  void AwaitSteps(int64_t job, int64_t behind, int64_t count);
  v1::JobStatus AwaitWhole(int64_t job);
  int64_t StepOf(int64_t job) { return cluster_.Get(job).last_step().step(); }
  Held HeldByAll() const;
  void LookAtFirst(Found& found) const;
  void LookAtEnd(Found& found) const;

  const KilledLayout& layout_;
  const DataFolder data_;
  Cluster cluster_{{.devices = layout_.devices}};
  std::vector<std::pair<std::string, pid_t>> services_;
  std::string whole_;  // digest of the plan of all ranks
  int64_t kills_done_ = 0;
};

int64_t Recoveries::Start(const std::string& name, int64_t steps) {
  JobOptions options = layout_.job;
  options.name = options.output = name;
  options.steps = steps;
  options.precision = "fp64";
  options.learning_rate = options.minimum_learning_rate = layout_.learning_rate;
  options.recovery = "{budget: {total: 1000000, without_progress: 9}}";
  options.checkpoint = absl::StrCat("{directory: ", name, "-checkpoints}");
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
           cluster_.Ranks(job).size() == static_cast<size_t>(layout_.ranks);
  });
}

void Recoveries::AwaitSettled(int64_t job, int64_t steps) {
  const v1::JobStatus whole = AwaitWhole(job);
  AwaitSteps(job, whole.last_step().step(), steps);
  if (layout_.job.standby) AwaitStandby(cluster_, job);
}

Held Recoveries::HeldByAll() const {
  std::vector<pid_t> processes;
  for (const auto& [name, pid] : services_) processes.push_back(pid);
  Held held = HeldBy(processes);
  held.processes = static_cast<int64_t>(cluster_.Processes().size());  // ranks, too
  return held;
}

void Recoveries::LookAtFirst(Found& found) const {
  found.all.first = HeldByAll();
  found.each.clear();
  for (const auto& [name, pid] : services_)
    found.each.emplace_back(name, Holding{.first = HeldBy({pid}), .end = {}});
}

void Recoveries::LookAtEnd(Found& found) const {
  found.all.end = HeldByAll();
  for (size_t i = 0; i < found.each.size(); ++i)
    found.each[i].second.end = HeldBy({services_[i].second});
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
  // At any moment of any of the next steps.
  absl::SleepFor(kMomentMax * (static_cast<double>(prng.Below(1000)) / 1000));
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
    found.restarted += rank < layout_.stay() && rank != hit && watch.pid() != ranks.at(rank).pid();
  }
  const std::optional<v1::Incident> back = NewestOf(cluster_, job, v1::Incident::RETURN);
  if (back.has_value() && back->from_epoch() > now.epoch()) {
    if (const std::optional<absl::Duration> pause = PauseOf(*back)) {
      found.times.pause.Add(absl::ToDoubleMilliseconds(*pause));
      if (*pause > absl::Milliseconds(kNextStepLimitMilliseconds))
        std::fprintf(stderr, "a long return: %s\n%s\n", WordsOf(*back).c_str(),
                     cluster_
                         .Phalanx({"logs", absl::StrCat(job), "--timestamps", "--since", "20s",
                                   "--epoch", absl::StrCat(back->to_epoch())})
                         .out.c_str());
    }
  }
  if (++kills_done_ % 10 == 0)
    std::fprintf(stderr, "%s\n", absl::StrCat(layout_.name, ": ", kills_done_).c_str());
}

Window Recoveries::RunBeside(int64_t job, int64_t number) {
  Window window{.beside = absl::StrCat("beside-", number)};
  const int64_t beside = Start(window.beside, kForEver);
  AwaitSteps(beside, 0, kStepsPassed);
  window.after = StepOf(beside);
  window.hit_after = StepOf(job);
  AwaitSteps(beside, window.after, kStepsCompared);
  window.last = StepOf(beside);
  window.hit_last = StepOf(job);
  cluster_.Cancel(beside);
  cluster_.AwaitEnd(beside);
  return window;
}

int64_t Recoveries::EndWithCheckpoint(int64_t job) {
  const support::Finished told = cluster_.Phalanx({"cancel", "--checkpoint", absl::StrCat(job)});
  support::Require(told.exit_code == 0, told.talk);
  const v1::JobStatus ended = cluster_.AwaitEnd(job);
  support::Require(ended.last_checkpoint().step() >= ended.last_step().step(), ended.reason());
  return ended.last_checkpoint().step();
}

std::string Recoveries::NewestCheckpoint(const std::string& name) const {
  const auto all = checkpoint::ListCheckpoints(absl::StrCat(data_.path, "/", name, "-checkpoints"));
  support::Require(all.ok() && !all->empty(), "there is a checkpoint");
  return all->front().path;
}

void Recoveries::Compare(const std::string& name, const Ended& ended, bool norms, Found& found) {
  std::vector<Metric> hit = MetricsOf(data_, name);
  found.steps += static_cast<int64_t>(hit.size());
  const std::string steps_fault = StepsFault(hit, static_cast<int64_t>(hit.size()));
  if (!steps_fault.empty()) absl::StrAppend(&found.fault, name, ": ", steps_fault, "; ");
  // What is rounded otherwise grows on while others train beside it.
  hit.resize(std::min(hit.size(), static_cast<size_t>(ended.last)));
  const auto steps = static_cast<int64_t>(hit.size());
  const std::string whole_name = absl::StrCat("whole-", name);
  const int64_t undisturbed = Start(whole_name, ended.saved);
  AwaitSteps(undisturbed, 0, ended.saved - 1);
  cluster_.AwaitEnd(undisturbed);
  std::vector<Metric> whole = MetricsOf(data_, whole_name);
  whole.resize(std::min(whole.size(), hit.size()));
  found.loss_early = MeanLoss(hit.begin(), hit.begin() + kStepsPassed);
  found.loss_late = MeanLoss(hit.end() - kStepsPassed, hit.end());
  found.differences.Add(hit, whole);
  found.throughput.Add(SecondsBehind(hit, 0), SecondsBehind(hit, ended.back));
  const std::string fault = norms ? CurvesFault(hit, whole, steps) : LossesFault(hit, whole, steps);
  if (!fault.empty()) absl::StrAppend(&found.fault, name, ": ", fault, "; ");
  const double model = WorstDifference(NewestCheckpoint(name), NewestCheckpoint(whole_name));
  found.differences.model = std::max(found.differences.model, model);
  if (model > kModelDifferenceMax)
    absl::StrAppend(&found.fault, name, ": its model is another at the end; ");
}

Throughput Recoveries::RunJob(const Hits& hits, Prng& prng, Found& found) {
  const int64_t before = kills_done_;
  const std::string name = absl::StrCat("hit-", before);
  const int64_t job = StartHit(name);
  const pid_t spared = cluster_.Ranks(job).at(hits.spared).pid();
  Holding held;
  while (kills_done_ < before + hits.kills) {
    KillOne(job, hits.spared, prng, found);
    if (kills_done_ != before + hits.settled) continue;
    AwaitSettled(job, kStepsPassed);
    held.first = HeldBy({spared});
    if (before == 0) LookAtFirst(found);
  }
  const int64_t back = AwaitWhole(job).last_step().step();
  AwaitSettled(job, kStepsPassed + kStepsCompared);
  LookAtEnd(found);
  held.end = HeldBy({spared});
  const int64_t last = StepOf(job);
  found.AddSpared(held);
  std::vector<Window> windows;
  for (int64_t i = 0; i < hits.jobs_beside; ++i) windows.push_back(RunBeside(job, i));
  const int64_t saved = EndWithCheckpoint(job);
  Throughput beside;
  const std::vector<Metric> hit = MetricsOf(data_, name);
  for (const Window& window : windows) {
    beside.Add(SecondsBetween(MetricsOf(data_, window.beside), window.after, window.last),
               SecondsBetween(hit, window.hit_after, window.hit_last));
  }
  Compare(name, {.back = back, .last = last, .saved = saved}, hits.norms, found);
  return beside;
}

Found Recoveries::Run(int64_t tries, Prng& prng) {
  Found found;
  for (int32_t number = 0; kills_done_ < tries; ++number) {
    const int64_t kills = std::min(kKillsOfAJob, tries - kills_done_);
    RunJob({.kills = kills, .spared = number % layout_.stay(), .settled = (kills + 1) / 2}, prng,
           found);
    if (number > 0 || kills_done_ >= tries) continue;
    // A job more than what is there when the first has settled. Where there is no other job, it is
    // compared with itself, half of its kills before.
    found.all.first = found.all.end;
    for (auto& [name, holding] : found.each) holding.first = holding.end;
  }
  return found;
}

Found Recoveries::RunOne(int64_t tries, int32_t spared, int64_t jobs_beside, Prng& prng,
                         Throughput& beside) {
  Found found;
  // Room for the jobs beside it.
  for (const char* node : {"d", "e"})
    services_.emplace_back(node, cluster_.AddWorker(node, layout_.devices).pid());
  beside = RunJob({.kills = tries,
                   .spared = spared,
                   .settled = (tries + 4) / 5,
                   .norms = false,
                   .jobs_beside = jobs_beside},
                  prng, found);
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
  const int64_t kills = tries;
  nlohmann::ordered_json each = nlohmann::ordered_json::array();
  std::vector<Found> all;
  const std::vector<KilledLayout> layouts = KilledLayouts();
  for (size_t i = 0; i < layouts.size(); ++i) {
    const auto behind = static_cast<int64_t>(layouts.size() - i);
    const int64_t part = (tries + behind - 1) / behind;
    if (part == 0) break;
    tries -= part;
    all.push_back(Recoveries(layouts[i]).Run(part, prng));
    nlohmann::ordered_json layout = {{"layout", layouts[i].name}, {"kills", part}};
    layout.update(ToJson(all.back()));
    each.push_back(std::move(layout));
  }
  Times times;
  Throughput throughput;
  bool right = true;
  for (const Found& found : all) {
    times.Add(found.times);
    throughput.Add(found.throughput);
    right = right && found.right();
  }
  const nlohmann::ordered_json line = {
      {"benchmark", "rank_kill_and_return"},    {"in_a_line", LineOf(kills, all)},
      {"stopped_ms", times.stopped.ToJson()},   {"next_step_ms", times.next_step.ToJson()},
      {"throughput_back", throughput.ToJson()}, {"layouts", each}};
  std::printf("%s\n", line.dump().c_str());
  return right && !throughput.IsRuledOut() &&
         times.stopped.Percentile(0.99) <= kStoppedLimitMilliseconds &&
         times.next_step.Percentile(0.99) <= kNextStepLimitMilliseconds;
}

bool KillOneJob(int64_t tries, int64_t jobs_beside) {
  Prng prng(1);
  const KilledLayout layout = LayoutOfOneJob();
  Throughput beside;
  std::vector<Found> found = {
      Recoveries(layout).RunOne(tries, /*spared=*/0, jobs_beside, prng, beside)};
  nlohmann::ordered_json line = {
      {"benchmark", "one_job_kill_and_return"},
      {"layout", layout.name},
      {"kills", tries},
      {"judged",
       "losses to 1e-9, and that they fall, and masters and moments at the end; gradient norms are "
       "told alone: what other widths round "
       "otherwise grows in them from step to step"},
      {"in_a_line", absl::StrCat(LineOf(tries, found), "; beside jobs without losses it has ",
                                 beside.ToWords(), ": ", beside.VerdictWords())}};
  line.update(ToJson(found[0]));
  line["throughput_beside"] = beside.ToJson();
  std::printf("%s\n", line.dump().c_str());
  const bool learns = found[0].loss_late < found[0].loss_early;
  return found[0].right() && learns && beside.Tells() && !beside.IsRuledOut();
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
