// What a rank measured of itself, over epochs.
#include "worker/rank/rank_figures.h"

#include <sys/stat.h>

#include "core/job/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/files.h"

namespace phalanx::rank {
namespace {

train::StepSummary Step(int64_t step, double seconds) {
  train::StepSummary summary{.step = step, .seconds = seconds};
  summary.previous.busy = 0.25;
  return summary;
}

TEST(RankFiguresTest, StepOfAnEpochBefore_CountsInNothing) {
  RankFigures figures;
  figures.Add(Step(20, 0), {});    // told at the beginning of this epoch
  figures.Add(Step(21, 0.5), {});  // its figures come with the next one
  figures.Add(Step(22, 0.75), {});
  const std::string folder = support::MakeFolder("figures");
  ASSERT_TRUE(figures.Write(folder, {}, Rank{0}, 1).ok());
  const auto written = nlohmann::json::parse(support::ReadFile(folder + "/ranks/rank-0.json"));
  EXPECT_EQ(written["steps"], 1);
  EXPECT_EQ(written["step_seconds"], 0.5);
  EXPECT_EQ(written["busy_seconds"], 0.25);
}

TEST(RankFiguresTest, FileWhereTheFolderBelongs_IsOutputUnavailableAndNamed) {
  const std::string folder = support::MakeFolder("figures");
  support::WriteFile(folder + "/ranks", "no folder");
  const absl::Status status = RankFigures::MakeFolder(folder);
  EXPECT_EQ(job::KindOf(status), job::FailureKind::kOutputUnavailable);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(folder + "/ranks"));
}

// Opening it would wait for a reader.
TEST(RankFiguresTest, PipeWhereTheFileBelongs_IsReplaced) {
  const std::string folder = support::MakeFolder("figures");
  ASSERT_TRUE(RankFigures::MakeFolder(folder).ok());
  ASSERT_EQ(mkfifo((folder + "/ranks/rank-0.json").c_str(), 0600), 0);
  ASSERT_TRUE(RankFigures().Write(folder, {}, Rank{0}, 1).ok());
  EXPECT_EQ(nlohmann::json::parse(support::ReadFile(folder + "/ranks/rank-0.json"))["rank"], 0);
}

}  // namespace
}  // namespace phalanx::rank
