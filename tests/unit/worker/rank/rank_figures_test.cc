// What a rank measured of itself, over epochs.
#include "worker/rank/rank_figures.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <thread>

#include "core/job/failure.h"
#include "core/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/files.h"
#include "tests/support/specs.h"
#include "worker/model/products.h"

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

// phalanx-bench products reads them.
TEST(RankFiguresTest, ProductsThatATableMayHave_AreThoseOfTheThread) {
  std::thread([] {
    using schedule::ProductType;
    model::NoteProduct({.a = ProductType::kE5M2,
                        .b = ProductType::kE4M3,
                        .d = ProductType::kFp32,
                        .b_turned = true,
                        .add = true,
                        .m = 16,
                        .n = 32,
                        .k = 48},
                       true);
    const std::string folder = support::MakeFolder("figures");
    ASSERT_TRUE(RankFigures().Write(folder, {}, Rank{0}, 1).ok());
    const auto written = nlohmann::json::parse(support::ReadFile(folder + "/ranks/rank-0.json"));
    EXPECT_EQ(written["products"], nlohmann::json::parse(R"([{
        "a": "e5m2", "b": "e4m3", "d": "fp32", "a_turned": false, "b_turned": true, "add": true,
        "fast": false, "bias": false, "m": 16, "n": 32, "k": 48, "count": 1, "by_table": true}])"));
  }).join();
  const std::string folder = support::MakeFolder("figures");
  ASSERT_TRUE(RankFigures().Write(folder, {}, Rank{0}, 1).ok());
  EXPECT_FALSE(
      nlohmann::json::parse(support::ReadFile(folder + "/ranks/rank-0.json")).contains("products"));
}

TEST(RankFiguresTest, HostAndAllocator_AreOfTheStepsThatCount) {
  RankFigures figures;
  const auto add = [&](int64_t step, double host, int64_t allocations) {
    train::StepSummary summary = Step(step, 0.5);
    summary.host_seconds = host;
    figures.Add(summary, {}, {.allocations = allocations, .frees = 1, .retries = allocations});
  };
  add(10, 0.5, 100);
  add(11, 0.0625, 103);
  add(12, 0.125, 103);
  add(13, 0.5, 105);  // its own seconds come with the next one
  const std::string folder = support::MakeFolder("figures");
  ASSERT_TRUE(figures.Write(folder, {}, Rank{0}, 1).ok());
  const auto written = nlohmann::json::parse(support::ReadFile(folder + "/ranks/rank-0.json"));
  EXPECT_EQ(written["steps"], 2);
  EXPECT_EQ(written["host_seconds"], 0.1875);
  EXPECT_EQ(written["allocator"]["allocations"], 2);
  EXPECT_EQ(written["allocator"]["frees"], 0);
  EXPECT_EQ(written["allocator"]["retries"], 2);
  EXPECT_FALSE(written.contains("profile"));
}

TEST(RankFiguresTest, LastStepsThatAllocatedOrPrepared_AreNamed) {
  RankFigures figures;
  const auto add = [&](int64_t step, int64_t allocations, int64_t plans) {
    figures.Add(Step(step, 0.5), {}, {.allocations = allocations},
                {.attention_trials = plans / 2, .attention_plans = plans, .fp8_products = 12});
  };
  const auto written = [&] {
    const std::string folder = support::MakeFolder("figures");
    EXPECT_TRUE(figures.Write(folder, {}, Rank{0}, 1).ok());
    return nlohmann::json::parse(support::ReadFile(folder + "/ranks/rank-0.json"));
  };
  add(10, 50, 2);
  add(11, 100, 4);  // those that count begin behind it
  add(12, 100, 4);
  EXPECT_EQ(written()["allocator"]["last_step"], 0);
  EXPECT_EQ(written()["prepared"]["last_step"], 0);
  add(13, 103, 4);
  add(14, 103, 6);
  add(15, 103, 6);
  EXPECT_EQ(written()["allocator"]["last_step"], 13);
  EXPECT_EQ(written()["prepared"],
            nlohmann::json::parse(R"({"attention_trials": 3, "attention_plans": 6,
                                      "fp8_products": 12, "last_step": 14})"));
}

