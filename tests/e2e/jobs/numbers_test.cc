// Real processes over Gloo compute what one process computes.
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/plan/samples.h"
#include "core/wire/job_yaml.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/oracle/training/harness.h"
#include "tests/support/event_file.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "worker/data/job_data.h"
#include "worker/train/batches.h"

namespace phalanx::e2e {
namespace {

std::vector<oracle::TrainedStep> Oracle(const DataFolder& data, const JobOptions& options) {
  const auto read = wire::ReadJobFile(JobText(data, options), job::Purpose::kSubmit);
  EXPECT_TRUE(read.ok()) << read.status();
  if (!read.ok()) return {};
  const data::DataSetSpec spec = data::DataSetSpecOf(read->spec, data.path, false);
  const auto index = data::Index::Build(spec);
  EXPECT_TRUE(index.ok()) << index.status();
  const std::string path = data.path + "/oracle.index";
  if (!index.ok() || !index->Save(path).ok()) return {};
  data::LoaderOptions loader{.threads = 0, .targets = true};
  for (const data::Encoder& encoder : spec.encoders) loader.modules.push_back(encoder.module);
  auto source = train::ShardSource::Open(path, spec, loader);
  EXPECT_TRUE(source.ok()) << source.status();
  if (!source.ok()) return {};
  std::vector<oracle::TrainedStep> steps =
      oracle::TrainPlain(read->spec, **source, read->spec.steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    train::Volume& volume = steps[i].decision.volume;
    const int64_t batch = read->spec.batch.global, first = static_cast<int64_t>(i) * batch;
    for (int64_t position = first; position < first + batch; ++position) {
      const data::SampleShape shape =
          (*source)->shape(plan::SampleAt(read->spec.seed, (*source)->size(), position));
      volume.tokens += shape.positions;
      volume.images += shape.images;
    }
  }
  return steps;
}

// Every step's loss, gradient norm and volume, in fp64.
void ExpectOracle(const DataFolder& data, const JobOptions& options, const std::string& output) {
  const std::vector<Metric> metrics = ReadMetrics(output);
  ASSERT_EQ(StepsFault(metrics, options.steps), "");
  const std::vector<oracle::TrainedStep> plain = Oracle(data, options);
  ASSERT_EQ(plain.size(), metrics.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("step ", i + 1));
    EXPECT_NEAR(metrics[i].loss, plain[i].decision.loss, 1e-9 * plain[i].decision.loss);
    EXPECT_NEAR(metrics[i].gradient_norm, plain[i].decision.gradient_norm,
                1e-9 * plain[i].decision.gradient_norm);
    EXPECT_EQ(metrics[i].tokens, plain[i].decision.volume.tokens);
    EXPECT_EQ(metrics[i].images, plain[i].decision.volume.images);
  }
}

// TensorBoard is shown what metrics.jsonl has.
void ExpectEventFile(const std::string& output) {
  const std::vector<Metric> metrics = ReadMetrics(output);
  const auto events = support::ReadEvents(support::ReadFile(support::EventFileOf(output)));
  ASSERT_TRUE(events.ok()) << events.status();
  ASSERT_EQ(events->size(), metrics.size() + 2);
  EXPECT_EQ((*events)[0].file_version, "brain.Event:2");
  EXPECT_TRUE((*events)[1].starts);
  for (size_t i = 0; i < metrics.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("step ", i + 1));
    const Metric& metric = metrics[i];
    const support::TensorBoardEvent& event = (*events)[i + 2];
    EXPECT_EQ(event.step, metric.step);
    ASSERT_EQ(event.values.size(), 4u);
    EXPECT_FLOAT_EQ(event.values.at("train/loss"), static_cast<float>(metric.loss));
    EXPECT_FLOAT_EQ(event.values.at("train/gradient_norm"),
                    static_cast<float>(metric.gradient_norm));
    EXPECT_FLOAT_EQ(event.values.at("train/learning_rate"),
                    static_cast<float>(metric.learning_rate));
    EXPECT_FLOAT_EQ(event.values.at("train/tokens_per_second"),
                    static_cast<float>(static_cast<double>(metric.tokens) / metric.seconds));
  }
}

