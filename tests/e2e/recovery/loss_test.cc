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

// A job whose first rank, which writes its records, stands still behind some steps: it does not see
// what becomes of them.
class LossOfTheWriterTest : public testing::Test {
 protected:
  LossOfTheWriterTest() {
    const JobOptions options{.name = "out",
                             .steps = 200000,
                             .vision = "",
                             .language = "ranks: 2",
                             .batch = 8,
                             .recovery = "{rejoin: manual}",
                             .output = "out"};
    job_ = cluster_.Submit(Document(data_, options)).id();
    cluster_.AwaitStep(job_, 5);
    const auto ranks = cluster_.Ranks(job_);
    const support::ProcessWatch& writer = ranks.at(0);
    writer_ = writer.pid();
    writer.Stop();
  }
  // The other rank goes on with the records.
  void Kill() {
    kill(writer_, SIGKILL);
    cluster_.Await(job_,
                   [&](const v1::JobStatus& status) { return status.last_step().epoch() > 1; });
  }
  std::string Missing() { return MessagesOf(cluster_, job_, "LinesMissing"); }

  const DataFolder data_ = MakeSmallData();
  Cluster cluster_;
  const std::string output_ = data_.path + "/out";

 private:
  int64_t job_ = 0;
  pid_t writer_ = -1;
};

// Who writes the records from then on has not seen them: its node may have had another folder.
TEST_F(LossOfTheWriterTest, FolderThatIsMovedAwayWithIt_IsMadeAnew_AndSaid) {
  std::filesystem::rename(output_, output_ + ".elsewhere");
  Kill();
  EXPECT_THAT(Missing(), HasSubstr("has no lines of steps before "));
  const std::vector<Metric> before = ReadMetrics(output_ + ".elsewhere"),
                            since = ReadMetrics(output_);
  ASSERT_FALSE(before.empty());
  ASSERT_FALSE(since.empty());
  EXPECT_GE(since.front().step, before.back().step);
}

TEST_F(LossOfTheWriterTest, LinesThatAreCutMeanwhile_AreSaidToBeMissing) {
  const std::string path = output_ + "/metrics.jsonl";
  std::ifstream lines(path);
  std::string first;
  ASSERT_TRUE(std::getline(lines, first));
  std::filesystem::resize_file(path, first.size() + 1);
  Kill();
  EXPECT_THAT(Missing(), HasSubstr("has no lines of steps 2 to "));
}

}  // namespace
}  // namespace phalanx::e2e