// Encoders have none.
TEST(RankFiguresTest, ProductsInFp8_AreNamedByRanksThatHaveThem) {
  for (const job::LinearFormat linear : {job::LinearFormat::kFp8, job::LinearFormat::kCompute}) {
    const auto plan = plan::MakePlan(support::AJob()
                                         .Module("vision", support::ClipVision())
                                         .Module("language", support::Llama())
                                         .Edge("vision", "language")
                                         .Linear(linear),
                                     plan::MakeCluster(1, 2), Epoch{1});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const std::string folder = support::MakeFolder("figures");
    for (const int32_t rank : {0, 1}) {
      ASSERT_TRUE(RankFigures().Write(folder, *plan, Rank{rank}, 1).ok());
      const auto written = nlohmann::json::parse(
          support::ReadFile(folder + "/ranks/rank-" + std::to_string(rank) + ".json"));
      const bool has = rank == 1 && linear == job::LinearFormat::kFp8;
      ASSERT_EQ(written.contains("fp8"), has);
      if (!has) continue;
      EXPECT_EQ(written["fp8"]["forward"]["operands"], "e4m3 x e4m3");
      EXPECT_EQ(written["fp8"]["forward"]["sums"], "compute type");
      EXPECT_EQ(written["fp8"]["weight_gradient"]["operands"], "e5m2 x e4m3");
      EXPECT_FALSE(written["fp8"]["recipe"].empty());
    }
  }
}

TEST(RankFiguresTest, ProfileOfAStep_IsWrittenByPart) {
  const std::string folder = support::MakeFolder("figures");
  const StepProfile profile = BreakDown(9, {{"aten::mm", 1, 3}, {"aten::mm", 3, 3.5}}, 0, 4);
  ASSERT_TRUE(RankFigures().Write(folder, {}, Rank{0}, 1, profile).ok());
  const auto written =
      nlohmann::json::parse(support::ReadFile(folder + "/ranks/rank-0.json"))["profile"];
  EXPECT_EQ(written["step"], 9);
  EXPECT_EQ(written["seconds"], 4);
  EXPECT_EQ(written["waiting"], 1.5);
  EXPECT_EQ(written["parts"]["products"]["share"], 2.5);
  EXPECT_EQ(written["parts"]["products"]["kernels"], 2);
  EXPECT_EQ(written["parts"]["communication"]["seconds"], 0);
  ASSERT_EQ(written["kernels"].size(), 1u);
  EXPECT_EQ(written["kernels"][0]["name"], "aten::mm");
  EXPECT_EQ(written["kernels"][0]["count"], 2);
}

TEST(RankFiguresTest, FileWhereTheFolderBelongs_IsOutputUnavailableAndNamed) {
  const std::string folder = support::MakeFolder("figures");
  support::WriteFile(folder + "/ranks", "no folder");
  const absl::Status status = RankFigures::MakeFolder(folder);
  EXPECT_EQ(job::KindOf(status), job::FailureKind::kOutputUnavailable);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(folder + "/ranks"));
}

TEST(RankFiguresTest, FolderThatLeadsOutOfThoseOfTheNode_GetsNone) {
  const std::string mine = std::filesystem::canonical(support::MakeFolder("figures"));
  const std::string other = std::filesystem::canonical(support::MakeFolder("elsewhere"));
  std::filesystem::create_directory_symlink(other, mine + "/ranks");
  const absl::Status refused = RankFigures().Write(mine, {}, Rank{0}, 1, {}, {mine});
  EXPECT_EQ(job::KindOf(refused), job::FailureKind::kOutputUnavailable);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("/ranks: leads to " + other));
  EXPECT_TRUE(std::filesystem::is_empty(other));
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