TEST(NumbersTest, RunOfSixRanks_EqualsTheOracle_AndLeavesNothingBehind) {
  const DataFolder data = MakeData({.samples = 30, .images_min = 0, .images_max = 2, .words = 4});
  const JobOptions options{.steps = 6,
                           .precision = "fp64",
                           .vision = "ranks: 2",
                           .language = "ranks: 4, tp: 2, pp: 2",
                           .batch = 7,
                           .validation = true};
  support::WriteFile(data.path + "/job.yaml", JobText(data, options));
  const std::string mark = support::NewMark(), output = data.path + "/results";
  support::Process run(
      {support::Program("phalanx"), "run", data.path + "/job.yaml", "--output", output}, mark,
      data.path + "/run.out", data.path + "/run.talk");
  EXPECT_EQ(run.WaitExitCode(), 0) << support::ReadText(data.path + "/run.talk");
  EXPECT_TRUE(support::ProcessesMarked(mark).empty());

  ExpectOracle(data, options, output);
  ExpectEventFile(output);
  EXPECT_TRUE(std::filesystem::exists(output + "/evaluation.json"));
  EXPECT_TRUE(std::filesystem::exists(output + "/logs/rank-5.log"));
}

// What it says of a run is what the run has written.
TEST(NumbersTest, BenchmarkOfAJob_SaysAllTokensOverAllTimeBehindItsWarmUp) {
  constexpr size_t kWarmUp = 10;
  const DataFolder data = MakeData({.samples = 30, .images_min = 0, .images_max = 2, .words = 4});
  const JobOptions options{.steps = 40, .vision = "", .language = "ranks: 2", .batch = 4};
  support::WriteFile(data.path + "/job.yaml", JobText(data, options));
  const std::string output = data.path + "/results";
  const support::Finished bench = support::RunToEnd(
      {support::Program("phalanx-bench"), "train", data.path + "/job.yaml", output});
  ASSERT_EQ(bench.exit_code, 0) << bench.talk;
  const auto said = nlohmann::json::parse(bench.out);
  std::ifstream metrics(output + "/metrics.jsonl");
  double tokens = 0, labelled = 0, seconds = 0;
  size_t steps = 0;
  for (std::string text; std::getline(metrics, text);) {
    if (steps++ < kWarmUp) continue;
    const auto line = nlohmann::json::parse(text);
    tokens += line.at("tokens").get<double>();
    labelled += line.at("labelled_tokens").get<double>();
    seconds += line.at("step_seconds").get<double>();
  }
  ASSERT_EQ(steps, 40);
  EXPECT_NEAR(said.at("tokens_per_s").get<double>(), tokens / seconds, 1e-6 * tokens / seconds);
  EXPECT_NEAR(said.at("labelled_tokens_per_s").get<double>(), labelled / seconds,
              1e-6 * labelled / seconds);
  EXPECT_NEAR(said.at("step_ms").at("mean").get<double>(), 1e3 * seconds / 30, 1e-6);
  EXPECT_EQ(said.at("world"), 2);
  EXPECT_TRUE(said.at("mfu").is_null()) << "of a CPU";
  EXPECT_FALSE(said.contains("profiles"));
}

struct Loss {
  const char* name;
  const char* lost;
  const char* vision;
  const char* language;
  std::vector<bool> works;  // each rank
};

class LossTest : public testing::TestWithParam<Loss> {};

