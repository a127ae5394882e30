// Ranks are killed one after another, at whatever step and phase, and come back: every step is done
// once, with the losses of a run without a failure, and the same model comes of it.
#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/checkpoint_io/part_reader.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

// So small that what is rounded otherwise in another layout does not grow to more than is looked
// for; the same at every step, so that it does not count how many are to come.
constexpr double kLearningRate = 1e-5;
constexpr int kKills = 7;       // of each of eight layouts
constexpr int64_t kEvery = 50;  // steps between checkpoints
constexpr int32_t kNodes = 3;
constexpr const char* kPhases[] = {"forward", "backward",  "reduce", "record",
                                   "mirror",  "optimizer", "gather", "checkpoint"};

struct Case {
  const char* name;
  JobOptions job;
  int32_t devices = 2;  // of each of three nodes
  support::ShardOptions data = {.samples = 30, .images_min = 0, .images_max = 2, .words = 4};
};

// Elements of masters and moments by module, tensor, kind, row and column.
using Elements = std::map<std::tuple<std::string, std::string, int, int64_t, int64_t>, double>;

void AddElements(const checkpoint::Entry& entry, const std::string& bytes, Elements& elements) {
  ASSERT_EQ(entry.dtype, checkpoint::DType::kF64);
  const auto* values = reinterpret_cast<const double*>(bytes.data());
  for (int64_t line = 0; line < entry.lines(); ++line) {
    for (int64_t i = 0; i < entry.line(); ++i) {
      const int64_t row = entry.where.row + (entry.transposed ? i : line);
      const int64_t col = entry.where.col + (entry.transposed ? line : i);
      elements[{entry.module, entry.tensor, static_cast<int>(entry.kind), row, col}] =
          values[line * entry.line() + i];
    }
  }
}

