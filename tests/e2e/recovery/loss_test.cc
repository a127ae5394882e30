// A rank dies in the middle of training, and what is left goes on: with the same numbers.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;

struct LossCase {
  const char* name;
  const char* vision;
  const char* language;
  std::vector<int32_t> killed;  // one after the other
};

class LossTest : public testing::TestWithParam<LossCase> {};

TEST_P(LossTest, KilledRank_IsLeftOut_AndTheLossesAreThoseOfARunWithoutAFailure) {
  const DataFolder data = MakeSmallData();
  Cluster cluster;
  // It goes on until all of them are killed, however long that takes. Its steps are long, so that
  // they are not so many that rounding grows to what is looked for.
  const JobOptions options{.name = "hit",
                           .steps = 200000,
                           .precision = "fp64",
                           .vision = GetParam().vision,
                           .language = GetParam().language,
                           .batch = 29,
                           .recovery = "{rejoin: manual}",
                           .standby = true,
                           .output = "hit"};
  const int64_t job = cluster.Submit(Document(data, options)).id();
  int64_t step = 0, epoch = 1;
  for (const int32_t rank : GetParam().killed) {
    cluster.AwaitStep(job, step += 5);
    const auto ranks = cluster.Ranks(job);
    ASSERT_TRUE(ranks.contains(rank)) << cluster.WorkerLog();
    kill(ranks.at(rank).pid(), SIGKILL);
    step =
        cluster
            .Await(job,
                   [&](const v1::JobStatus& status) {
                     return status.last_step().epoch() > epoch && status.last_step().step() > step;
                   })
            .last_step()
            .step();
    ++epoch;
    // The word of the last rank that is ready may come behind that of the step.
    cluster.Await(job, [&](const v1::JobStatus&) {
      return absl::StrContains(MessagesOf(cluster, job, "Recovered"), " redone");
    });
    EXPECT_THAT(MessagesOf(cluster, job, "RankFailed"), HasSubstr(absl::StrCat("rank ", rank)));
  }
  ExpectCurvesOfAnUndisturbedRun(cluster, data, options, job, step + 20);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LossTest,
                         testing::Values(LossCase{"Replicas", "", "ranks: 4", {3}},
                                         LossCase{"Reporter", "", "ranks: 4", {0}},
                                         LossCase{"TwoInARow", "", "ranks: 4", {1, 2}},
                                         LossCase{"TensorRank", "ranks: 2", "ranks: 4, tp: 2", {5}},
                                         LossCase{"Encoder", "ranks: 2", "ranks: 4, tp: 2", {0}}),
                         [](const auto& info) { return info.param.name; });

// Who writes the records from then on has not seen them: its node may have had another folder.
TEST(LossOfTheWriterTest, FolderThatIsMovedAwayWithIt_IsMadeAnew_AndSaid) {
  const DataFolder data = MakeSmallData();
  Cluster cluster;
  const JobOptions options{.name = "moved",
                           .steps = 200000,
                           .vision = "",
                           .language = "ranks: 2",
                           .batch = 8,
                           .recovery = "{rejoin: manual}",
                           .output = "moved"};
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 5);
  const pid_t writer = cluster.Ranks(job).at(0).pid();
  kill(writer, SIGSTOP);  // it does not see that they are gone
  const std::string output = data.path + "/moved";
  std::filesystem::rename(output, output + ".elsewhere");
  kill(writer, SIGKILL);
  cluster.Await(job, [&](const v1::JobStatus& status) { return status.last_step().epoch() > 1; });
  EXPECT_THAT(MessagesOf(cluster, job, "LinesMissing"), HasSubstr("has no lines of steps before "));
  const std::vector<Metric> before = ReadMetrics(output + ".elsewhere"),
                            since = ReadMetrics(output);
  ASSERT_FALSE(before.empty());
  ASSERT_FALSE(since.empty());
  EXPECT_GE(since.front().step, before.back().step);
}

bool HasStopped(pid_t pid) {
  for (const auto& thread :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    std::ifstream file(thread.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const size_t behind_name = stat.rfind(") ");
    if (behind_name == std::string::npos || stat.substr(behind_name + 2, 1) != "T") return false;
  }
  return true;
}

TEST(LossOfTheWriterTest, LinesThatAreCutMeanwhile_AreSaidToBeMissing) {
  const DataFolder data = MakeSmallData();
  Cluster cluster;
  const JobOptions options{.name = "cut",
                           .steps = 200000,
                           .vision = "",
                           .language = "ranks: 2",
                           .batch = 8,
                           .recovery = "{rejoin: manual}",
                           .output = "cut"};
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 5);
  const auto ranks = cluster.Ranks(job);
  const support::ProcessWatch& process = ranks.at(0);
  const pid_t writer = process.pid();
  kill(writer, SIGSTOP);
  while (!HasStopped(writer)) ASSERT_FALSE(process.AwaitEnd(absl::Milliseconds(1)));
  const std::string path = data.path + "/cut/metrics.jsonl";
  std::ifstream lines(path);
  std::string first;
  ASSERT_TRUE(std::getline(lines, first));
  std::filesystem::resize_file(path, first.size() + 1);
  kill(writer, SIGKILL);
  cluster.Await(job, [&](const v1::JobStatus& status) { return status.last_step().epoch() > 1; });
  EXPECT_THAT(MessagesOf(cluster, job, "LinesMissing"), HasSubstr("has no lines of steps 2 to "));
}

}  // namespace
}  // namespace phalanx::e2e
