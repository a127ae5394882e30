// A rank dies and its module can go on neither narrower nor with fewer replicas: it goes on with
// lower degrees, with the same numbers.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;

struct RestartCase {
  const char* name;
  const char* vision;
  const char* language;
  const char* recovery;
  const char* change;  // as the incident tells it
  bool from_copies;    // what died was the only home of some state
  const char* checkpoint = "";
  int64_t steps = 60;
  bool publishes = false;  // a checkpoint, before the rank dies
};

class RestartTest : public testing::TestWithParam<RestartCase> {};

TEST_P(RestartTest, KilledRank_LeavesAModuleOfLowerDegrees_AndTheSameLosses) {
  const DataFolder data = MakeSmallData();
  Cluster cluster;
  JobOptions options{.name = "whole",
                     .steps = GetParam().steps,
                     .precision = "fp64",
                     .vision = GetParam().vision,
                     .language = GetParam().language,
                     .batch = 7,
                     .recovery = GetParam().recovery,
                     .output = "whole"};
  ASSERT_EQ(cluster.AwaitEnd(cluster.Submit(Document(data, options)).id()).phase(),
            v1::JOB_PHASE_SUCCEEDED);
  options.name = options.output = "hit";
  options.checkpoint = GetParam().checkpoint;
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 8);
  if (GetParam().publishes) {
    cluster.Await(job, [&](const v1::JobStatus&) {
      return MessagesOf(cluster, job, "CheckpointPublished") != "";
    });
  }
  const auto ranks = cluster.Ranks(job);
  const int32_t last = static_cast<int32_t>(ranks.size()) - 1;
  ASSERT_TRUE(ranks.contains(last)) << cluster.WorkerLog();
  kill(ranks.at(last).pid(), SIGKILL);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster.WorkerLog();
  EXPECT_THAT(MessagesOf(cluster, job, "Recovered"), HasSubstr(GetParam().change));
  EXPECT_EQ(MessagesOf(cluster, job, "Waiting"), "");
  if (GetParam().from_copies) {
    EXPECT_THAT(MessagesOf(cluster, job, "WentBack"), HasSubstr("copies in memory"));
  } else if (*GetParam().checkpoint == '\0') {
    EXPECT_EQ(MessagesOf(cluster, job, "StateLost"), "");
  }
  if (*GetParam().checkpoint != '\0' && !GetParam().publishes) {
    EXPECT_NE(MessagesOf(cluster, job, "StateLost"), "");
    EXPECT_THAT(MessagesOf(cluster, job, "Recovered"), HasSubstr("steps 1 to "));
  }
  EXPECT_EQ(MessagesOf(cluster, job, "Returned"), "");
  ExpectSameCurves(MetricsOf(data, "hit"), MetricsOf(data, "whole"), GetParam().steps);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, RestartTest,
    testing::Values(RestartCase{"Replicas", "", "ranks: 2", "{ladder: [restart], rejoin: manual}",
                                "language dp 2 -> 1", false},
                    RestartCase{"Stages", "", "ranks: 2, pp: 2",
                                "{state_home: host, ladder: [restart], rejoin: manual}",
                                "language pp 2 -> 1", true},
                    RestartCase{"TensorRanks", "", "ranks: 2, tp: 2",
                                "{state_home: host, ladder: [restart], rejoin: manual}",
                                "language tp 2 -> 1", true},
                    RestartCase{"Checkpoint", "", "ranks: 2, pp: 2",
                                "{state_copies: 1, ladder: [restart], rejoin: manual}",
                                "language pp 2 -> 1", false, "{every: 3, directory: checkpoints}",
                                400, true},
                    RestartCase{"Beginning", "", "ranks: 2, pp: 2",
                                "{state_copies: 1, ladder: [restart], rejoin: manual}",
                                "language pp 2 -> 1", false, "{every: 399, directory: checkpoints}",
                                400}),
    [](const auto& info) { return info.param.name; });

// It goes on until what is awaited has happened, however long that takes. Its steps are long, so
// that they are not so many that rounding grows to what is looked for.
JobOptions TwoStages() {
  return {.name = "hit",
          .steps = 200000,
          .precision = "fp64",
          .vision = "",
          .language = "ranks: 2, pp: 2",
          .batch = 29,
          .output = "hit"};
}

TEST(RestartedJobTest, KilledRankThatIsBack_MakesItTwoStagesAgain_WithTheSameLosses) {
  const DataFolder data = MakeSmallData();
  Cluster cluster;
  JobOptions options = TwoStages();
  options.recovery = "{state_home: host}";
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 8);
  kill(cluster.Ranks(job).at(1).pid(), SIGKILL);
  const v1::JobStatus back = cluster.Await(
      job, [&](const v1::JobStatus&) { return MessagesOf(cluster, job, "Returned") != ""; });
  EXPECT_THAT(MessagesOf(cluster, job, "Recovered"), HasSubstr("language pp 2 -> 1"));
  EXPECT_THAT(MessagesOf(cluster, job, "Returned"), HasSubstr("language pp 1 -> 2"));
  ExpectCurvesOfAnUndisturbedRun(cluster, data, options, job, back.last_step().step() + 5);
}

// A bit in the middle of each file.
void Damage(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
    file.seekg(middle);
    const int byte = file.get();
    file.seekp(middle);
    file.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(file.good()) << entry.path();
  }
}

TEST(RestartedJobTest, DamagedCheckpoint_IsPassedOver_WithTheSameLosses) {
  const DataFolder data = MakeSmallData();
  Cluster cluster;
  JobOptions options = TwoStages();
  options.recovery = "{state_copies: 1, ladder: [restart], rejoin: manual}";
  options.checkpoint = "{every: 100, directory: checkpoints, keep: 3}";
  const int64_t job = cluster.Submit(Document(data, options)).id();
  const v1::JobStatus two = cluster.Await(
      job, [](const v1::JobStatus& status) { return status.last_checkpoint().step() >= 200; });
  Damage(two.last_checkpoint().path());
  kill(cluster.Ranks(job).at(1).pid(), SIGKILL);
  const v1::JobStatus back = cluster.Await(
      job, [&](const v1::JobStatus&) { return MessagesOf(cluster, job, "Recovered") != ""; });
  EXPECT_THAT(MessagesOf(cluster, job, "CheckpointGivenUp"),
              HasSubstr(absl::StrCat("of step ", two.last_checkpoint().step() - 100)));
  ExpectCurvesOfAnUndisturbedRun(cluster, data, options, job, back.last_step().step() + 5);
}

}  // namespace
}  // namespace phalanx::e2e
