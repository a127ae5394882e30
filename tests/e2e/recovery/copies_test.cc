// State whose only process dies comes back from the copy that its daemon keeps: training goes back
// a step or two, with the same numbers.
#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;

constexpr double kTolerance = 1e-12;

struct CopiesCase {
  const char* name;
  const char* vision;
  const char* language;
  const char* recovery;
  int32_t every;  // of recovery.state_every
  std::vector<int32_t> killed;
  std::vector<int64_t> behind = {8};  // at steps so many after the time before
};

// Of each time that a job went back, how many steps it says to be done again.
std::vector<int64_t> DoneAgain(Cluster& cluster, int64_t job) {
  std::vector<int64_t> counts;
  for (const absl::string_view line :
       absl::StrSplit(MessagesOf(cluster, job, "WentBack"), '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const auto steps = std::find_if(words.rbegin(), words.rend(), [](const std::string& word) {
      return word == "step" || word == "steps";
    });
    int64_t count = -1;
    EXPECT_TRUE(steps != words.rend() && absl::SimpleAtoi(*std::next(steps), &count)) << line;
    counts.push_back(count);
  }
  return counts;
}

class CopiesTest : public testing::TestWithParam<CopiesCase> {};

TEST_P(CopiesTest, KilledRank_LeavesItsStateToWhoInheritsIt) {
  // Each many times as long as a copy takes: those that take longer than a step lose more.
  constexpr int64_t kSteps = 60;
  const DataFolder data = MakeSmallData();
  Cluster cluster;
  JobOptions options{.name = "whole",
                     .steps = kSteps,
                     .precision = "fp64",
                     .vision = GetParam().vision,
                     .language = GetParam().language,
                     .batch = 56,
                     .recovery = GetParam().recovery,
                     .output = "whole"};
  ASSERT_EQ(cluster.AwaitEnd(cluster.Submit(Document(data, options)).id()).phase(),
            v1::JOB_PHASE_SUCCEEDED);
  options.name = options.output = "hit";
  const int64_t job = cluster.Submit(Document(data, options)).id();
  int64_t step = 0, epoch = 1;
  for (const int64_t steps : GetParam().behind) {
    step += steps;
    cluster.Await(job, [&](const v1::JobStatus& status) {
      return status.last_step().epoch() >= epoch && status.last_step().step() >= step;
    });
    const auto ranks = cluster.Ranks(job);
    for (const int32_t rank : GetParam().killed) {
      ASSERT_TRUE(ranks.contains(rank)) << cluster.WorkerLog();
      kill(ranks.at(rank).pid(), SIGKILL);
    }
    const v1::JobStatus back = cluster.Await(job, [&](const v1::JobStatus& status) {
      return status.last_step().epoch() > epoch && status.last_step().step() > step;
    });
    epoch = back.last_step().epoch();
  }
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster.WorkerLog();
  ExpectSameCurves(MetricsOf(data, "hit"), MetricsOf(data, "whole"), kSteps, kTolerance);
  const std::vector<int64_t> again = DoneAgain(cluster, job);
  EXPECT_THAT(again, testing::SizeIs(testing::Ge(GetParam().behind.size())));
  EXPECT_THAT(again, testing::Each(testing::Le(GetParam().every + 1)));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, CopiesTest,
    testing::Values(
        CopiesCase{"Stage", "", "ranks: 2, pp: 2", "{state_home: host, ladder: [wait]}", 1, {1}},
        CopiesCase{"Reporter", "", "ranks: 2, pp: 2", "{ladder: [wait]}", 1, {0}},
        CopiesCase{"EveryFourth",
                   "",
                   "ranks: 2, pp: 2",
                   "{state_home: host, state_every: 4, ladder: [wait]}",
                   4,
                   {1}},
        CopiesCase{
            "AllRanks", "", "ranks: 2, pp: 2", "{state_home: host, ladder: [wait]}", 1, {0, 1}},
        CopiesCase{"ThreeTimes",
                   "",
                   "ranks: 2, pp: 2",
                   "{state_home: host, ladder: [wait]}",
                   1,
                   {1},
                   {8, 8, 8}},
        CopiesCase{"AgainBeforeThereAreNewCopies",
                   "",
                   "ranks: 2, pp: 2",
                   "{state_home: host, state_every: 20, ladder: [wait]}",
                   20,
                   {1},
                   {24, 4}},
        CopiesCase{"TensorRankThatAnotherTakesOver",
                   "",
                   "ranks: 2, tp: 2",
                   "{state_home: host, rejoin: manual}",
                   1,
                   {1}},
        CopiesCase{"Encoder", "ranks: 1", "ranks: 2, tp: 2", "{ladder: [wait]}", 1, {0}}),
    [](const auto& info) { return info.param.name; });

