// Ranks are killed one after another, at whatever step and phase, and come back: every step is done
// once, with the losses of a run without a failure, and the same model comes of it.
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

// So many that all are killed and back before the end, and so small that what is rounded otherwise
// in another layout does not grow to more than is looked for.
constexpr int64_t kSteps = 1200;
constexpr double kLearningRate = 1e-5;
constexpr int kKills = 8, kKillsMin = 4;  // on a machine that is slow to start processes
constexpr int32_t kNodes = 3;
constexpr const char* kPhases[] = {"forward", "backward",  "reduce", "record",
                                   "mirror",  "optimizer", "gather"};

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
  std::string planned;
  for (const v1::JobEvent& event : cluster.Events(status.id())) {
    if (event.type() == "Planned") planned = event.message();
  }
  return !absl::StrContains(planned, ", without ");
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
  int64_t Start(const std::string& name) {
    JobOptions options = GetParam().job;
    options.name = options.output = name;
    options.steps = kSteps;
    options.precision = "fp64";
    options.learning_rate = kLearningRate;
    options.recovery = "{budget: {total: 100, without_progress: 9}}";
    options.checkpoint = absl::StrCat("{directory: ", name, "-checkpoints}");
    return cluster_.Submit(Document(data_, options)).id();
  }
  // One of those that are there, wherever it is then. False: the job came to its end before.
  bool Kill(int64_t job, Prng& prng) {
    const v1::JobStatus now = cluster_.Await(job, [&](const v1::JobStatus& status) {
      return IsTerminal(status.phase()) || TrainsWhole(cluster_, status);
    });
    const auto ranks = cluster_.Ranks(job);
    if (IsTerminal(now.phase()) || ranks.empty()) return false;
    const auto hit = std::next(ranks.begin(), static_cast<int64_t>(prng.Below(ranks.size())));
    const int64_t step = now.last_step().step() + 1 + static_cast<int64_t>(prng.Below(3));
    const support::Finished told =
        cluster_.Phalanx({"inject", "--job", absl::StrCat("job-", job), "--rank",
                          absl::StrCat(hit->first), "--fault", "kill", "--at-step",
                          absl::StrCat(step), "--phase", kPhases[prng.Below(std::size(kPhases))]});
    if (told.exit_code != 0) return false;
    const v1::JobStatus later = cluster_.Await(job, [&](const v1::JobStatus& status) {
      return IsTerminal(status.phase()) || status.epoch() > now.epoch();
    });
    return later.epoch() > now.epoch();
  }
  Elements LastState(const std::string& name) const {
    const auto all =
        checkpoint::ListCheckpoints(absl::StrCat(data_.path, "/", name, "-checkpoints"));
    EXPECT_TRUE(all.ok() && all->size() == 1) << all.status();
    return all.ok() && !all->empty() ? ReadCheckpoint(all->front().path) : Elements();
  }

  const DataFolder data_;
  Cluster cluster_;
};

TEST_P(CurvesTest, RanksKilledAnywhere_ComeBackAndTheNumbersAreThoseOfARunWithoutAFailure) {
  ASSERT_EQ(cluster_.AwaitEnd(Start("whole")).phase(), v1::JOB_PHASE_SUCCEEDED);
  const size_t before = Descriptors(cluster_.worker().pid());
  const int64_t job = Start("hit");
  Prng prng(7);
  int kills = 0;
  while (kills < kKills && Kill(job, prng)) ++kills;
  EXPECT_GE(kills, kKillsMin);
  const v1::JobStatus ended = cluster_.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster_.WorkerLog();
  ExpectSameCurves(MetricsOf(data_, "hit"), MetricsOf(data_, "whole"), kSteps);
  const Elements hit = LastState("hit"), whole = LastState("whole");
  ASSERT_FALSE(whole.empty());
  ASSERT_EQ(hit.size(), whole.size());
  double worst = 0;
  for (auto a = hit.begin(), b = whole.begin(); a != hit.end(); ++a, ++b) {
    ASSERT_EQ(a->first, b->first);
    worst = std::max(worst, std::abs(a->second - b->second));
  }
  EXPECT_LE(worst, 1e-9);
  EXPECT_LE(Descriptors(cluster_.worker().pid()), before);
  // The coordinator and its nodes: no process of a rank is left.
  EXPECT_EQ(cluster_.Processes().size(), static_cast<size_t>(1 + kNodes));
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
    }),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace phalanx::e2e
