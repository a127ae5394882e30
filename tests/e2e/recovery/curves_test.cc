// Ranks are killed one after another, in every phase, and come back: every step is done once, with
// the losses of a run without a failure, and the same model comes of it.
#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/prng.h"
#include "core/checkpoint_io/checkpoints.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/elements.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::IsEmpty;

// So small that what is rounded otherwise in another layout does not grow to more than is looked
// for: with three times as much it is past that within 1,000 steps, in norms first.
// The same at every step, so that it does not count how many are to come.
constexpr double kLearningRate = 1e-5;
constexpr int kKills = 7;           // of each of eight layouts
constexpr int64_t kEvery = 50;      // steps between checkpoints
constexpr int64_t kStepsMin = 200;  // of each layout
constexpr double kFallMin = 0.01;   // of the mean loss of the first kEvery steps, in kStepsMin
// A rank of each layout that is never killed, and has work whoever else is lost: its process goes
// through all of it.
constexpr int32_t kSpared = 1;
constexpr int32_t kNodes = 3;
constexpr const char* kPhases[] = {"forward",   "backward", "reduce",     "record",  "mirror",
                                   "optimizer", "gather",   "checkpoint", "recovery"};
// Of a daemon, of the coordinator, or of the rank that is spared, from the first return of a rank
// to the last: nothing of a recovery stays, but an allocator keeps what several threads have used.
constexpr int64_t kGrowthKibMax = 16 << 10;

// In the order of the layouts: kill k of layout i is the kill i * kKills + k of all.
struct CurveCase {
  int number;
  const char* name;
  JobOptions job;
  int32_t ranks;
  int32_t devices = 2;  // of each of three nodes
  // Ranks below it have work whoever else is lost, so that their processes stay; -1: all. A replica
  // that lacks a stage leaves its other ranks without any.
  int32_t with_work = -1;
  support::ShardOptions data = {.samples = 30, .images_min = 0, .images_max = 2, .words = 4};
};

struct Victim {
  int32_t rank;
  std::string phase;
};
// Whose loss is made up for when `rank` is killed in that recovery. What one of them has two homes
// of the other has none of.
int32_t KilledBefore(const CurveCase& layout, int32_t rank) {
  return (rank + layout.ranks / 2) % layout.ranks;
}