Elements ReadCheckpoint(const std::string& path) {
  Elements elements;
  const auto manifest = checkpoint::ReadManifestOf(path);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  if (!manifest.ok()) return elements;
  for (const checkpoint::PartFile& file : manifest->parts) {
    const auto part = checkpoint::PartReader::Open(path, *manifest, file);
    EXPECT_TRUE(part.ok()) << part.status();
    for (size_t i = 0; part.ok() && i < part->header().entries.size(); ++i) {
      std::string bytes;
      EXPECT_TRUE(part->Read(i, bytes).ok());
      AddElements(part->header().entries[i], bytes, elements);
    }
  }
  return elements;
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

size_t Descriptors(pid_t pid) {
  const std::filesystem::directory_iterator all(absl::StrCat("/proc/", pid, "/fd"));
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class CurvesTest : public testing::TestWithParam<Case> {
 protected:
  CurvesTest()
      : data_(MakeData(GetParam().data)),
        cluster_({.devices = GetParam().devices, .coordinator_flags = {"--allow-inject"}}) {
    for (int32_t node = 1; node < kNodes; ++node)
      cluster_.AddWorker(absl::StrCat("node-", node), GetParam().devices);
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
  // One of those that are there, wherever it is then.
  void Kill(int64_t job, Prng& prng) {
    const v1::JobStatus now = AwaitWhole(job);
    const auto ranks = cluster_.Ranks(job);
    ASSERT_FALSE(ranks.empty());
    const auto hit = std::next(ranks.begin(), static_cast<int64_t>(prng.Below(ranks.size())));
    const int64_t step = now.last_step().step() + 1 + static_cast<int64_t>(prng.Below(3));
    const support::Finished told = Inject(cluster_, job, hit->first,
                                          {"--fault", "kill", "--at-step", absl::StrCat(step),
                                           "--phase", kPhases[prng.Below(std::size(kPhases))]});
    ASSERT_EQ(told.exit_code, 0) << told.talk;
    cluster_.Await(job, [&](const v1::JobStatus& status) { return status.epoch() > now.epoch(); });
  }
  v1::JobStatus AwaitWhole(int64_t job) {
    return cluster_.Await(
        job, [&](const v1::JobStatus& status) { return TrainsWhole(cluster_, status); });
  }
  // Of a job that is ended once it has a checkpoint of steps that all its ranks did.
  checkpoint::ListedCheckpoint LastCheckpoint(int64_t job, const std::string& name) {
    const int64_t whole = AwaitWhole(job).last_step().step();
    cluster_.Await(
        job, [&](const v1::JobStatus& status) { return status.last_checkpoint().step() > whole; });
    cluster_.Cancel(job);
    cluster_.AwaitEnd(job);
    const auto all = checkpoint::ListCheckpoints(Path(name));
    support::Require(all.ok() && !all->empty(), "there is a checkpoint");
    return all->front();
  }
  std::string Path(const std::string& name) const {
    return absl::StrCat(data_.path, "/", name, "-checkpoints");
  }
  const DataFolder data_;
  Cluster cluster_;
};

double WorstDifference(const Elements& a, const Elements& b) {
  support::Require(!a.empty() && a.size() == b.size(), "both have the same elements");
  double worst = 0;
  for (auto at = a.begin(), other = b.begin(); at != a.end(); ++at, ++other) {
    support::Require(at->first == other->first, "both have the same elements");
    worst = std::max(worst, std::abs(at->second - other->second));
  }
  return worst;
}

TEST_P(CurvesTest, RanksKilledAnywhere_ComeBackAndTheNumbersAreThoseOfARunWithoutAFailure) {
  const std::vector<pid_t> own = cluster_.Processes();  // the coordinator and its nodes
  const int64_t job = Start("hit", kForEver);
  AwaitWhole(job);
  Prng prng(7);
  size_t descriptors = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    ASSERT_NO_FATAL_FAILURE(Kill(job, prng));
    AwaitWhole(job);
    if (kill == 0) descriptors = Descriptors(cluster_.worker().pid());
  }
  EXPECT_LE(Descriptors(cluster_.worker().pid()), descriptors);
  const checkpoint::ListedCheckpoint last = LastCheckpoint(job, "hit");
  const int64_t steps = last.name.step;
  const int64_t undisturbed = Start("whole", steps);
  for (int64_t step = kEvery; step < steps; step += kEvery) cluster_.AwaitStep(undisturbed, step);
  ASSERT_EQ(cluster_.AwaitEnd(undisturbed).phase(), v1::JOB_PHASE_SUCCEEDED);

  std::vector<Metric> metrics = MetricsOf(data_, "hit");
  EXPECT_EQ(StepsFault(metrics, static_cast<int64_t>(metrics.size())), "");
  ASSERT_GE(metrics.size(), static_cast<size_t>(steps));
  metrics.resize(static_cast<size_t>(steps));
  ExpectSameCurves(metrics, MetricsOf(data_, "whole"), steps);
  const auto whole = checkpoint::ListCheckpoints(Path("whole"));
  ASSERT_TRUE(whole.ok() && !whole->empty()) << whole.status();
  ASSERT_EQ(whole->front().name.step, steps);
  EXPECT_LE(WorstDifference(ReadCheckpoint(last.path), ReadCheckpoint(whole->front().path)), 1e-9);
  // No process of a rank is left.
  for (const pid_t pid : cluster_.Processes()) {
    const bool is_own = std::find(own.begin(), own.end(), pid) != own.end();
    EXPECT_TRUE(is_own || support::ProcessWatch(pid).AwaitEnd());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, CurvesTest,
    testing::ValuesIn(std::vector<Case>{
        {"Replicas", {.vision = "", .language = "ranks: 4", .batch = 7}},
        {"TensorRanks", {.vision = "ranks: 2", .language = "ranks: 4, tp: 2", .batch = 7}},
        {"ThreeTensorRanksAndStages",
         {.vision = "",
          .language = "ranks: 12, tp: 3, pp: 2",
          .layers = 2,
          .heads = 8,
          .kv_heads = 2,
          .batch = 7},
         4},
        {"TwoEncoders",
         {.vision = "ranks: 2", .audio = "ranks: 2", .language = "ranks: 2", .batch = 7},
         2,
         {.samples = 30, .images_min = 0, .images_max = 2, .sounds_max = 1, .words = 4}},
        {"ColocatedThreePhase",
         {.vision = "ranks: 4",
          .language = "ranks: 4, pp: 2",
          .language_offset = "vision",
          .schedule = "{name: three_phase, encoder_chunks: 2}",
          .batch = 8}},
        {"Interleaved",
         {.vision = "ranks: 2",
          .language = "ranks: 4, pp: 2",
          .schedule = "{name: interleaved, chunks: 2}",
          .layers = 4,
          .batch = 8}},
        {"ZeroBubble",
         {.vision = "ranks: 2",
          .language = "ranks: 4, pp: 2",
          .schedule = "{name: zero_bubble_h1}",
          .layers = 4,
          .batch = 8}},
        {"ZeroBubbleV",
         {.vision = "ranks: 2",
          .language = "ranks: 4, pp: 2",
          .schedule = "{name: zero_bubble_v}",
          .layers = 4,
          .batch = 8}},
    }),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace phalanx::e2e
