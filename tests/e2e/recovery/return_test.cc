// Ranks are killed one after another, at whatever moment, and come back: with the same numbers.
#include <signal.h>

#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

struct Case {
  const char* name;
  const char* vision;
  const char* language;
  const char* schedule;
  int32_t nodes = 1;
};

class ReturnTest : public testing::TestWithParam<Case> {};

TEST_P(ReturnTest, KilledRanksComeBack_AndTheLossesAreThoseOfARunWithoutAFailure) {
  constexpr int64_t kSteps = 200;
  constexpr int kKills = 6;
  const Case& layout = GetParam();
  const DataFolder data = MakeSmallData();
  Cluster cluster({.devices = 6 / layout.nodes});
  for (int32_t node = 1; node < layout.nodes; ++node)
    cluster.AddWorker(absl::StrCat("node-", node), 6 / layout.nodes);
  JobOptions options{.name = "whole",
                     .steps = kSteps,
                     .precision = "fp64",
                     .vision = layout.vision,
                     .language = layout.language,
                     .schedule = layout.schedule,
                     .layers = 4,
                     .batch = 7,
                     .recovery = "{budget: {without_progress: 9}}",
                     .output = "whole"};
  ASSERT_EQ(cluster.AwaitEnd(cluster.Submit(Document(data, options)).id()).phase(),
            v1::JOB_PHASE_SUCCEEDED);
  options.name = options.output = "hit";
  const int64_t job = cluster.Submit(Document(data, options)).id();
  Prng prng(7);
  for (int i = 0; i < kKills; ++i) {
    // In an epoch that has all its ranks.
    const v1::JobStatus now = cluster.Await(job, [&](const v1::JobStatus& status) {
      return status.epoch() >= 1 + 2 * i && status.last_step().epoch() == status.epoch();
    });
    cluster.AwaitStep(job, now.last_step().step() + static_cast<int64_t>(prng.Below(4)));
    const std::map<int32_t, support::ProcessWatch> ranks = cluster.Ranks(job);
    ASSERT_FALSE(ranks.empty());
    const auto hit = std::next(ranks.begin(), static_cast<int64_t>(prng.Below(ranks.size())));
    kill(hit->second.pid(), SIGKILL);
  }
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster.WorkerLog();
  EXPECT_GE(ended.epoch(), 2 * kKills);
  ExpectSameCurves(MetricsOf(data, "hit"), MetricsOf(data, "whole"), kSteps);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ReturnTest,
    testing::Values(Case{"Replicas", "", "ranks: 4", "{name: 1f1b}"},
                    Case{"TensorRanks", "ranks: 2", "ranks: 4, tp: 2", "{name: 1f1b}"},
                    Case{"Stages", "ranks: 2", "ranks: 4, pp: 2", "{name: 1f1b}"},
                    Case{"ThreeNodes", "ranks: 2", "ranks: 4, tp: 2", "{name: 1f1b}", 3}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace phalanx::e2e