// Phases follow each other over all layouts. The ranks of one but kSpared are drawn, each once
// before one is hit again, rank 0 among them: what reports steps is hit in every layout.
std::vector<Victim> Victims(const CurveCase& layout) {
  std::vector<int32_t> ranks(static_cast<size_t>(layout.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::erase(ranks, kSpared);
  Prng prng(static_cast<uint64_t>(layout.number) + 1);
  for (size_t i = ranks.size() - 1; i > 0; --i) std::swap(ranks[i], ranks[prng.Below(i + 1)]);
  const auto first = std::find(ranks.begin(), ranks.end(), 0);
  if (first - ranks.begin() >= kKills) std::iter_swap(first, ranks.begin() + kKills / 2);
  std::vector<Victim> victims;
  for (int i = 0; i < kKills; ++i) {
    const int number = layout.number * kKills + i;
    victims.push_back({ranks[static_cast<size_t>(i) % ranks.size()],
                       kPhases[static_cast<size_t>(number) % std::size(kPhases)]});
  }
  for (size_t i = 0; i < victims.size(); ++i) {
    if (victims[i].phase == "recovery" && KilledBefore(layout, victims[i].rank) == kSpared)
      std::swap(victims[i].rank, victims[i > 0 ? i - 1 : i + 1].rank);
  }
  return victims;
}

// The newest epoch has all its ranks, and trains.
bool TrainsWhole(Cluster& cluster, const v1::JobStatus& status) {
  if (status.last_step().step() == 0 || status.last_step().epoch() != status.epoch()) return false;
  v1::JobEvent planned;
  for (const v1::JobEvent& event : cluster.Events(status.id())) {
    if (event.type() == "Planned") planned = event;
  }
  return planned.epoch() == status.epoch() && !absl::StrContains(planned.message(), ", without ");
}

// What the descriptors of a process are of, each in its line; those of the memory that a job's
// ranks write checkpoints from apart.
struct Descriptors {
  std::vector<std::string> memory, others;
};
Descriptors DescriptorsOf(pid_t pid) {
  Descriptors all;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"))) {
    std::error_code closed;  // meanwhile
    const std::string what = std::filesystem::read_symlink(entry.path(), closed).string();
    (absl::StartsWith(what, "/memfd:phalanx-job-") ? all.memory : all.others).push_back(what);
  }
  std::sort(all.others.begin(), all.others.end());
  return all;
}

// What a process holds.
struct Holding {
  std::string name;
  std::vector<std::string> descriptors;  // but of memory
  int64_t resident_kib = 0;
};

int64_t ResidentKib(pid_t pid) {
  const std::string status = support::ReadText(absl::StrCat("/proc/", pid, "/status"));
  const size_t at = status.find("VmRSS:");
  support::Require(at != std::string::npos, "the process runs");
  return std::stoll(status.substr(at + 6));
}

double MeanLoss(std::vector<Metric>::const_iterator begin,
                std::vector<Metric>::const_iterator end) {
  const double sum = std::accumulate(
      begin, end, 0.0, [](double losses, const Metric& metric) { return losses + metric.loss; });
  return sum / static_cast<double>(end - begin);
}

class CurvesTest : public testing::TestWithParam<CurveCase> {
 protected:
  CurvesTest()
      : data_(MakeData(GetParam().data)),
        cluster_({.devices = GetParam().devices, .coordinator_flags = {"--allow-inject"}}),
        daemons_({cluster_.worker().pid()}) {
    for (int32_t node = 1; node < kNodes; ++node) {
      daemons_.push_back(cluster_.AddWorker(absl::StrCat("node-", node), GetParam().devices).pid());
    }
  }
  int64_t Start(const std::string& name, int64_t steps) {
    JobOptions options = GetParam().job;
    options.name = options.output = name;
    options.steps = steps;
    options.precision = "fp64";
    options.learning_rate = options.minimum_learning_rate = kLearningRate;
    options.recovery = "{budget: {total: 100, without_progress: 9}}";
    options.checkpoint = absl::StrCat("{directory: ", name, "-checkpoints, every: ", kEvery, "}");
    return cluster_.Submit(Document(data_, options)).id();
  }
  // In its phase of one of the next steps; in that of a recovery, of one half of all ranks further.
  // All ranks are back then, and no process but those that were killed is another one.
  void Kill(int64_t job, const Victim& victim, int64_t later) {
    const v1::JobStatus now = AwaitWhole(job);
    std::map<int32_t, int> starts = cluster_.Starts(job);
    std::set<int32_t> killed = {victim.rank};
    std::vector<std::string> fault = {"--fault", "kill", "--phase", victim.phase};
    const bool recovers = victim.phase == "recovery";
    if (!recovers)
      fault.insert(fault.end(), {"--at-step", absl::StrCat(now.last_step().step() + 1 + later)});
    const support::Finished told = Inject(cluster_, job, victim.rank, fault);
    ASSERT_EQ(told.exit_code, 0) << told.talk;
    if (recovers) {
      const int32_t other = KilledBefore(GetParam(), victim.rank);
      ASSERT_EQ(Inject(cluster_, job, other, {"--fault", "kill"}).exit_code, 0);
      killed.insert(other);
    }
    asked_.insert(absl::StrCat("rank ", victim.rank, " in ", victim.phase));
    cluster_.Await(job, [&](const v1::JobStatus& status) {
      return status.epoch() > now.epoch() && Reached(job) == asked_;
    });
    AwaitWhole(job);
    const int32_t with_work = GetParam().with_work < 0 ? GetParam().ranks : GetParam().with_work;
    for (const auto& [rank, count] : cluster_.Starts(job)) {
      if (rank >= with_work || killed.contains(rank)) continue;
      EXPECT_EQ(count, starts[rank]) << "rank " << rank << " has another process since rank "
                                     << victim.rank << " was killed in " << victim.phase << "\n"
                                     << cluster_.WorkerLog();
    }
  }
  // "rank 3 in mirror"; those that came about.
  std::multiset<std::string> Reached(int64_t job) {
    std::multiset<std::string> reached;
    for (const std::string& event : EventsOf(cluster_, job, "FaultReached"))
      reached.insert(absl::StrCat(event.substr(0, event.find(':')), " in ",
                                  event.substr(event.rfind(' ') + 1)));
    return reached;
  }
  v1::JobStatus AwaitWhole(int64_t job) {
    return cluster_.Await(
        job, [&](const v1::JobStatus& status) { return TrainsWhole(cluster_, status); });
  }
  // Of a job that is ended once it has a checkpoint of steps that all its ranks did, and of
  // kStepsMin of them at least.
  checkpoint::ListedCheckpoint LastCheckpoint(int64_t job, const std::string& name) {
    const int64_t whole = std::max(AwaitWhole(job).last_step().step(), kStepsMin - 1);
    cluster_.Await(
        job, [&](const v1::JobStatus& status) { return status.last_checkpoint().step() > whole; });
    cluster_.Cancel(job);
    cluster_.AwaitEnd(job);
    const auto all = checkpoint::ListCheckpoints(Path(name));
    support::Require(all.ok() && !all->empty(), "there is a checkpoint");
    return all->front();
  }
  // Of the coordinator, its nodes' daemons and the rank that is spared.
  std::map<pid_t, Holding> Holdings(int64_t job) {
    std::map<pid_t, Holding> all;
    const auto add = [&all](const std::string& name, pid_t pid) {
      all[pid] = {name, DescriptorsOf(pid).others, ResidentKib(pid)};
    };
    add("the coordinator", cluster_.coordinator().pid());
    for (size_t node = 0; node < daemons_.size(); ++node)
      add(absl::StrCat("the daemon of node ", node), daemons_[node]);
    add("the rank that is spared", cluster_.Ranks(job).at(kSpared).pid());
    return all;
  }
  // Those of calls that are over may not be closed yet, nor a file that is being written. The two
  // buffers of a rank are its daemon's from its first checkpoint to the end of the job, whatever
  // process it has.
  void ExpectNoMore(int64_t job, pid_t pid, const Holding& before) {
    SCOPED_TRACE(before.name);
    Descriptors now = DescriptorsOf(pid);
    const std::vector<std::string>& descriptors = before.descriptors;
    for (int looks = 0; looks < 20 && now.others.size() > descriptors.size(); ++looks) {
      cluster_.AwaitStep(job, cluster_.Get(job).last_step().step() + 5);
      now = DescriptorsOf(pid);
    }
    EXPECT_LE(now.others.size(), descriptors.size())
        << "before:\n"
        << absl::StrJoin(descriptors, "\n") << "\nnow:\n"
        << absl::StrJoin(now.others, "\n");
    const bool of_node = std::find(daemons_.begin(), daemons_.end(), pid) != daemons_.end();
    EXPECT_LE(now.memory.size(), of_node ? 2 * static_cast<size_t>(GetParam().devices) : 0)
        << absl::StrJoin(now.memory, "\n");
    EXPECT_LE(ResidentKib(pid) - before.resident_kib, kGrowthKibMax);
  }
  std::string Path(const std::string& name) const {
    return absl::StrCat(data_.path, "/", name, "-checkpoints");
  }
  const DataFolder data_;
  Cluster cluster_;
  std::vector<pid_t> daemons_;
  std::multiset<std::string> asked_;  // as Reached
};

TEST_P(CurvesTest, RanksKilledAnywhere_ComeBackAndTheNumbersAreThoseOfARunWithoutAFailure) {
  const std::vector<pid_t> own = cluster_.Processes();  // the coordinator and its nodes
  const int64_t job = Start("hit", kForEver);
  AwaitWhole(job);
  const std::vector<Victim> victims = Victims(GetParam());
  const pid_t spared = cluster_.Ranks(job).at(kSpared).pid();
  std::map<pid_t, Holding> early;
  for (int kill = 0; kill < kKills; ++kill) {
    ASSERT_NO_FATAL_FAILURE(Kill(job, victims[static_cast<size_t>(kill)], kill % 3));
    AwaitWhole(job);
    if (kill > 0) continue;
    // With the memory that checkpoints are written from.
    cluster_.Await(job, [](const auto& status) { return status.last_checkpoint().step() > 0; });
    if (GetParam().job.standby) AwaitStandby(cluster_, job);
    early = Holdings(job);
  }
  ASSERT_TRUE(early.contains(spared)) << "it has another process";
  ASSERT_EQ(cluster_.Ranks(job).at(kSpared).pid(), spared);
  if (GetParam().job.standby) AwaitStandby(cluster_, job);
  for (const auto& [pid, holding] : early) ExpectNoMore(job, pid, holding);
  const checkpoint::ListedCheckpoint last = LastCheckpoint(job, "hit");
  const int64_t steps = last.name.step;
  ASSERT_GE(steps, kStepsMin);
  const int64_t undisturbed = Start("whole", steps);
  for (int64_t step = kEvery; step < steps; step += kEvery) cluster_.AwaitStep(undisturbed, step);
  ASSERT_EQ(cluster_.AwaitEnd(undisturbed).phase(), v1::JOB_PHASE_SUCCEEDED);

  std::vector<Metric> metrics = MetricsOf(data_, "hit");
  EXPECT_EQ(StepsFault(metrics, static_cast<int64_t>(metrics.size())), "");
  ASSERT_GE(metrics.size(), static_cast<size_t>(steps));
  metrics.resize(static_cast<size_t>(steps));
  ExpectSameCurves(metrics, MetricsOf(data_, "whole"), steps);
  EXPECT_LT(MeanLoss(metrics.end() - kEvery, metrics.end()),
            (1 - kFallMin) * MeanLoss(metrics.begin(), metrics.begin() + kEvery));
  const auto whole = checkpoint::ListCheckpoints(Path("whole"));
  ASSERT_TRUE(whole.ok() && !whole->empty()) << whole.status();
  ASSERT_EQ(whole->front().name.step, steps);
  EXPECT_LE(WorstDifference(last.path, whole->front().path), 1e-9);
  EXPECT_THAT(DescriptorsOf(cluster_.worker().pid()).memory, IsEmpty());
  // No process of a rank is left.
  for (const pid_t pid : cluster_.Processes()) {
    const bool is_own = std::find(own.begin(), own.end(), pid) != own.end();
    EXPECT_TRUE(is_own || support::ProcessWatch(pid).AwaitEnd());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, CurvesTest,
    testing::ValuesIn(std::vector<CurveCase>{
        {0, "Replicas", {.vision = "", .language = "ranks: 4", .batch = 7, .standby = true}, 4},
        {1,
         "TensorRanks",
         {.vision = "ranks: 2", .language = "ranks: 4, tp: 2", .batch = 7, .standby = true},
         6},
        {2,
         "ThreeTensorRanksAndStages",
         {.vision = "",
          .language = "ranks: 12, tp: 3, pp: 2",
          .layers = 2,
          .heads = 8,
          .kv_heads = 2,
          .batch = 7},
         12,
         4},
        {3,
         "TwoEncoders",
         {.vision = "ranks: 2", .audio = "ranks: 2", .language = "ranks: 2", .batch = 7},
         6,
         2,
         -1,
         {.samples = 30, .images_min = 0, .images_max = 2, .sounds_max = 1, .words = 4}},
        {4,
         "ColocatedThreePhase",
         {.vision = "ranks: 4",
          .language = "ranks: 4, pp: 2",
          .language_offset = "vision",
          .schedule = "{name: three_phase, encoder_chunks: 2}",
          .batch = 8,
          .standby = true},
         4},
        {5,
         "Interleaved",
         {.vision = "ranks: 2",
          .language = "ranks: 4, pp: 2",
          .schedule = "{name: interleaved, chunks: 2}",
          .layers = 4,
          .batch = 8},
         6,
         2,
         2},
        {6,
         "ZeroBubble",
         {.vision = "ranks: 2",
          .language = "ranks: 4, pp: 2",
          .schedule = "{name: zero_bubble_h1}",
          .layers = 4,
          .batch = 8},
         6,
         2,
         2},
        {7,
         "ZeroBubbleV",
         {.vision = "ranks: 2",
          .language = "ranks: 4, pp: 2",
          .schedule = "{name: zero_bubble_v}",
          .layers = 4,
          .batch = 8,
          .standby = true},
         6,
         2,
         2},
    }),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace phalanx::e2e