// Each device is of a node of its own. What the daemon of one has goes to whoever goes on
// elsewhere.
struct Elsewhere {
  const char* name;
  const char* language;
  const char* recovery;
  int32_t spares;
  int32_t killed;
  const char* change;  // as the incident tells it
};

class InheritedCopiesTest : public testing::TestWithParam<Elsewhere> {};

TEST_P(InheritedCopiesTest, OnlyRankOfItsNode_LeavesItsStateToRanksOfOthers) {
  constexpr int64_t kSteps = 60;
  const DataFolder data = MakeSmallData();
  Cluster cluster({.devices = 1});
  cluster.AddWorker("middle", 1);
  cluster.AddWorker("there", 1);
  JobOptions options{.name = "whole",
                     .steps = kSteps,
                     .precision = "fp64",
                     .vision = "",
                     .language = GetParam().language,
                     .batch = 56,
                     .recovery = GetParam().recovery,
                     .spares = GetParam().spares,
                     .output = "whole"};
  ASSERT_EQ(cluster.AwaitEnd(cluster.Submit(Document(data, options)).id()).phase(),
            v1::JOB_PHASE_SUCCEEDED);
  options.name = options.output = "hit";
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 8);
  const auto ranks = cluster.Ranks(job);
  ASSERT_TRUE(ranks.contains(GetParam().killed)) << cluster.WorkerLog();
  kill(ranks.at(GetParam().killed).pid(), SIGKILL);
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED)
      << ended.reason() << cluster.CoordinatorLog() << cluster.WorkerLog();
  ExpectSameCurves(MetricsOf(data, "hit"), MetricsOf(data, "whole"), kSteps, kTolerance);
  EXPECT_THAT(MessagesOf(cluster, job, "Recovered"), HasSubstr(GetParam().change));
  const std::vector<int64_t> again = DoneAgain(cluster, job);
  EXPECT_THAT(again, testing::SizeIs(1));
  EXPECT_THAT(again, testing::Each(testing::Le(2)));
  EXPECT_EQ(MessagesOf(cluster, job, "Waiting"), "");
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, InheritedCopiesTest,
    testing::Values(Elsewhere{"Spare", "ranks: 2, pp: 2",
                              "{state_home: host, ladder: [spare], rejoin: manual}", 1, 1,
                              "a spare takes over rank 1"},
                    Elsewhere{"SpareOfTheReporter", "ranks: 2, pp: 2",
                              "{state_home: host, ladder: [spare], rejoin: manual}", 1, 0,
                              "a spare takes over rank 0"},
                    Elsewhere{"Shrink", "ranks: 2, tp: 2",
                              "{state_home: host, ladder: [shrink], rejoin: manual}", 0, 1,
                              "language tp 2 -> 1"},
                    Elsewhere{"Restart", "ranks: 2, pp: 2",
                              "{state_home: host, ladder: [restart], rejoin: manual}", 0, 1,
                              "language pp 2 -> 1"}),
    [](const auto& info) { return info.param.name; });

// Buffers for copies of state that a daemon has, of all its jobs.
size_t BuffersOf(support::Process& daemon) {
  size_t buffers = 0;
  std::error_code gone;  // one descriptor or another, meanwhile
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", daemon.pid(), "/fd"), gone)) {
    const std::string file = std::filesystem::read_symlink(entry.path(), gone).string();
    if (absl::StrContains(file, "memfd:phalanx-job-")) ++buffers;
  }
  return buffers;
}

// A replica that is alone has its second home in memory of the node. With another beside it again,
// which mirrors it, nobody needs that.
TEST(MemoryOfCopiesTest, LastReplica_HasCopies_WhichGoOnceThereAreMirrorsAgain) {
  const DataFolder data = MakeSmallData();
  Cluster cluster({.devices = 1});
  support::Process& there = cluster.AddWorker("there", 1);
  const int64_t job = cluster
                          .Submit(Document(data, {.name = "long",
                                                  .steps = 1000000,
                                                  .vision = "",
                                                  .language = "ranks: 2",
                                                  .batch = 4,
                                                  .output = "long"}))
                          .id();
  cluster.AwaitStep(job, 3);
  EXPECT_EQ(BuffersOf(cluster.worker()), 0);
  there.Signal(SIGKILL);
  const v1::JobStatus alone = cluster.Await(job, [&](const v1::JobStatus& status) {
    return status.last_step().epoch() > 1 && BuffersOf(cluster.worker()) == 2;
  });
  cluster.AddWorker("there", 1);
  const v1::JobStatus both = cluster.Await(job, [&](const v1::JobStatus& status) {
    return status.last_step().epoch() > alone.epoch() && BuffersOf(cluster.worker()) == 0;
  });
  EXPECT_EQ(cluster.Ranks(job).size(), 2);
  EXPECT_EQ(both.phase(), v1::JOB_PHASE_RUNNING);
  cluster.Cancel(job);
  cluster.AwaitEnd(job);
}

}  // namespace
}  // namespace phalanx::e2e
