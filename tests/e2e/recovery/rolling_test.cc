// A cluster is upgraded while a job trains: the coordinator first, then one worker after another.
#include <signal.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;

// What another layout rounds otherwise does not grow to more than is looked for.
constexpr double kLearningRate = 1e-5;

JobOptions Job(const std::string& name, int64_t steps) {
  return {.name = name,
          .steps = steps,
          .precision = "fp64",
          .vision = "",
          .language = "ranks: 6, tp: 2",
          .batch = 7,
          .learning_rate = kLearningRate,
          .minimum_learning_rate = kLearningRate,
          .output = name};
}

TEST(RollingTest, CoordinatorAndThenEachWorker_AreOfTheNextRelease_AndTheJobTrainsOn) {
  const DataFolder data = MakeSmallData();
  Cluster cluster({.devices = 2, .worker_program = "phalanx-worker-other"});
  std::map<std::string, support::Process*> workers = {{"here", &cluster.worker()}};
  for (const char* node : {"middle", "there"}) workers[node] = &cluster.AddWorker(node, 2);
  EXPECT_THAT(cluster.Phalanx({"nodes", "-o", "json"}).out, HasSubstr("\"0.0.9\""));
  const int64_t job = cluster.Submit(Document(data, Job("hit", kForEver))).id();
  const std::string whole = cluster.AwaitStep(job, 5).plan_digest();

  cluster.KillCoordinator();
  cluster.StartCoordinator("phalanx-coordinator-other");
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
  EXPECT_THAT(cluster.Phalanx({"nodes", "-o", "json"}).out, testing::Not(HasSubstr("\"0.0.9\"")));
  cluster.Cancel(job);
  cluster.AwaitEnd(job);

  const std::vector<Metric> hit = MetricsOf(data, "hit");
  const auto steps = static_cast<int64_t>(hit.size());
  const int64_t undisturbed = cluster.Submit(Document(data, Job("whole", steps))).id();
  ASSERT_EQ(cluster.AwaitEnd(undisturbed).phase(), v1::JOB_PHASE_SUCCEEDED);
  ExpectSameCurves(hit, MetricsOf(data, "whole"), steps);
}

}  // namespace
}  // namespace phalanx::e2e
