// A cluster is upgraded while a job trains: the coordinator first, then one worker after another.
//
// With PHALANX_OLDER_PROGRAMS, the folder of programs of the release before, from those, ranks
// included (rolling.sh builds them). Without, from a worker of this release that says that it is of
// the one before, to a coordinator that plans otherwise.
#include <signal.h>

#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;

JobOptions RollingJob(const std::string& name, int64_t steps) {
  return {.name = name,
          .steps = steps,
          .precision = "fp64",
          .vision = "",
          .language = "ranks: 6, tp: 2",
          .batch = 7,
          .learning_rate = kSmallLearningRate,
          .minimum_learning_rate = kSmallLearningRate,
          .output = name};
}

struct Programs {
  std::string older_coordinator, older_worker, coordinator;
  std::string older_version;  // empty: workers of both say the same
};
Programs ProgramsOfBoth() {
  const char* folder = std::getenv("PHALANX_OLDER_PROGRAMS");
  if (folder == nullptr)
    return {"phalanx-coordinator", "phalanx-worker-other", "phalanx-coordinator-other",
            "\"0.0.9\""};
  return {absl::StrCat(folder, "/phalanx-coordinator"), absl::StrCat(folder, "/phalanx-worker"),
          "phalanx-coordinator", ""};
}

TEST(RollingTest, CoordinatorAndThenEachWorker_AreOfTheNextRelease_AndTheJobTrainsOn) {
  const DataFolder data = MakeSmallData();
  const Programs programs = ProgramsOfBoth();
  Cluster cluster({.devices = 2,
                   .coordinator_program = programs.older_coordinator,
                   .worker_program = programs.older_worker});
  std::map<std::string, support::Process*> workers = {{"here", &cluster.worker()}};
  for (const char* node : {"middle", "there"}) workers[node] = &cluster.AddWorker(node, 2);
  EXPECT_THAT(cluster.Phalanx({"nodes", "-o", "json"}).out, HasSubstr(programs.older_version));
  const int64_t job = cluster.Submit(Document(data, RollingJob("hit", kForEver))).id();
  const std::string whole = cluster.AwaitStep(job, 5).plan_digest();

  cluster.KillCoordinator();
  cluster.StartCoordinator(programs.coordinator);
  cluster.UseWorkers("phalanx-worker");
  for (auto& [node, worker] : workers) {
    worker->Signal(SIGTERM);
    ASSERT_EQ(worker->WaitExitCode(), 0) << node;
    cluster.Await(job, [&](const v1::JobStatus& status) {  // without it
      return status.plan_digest() != whole && status.last_step().epoch() == status.epoch();
    });
    if (node == "here") {
      cluster.StartWorker();
    } else {
      cluster.AddWorker(node, 2);
    }
    cluster.Await(job, [&](const v1::JobStatus& status) {  // with it
      return status.plan_digest() == whole && status.last_step().epoch() == status.epoch();
    });
  }
  if (!programs.older_version.empty()) {
    EXPECT_THAT(cluster.Phalanx({"nodes", "-o", "json"}).out,
                testing::Not(HasSubstr(programs.older_version)));
  }
  cluster.Cancel(job);
  cluster.AwaitEnd(job);

  const std::vector<Metric> hit = MetricsOf(data, "hit");
  const auto steps = static_cast<int64_t>(hit.size());
  const int64_t undisturbed = cluster.Submit(Document(data, RollingJob("whole", steps))).id();
  ASSERT_EQ(cluster.AwaitEnd(undisturbed).phase(), v1::JOB_PHASE_SUCCEEDED);
  ExpectSameCurves(hit, MetricsOf(data, "whole"), steps);
}

}  // namespace
}  // namespace phalanx::e2e
