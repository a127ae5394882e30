// Communicators that are made before a rank is lost.
#include <signal.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/recovery/trouble.h"
#include "tests/support/files.h"

namespace phalanx::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct StandbyCase {
  const char* name;
  const char* vision;
  const char* language;
  int32_t killed;
  const char* covered;  // ranks whose loss there are communicators for
};

class StandbyTest : public testing::TestWithParam<StandbyCase> {};

TEST_P(StandbyTest, KilledRank_IsLeftOutWithCommunicatorsThatAreThere) {
  constexpr int64_t kSteps = 400;  // more than are done before they are there
  const DataFolder data = MakeSmallData();
  Cluster cluster;
  JobOptions options{.name = "whole",
                     .steps = kSteps,
                     .precision = "fp64",
                     .vision = GetParam().vision,
                     .language = GetParam().language,
                     .batch = 7,
                     .recovery = "{rejoin: manual}",
                     .output = "whole"};
  ASSERT_EQ(cluster.AwaitEnd(cluster.Submit(Document(data, options)).id()).phase(),
            v1::JOB_PHASE_SUCCEEDED);
  options.name = options.output = "hit";
  options.standby = true;
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.Await(
      job, [&](const v1::JobStatus&) { return !MessagesOf(cluster, job, "StandbyReady").empty(); });
  EXPECT_THAT(MessagesOf(cluster, job, "StandbyReady"),
              HasSubstr(absl::StrCat("any one of ranks ", GetParam().covered)));
  kill(cluster.Ranks(job).at(GetParam().killed).pid(), SIGKILL);
  cluster.Await(job, [&](const v1::JobStatus&) {
    return absl::StrContains(MessagesOf(cluster, job, "Recovered"), " redone");
  });
  EXPECT_THAT(MessagesOf(cluster, job, "Recovered"), HasSubstr(", standby communicators after "));
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  ASSERT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason() << cluster.WorkerLog();
  ExpectSameCurves(MetricsOf(data, "hit"), MetricsOf(data, "whole"), kSteps);
  const std::filesystem::path file =
      std::filesystem::path(data.path) / "hit/incidents/1/incident.json";
  EXPECT_EQ(json::parse(support::ReadText(file.string()))["communicators"], "standby");
}

INSTANTIATE_TEST_SUITE_P(Layouts, StandbyTest,
                         testing::Values(StandbyCase{"Replicas", "", "ranks: 3", 1, "0, 1, 2"},
                                         StandbyCase{"TensorRank", "ranks: 2", "ranks: 4, tp: 2", 5,
                                                     "0, 1, 2, 3, 4, 5"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace phalanx::e2e
