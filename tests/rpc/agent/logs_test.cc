// Logs on a stream of their own.
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/agent/fake_coordinator.h"
#include "tests/e2e/agent/worker_process.h"
#include "worker/agent/log_spool.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

v1::Command Fetch(const std::string& id, int32_t tail, bool follow,
                  const std::vector<int32_t>& ranks = {}) {
  v1::Command command;
  v1::FetchLogs& fetch = *command.mutable_fetch_logs();
  fetch.set_fetch_id(id);
  fetch.set_job(7);
  fetch.set_tail(tail);
  fetch.set_follow(follow);
  for (const int32_t rank : ranks) fetch.add_ranks(rank);
  return command;
}

class LogsTest : public ::testing::Test {
 protected:
  void Run(const std::string& behaviour, const std::vector<int32_t>& devices) {
    coordinator.AwaitHello();
    coordinator.AwaitResult(coordinator.Send(AssignCommandOf(7, 1, Job(behaviour), devices)));
  }
  void AwaitReady() {
    coordinator.AwaitReport([](const auto& r) { return r.has_ready(); });
  }
  void AwaitExit() {
    coordinator.AwaitReport([](const auto& r) { return r.has_exited(); });
  }
  void Stop() { coordinator.AwaitResult(coordinator.Send(StopCommandOf(7, 1, 20))); }

  FakeCoordinator coordinator;
  WorkerProcess worker{coordinator.address()};
};

TEST_F(LogsTest, EndedJob_GivesItsLogs) {
  Run("exit-3", {0, 1});
  AwaitExit();
  AwaitExit();
  coordinator.Send(Fetch("f", 0, false));
  EXPECT_THAT(coordinator.AwaitUpload("f"),
              ElementsAre(Pair(0, "about to exit with 3\n"), Pair(1, "about to exit with 3\n")));
}

TEST_F(LogsTest, Ranks_ThatWereAskedFor_AloneAreSent) {
  Run("exit-3", {0, 1});
  AwaitExit();
  AwaitExit();
  coordinator.Send(Fetch("f", 0, false, {1}));
  EXPECT_THAT(coordinator.AwaitUpload("f"), ElementsAre(Pair(1, "about to exit with 3\n")));
}

TEST_F(LogsTest, Tail_GivesTheLastLines) {
  Run("chatty", {0});
  AwaitReady();
  Stop();
  coordinator.Send(Fetch("f", 2, false));
  EXPECT_THAT(coordinator.AwaitUpload("f"),
              ElementsAre(Pair(0,
                               "line 39998 of much talk about nothing\n"
                               "line 39999 of much talk about nothing\n")));
}

TEST_F(LogsTest, Follow_GivesEverything_AndEndsWithTheJob) {
  coordinator.AwaitHello();
  const uint64_t assign = coordinator.Send(AssignCommandOf(7, 1, Job("chatty"), {0}));
  coordinator.AwaitResult(assign);
  coordinator.Send(Fetch("f", 0, true));
  coordinator.AwaitUploadText("f", "line 39999 ");
  Stop();
  const std::map<int32_t, std::string> logs = coordinator.AwaitUpload("f");
  std::string all;
  for (int i = 0; i < 40'000; ++i)
    absl::StrAppend(&all, "line ", i, " of much talk about nothing\n");
  EXPECT_TRUE(logs.at(0) == all);
}

TEST(LogRateTest, RankThatWritesTooMuch_LosesTheRest_AndIsToldOf) {
  FakeCoordinator coordinator;
  const WorkerProcess worker(coordinator.address(), {"--log-rate", "10000"});
  coordinator.AwaitHello();
  coordinator.AwaitResult(coordinator.Send(AssignCommandOf(7, 1, Job("chatty"), {0})));
  coordinator.AwaitReport([](const auto& r) { return r.has_ready(); });
  coordinator.AwaitResult(coordinator.Send(StopCommandOf(7, 1, 20)));
  const v1::RankReport told = coordinator.AwaitReport(
      [](const auto& r) { return r.has_event() && r.event().type() == "LogDropped"; });
  EXPECT_THAT(told.event().message(), ::testing::HasSubstr("bytes of the log of rank 0 were "
                                                           "dropped: it writes more than 10000"));
  coordinator.Send(Fetch("f", 0, false));
  const std::map<int32_t, std::string> logs = coordinator.AwaitUpload("f");
  EXPECT_LT(logs.at(0).size(), 400'000u) << "of 1.4 MB";
  EXPECT_TRUE(absl::StartsWith(logs.at(0), "line 0 of much talk about nothing\n"));
}

TEST_F(LogsTest, LogThatCannotBeMade_IsToldOf_ByTheRankThatWrites) {
  coordinator.AwaitHello();
  // In the place of the job's folder.
  const std::filesystem::path jobs = StoreFolder(worker.state(), /*store=*/0) + "/jobs";
  std::filesystem::create_directories(jobs);
  std::ofstream(jobs / "7") << "no folder";
  coordinator.AwaitResult(coordinator.Send(AssignCommandOf(7, 1, Job("exit-3"), {0, 1})));
  const v1::RankReport told = coordinator.AwaitReport([](const auto& r) {
    return r.rank() == 1 && r.has_event() && r.event().type() == "LogDropped";
  });
  EXPECT_EQ(told.epoch(), 1);
  EXPECT_THAT(told.event().message(),
              ::testing::MatchesRegex("21 bytes of the log of rank 1 were dropped: its node cannot "
                                      "write them below --state: the file cannot be made; .*"));
}

TEST_F(LogsTest, UnknownJob_GivesAnEmptyUpload) {
  coordinator.AwaitHello();
  coordinator.Send(Fetch("f", 0, true));
  EXPECT_THAT(coordinator.AwaitUpload("f"), IsEmpty());
}

}  // namespace
}  // namespace phalanx::agent