// Ranks are gone from the first step: the others compute the same steps.
TEST_P(LossTest, RunWithoutSomeRanks_EqualsTheOracle_AndStartsNothingInTheirPlaces) {
  const Loss& loss = GetParam();
  const DataFolder data = MakeData({.samples = 30, .images_min = 0, .images_max = 2, .words = 4});
  const JobOptions options{.steps = 4,
                           .precision = "fp64",
                           .vision = loss.vision,
                           .language = loss.language,
                           .batch = 7,
                           .validation = true};
  support::WriteFile(data.path + "/job.yaml", JobText(data, options));
  const std::string mark = support::NewMark(), output = data.path + "/results";
  support::Process run({support::Program("phalanx"), "run", data.path + "/job.yaml", "--output",
                        output, "--lost", loss.lost},
                       mark, data.path + "/run.out", data.path + "/run.talk");
  EXPECT_EQ(run.WaitExitCode(), 0) << support::ReadText(data.path + "/run.talk");
  EXPECT_TRUE(support::ProcessesMarked(mark).empty());

  ExpectOracle(data, options, output);
  EXPECT_TRUE(std::filesystem::exists(output + "/evaluation.json"));
  for (size_t rank = 0; rank < loss.works.size(); ++rank) {
    EXPECT_EQ(std::filesystem::exists(absl::StrCat(output, "/logs/rank-", rank, ".log")),
              loss.works[rank])
        << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Losses, LossTest,
    testing::ValuesIn(std::vector<Loss>{
        // Replica 1 of the language model loses one rank, and the other has nothing to do.
        {"AReplicaOfEachModule",
         "0,5",
         "ranks: 2",
         "ranks: 4, pp: 2",
         {false, true, true, false, true, false}},
        {"ARankOfAReplica", "4", "ranks: 1", "ranks: 4, tp: 2", {true, true, true, true, false}},
        // Both modules at once; of the language model one stage alone is narrower.
        {"AStageAndAnEncoder",
         "1,9",
         "ranks: 4, tp: 2",
         "ranks: 8, tp: 2, pp: 2",
         {true, false, true, true, true, true, true, true, true, false, true, true}},
    }),
    [](const auto& info) { return std::string(info.param.name); });

struct Graph {
  const char* name;
  support::ShardOptions data;
  JobOptions job;
};

class GraphTest : public testing::TestWithParam<Graph> {};

TEST_P(GraphTest, Run_EqualsTheOracle) {
  const Graph& graph = GetParam();
  const DataFolder data = MakeData(graph.data);
  JobOptions options = graph.job;
  options.steps = 3;
  options.precision = "fp64";
  Cluster cluster({.devices = 6});
  const v1::JobStatus job = cluster.Submit(Document(data, options));
  ASSERT_EQ(cluster.AwaitEnd(job.id()).phase(), v1::JOB_PHASE_SUCCEEDED) << cluster.WorkerLog();
  ExpectOracle(data, options, data.path + "/out");
}

const support::ShardOptions kPictures{.samples = 30, .images_min = 0, .images_max = 2, .words = 4};

INSTANTIATE_TEST_SUITE_P(
    Jobs, GraphTest,
    testing::ValuesIn(std::vector<Graph>{
        {"ColocatedThreePhaseInChunks",
         kPictures,
         {.vision = "ranks: 4",
          .language = "ranks: 4, tp: 2, pp: 2",
          .language_offset = "vision",
          .language_more = "recompute: full",
          .schedule = "{name: three_phase, encoder_chunks: 2}",
          .batch = 15,
          .micro = 4}},
        {"IdleRankAndZeroBubbleV",
         kPictures,
         {.vision = "ranks: 2",
          .language = "ranks: 2, pp: 2",
          .language_offset = "3",
          .schedule = "{name: zero_bubble_v}",
          .layers = 4}},
        {"SoundsPicturesAndTargets",
         {.samples = 30, .sounds_max = 1, .target_rows = 3, .target_hidden = kHidden, .words = 4},
         {.vision = "ranks: 1",
          .audio = "ranks: 2",
          .language = "ranks: 2, tp: 2",
          .regressor = "ranks: 1",
          .vision_more = "frozen: true"}},
        {"Interleaved",
         kPictures,
         {.vision = "ranks: 1",
          .language = "ranks: 4, tp: 2, pp: 2",
          .schedule = "{name: interleaved, chunks: 2}",
          .layers = 4}},
    }),
    [](const auto& info) { return std::string(info.param.name); });

TEST(NumbersTest, ThreeTensorRanksOfEightHeads_LossFalls) {
  const DataFolder data = MakeData();
  const JobOptions options{.steps = 40,
                           .vision = "",
                           .language = "ranks: 3, tp: 3",
                           .heads = 8,
                           .kv_heads = 2,
                           .micro = 8,
                           .learning_rate = 1e-2};
  Cluster cluster({.devices = 3});
  const v1::JobStatus job = cluster.Submit(Document(data, options));
  ASSERT_EQ(cluster.AwaitEnd(job.id()).phase(), v1::JOB_PHASE_SUCCEEDED) << cluster.WorkerLog();
  const std::vector<Metric> metrics = ReadMetrics(data.path + "/out");
  ASSERT_EQ(StepsFault(metrics, options.steps), "");
  EXPECT_LT(metrics.back().loss, 0.7 * metrics.front().loss);
}

}  // namespace
}  // namespace phalanx::e2e
