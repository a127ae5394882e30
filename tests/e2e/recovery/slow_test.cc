// A rank that is slower than the others: it is named, and training goes on with it.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

// Four replicas that do the same, on two nodes; passes take a few milliseconds, so it takes a
// factor for the difference to be worth a word.
TEST(SlowTest, RankWhosePassesTakeLonger_IsNamedUntilItKeepsUp_AndNobodyElseIs) {
  const DataFolder data = MakeData({.samples = 30, .words = 4});
  Cluster cluster(
      {.devices = 2, .coordinator_flags = {"--allow-inject", "--heartbeat-interval", "500ms"}});
  cluster.AddWorker("there", 2);
  const int64_t job = cluster
                          .Submit(Document(data, {.steps = kForEver,
                                                  .vision = "",
                                                  .language = "ranks: 4",
                                                  .batch = 8,
                                                  .output = "out"}))
                          .id();
  cluster.AwaitStep(job, 200);
  EXPECT_THAT(EventsOf(cluster, job, "SlowDevice"), IsEmpty());

  ASSERT_EQ(Inject(cluster, job, 3, {"--fault", "slow:20", "--for", "30s"}).exit_code, 0);
  const v1::JobStatus named = cluster.Await(
      job, [](const v1::JobStatus& status) { return status.slow_devices_size() > 0; });
  ASSERT_EQ(named.slow_devices_size(), 1);
  EXPECT_EQ(named.slow_devices(0).rank(), 3);
  EXPECT_EQ(named.slow_devices(0).node(), "there");
  EXPECT_EQ(named.slow_devices(0).device(), 1);
  EXPECT_EQ(named.slow_devices(0).others(), 3);
  EXPECT_GT(named.slow_devices(0).ratio(), 1.3);
  const std::string place = "device 1 of node there (rank 3) ";
  EXPECT_THAT(EventsOf(cluster, job, "SlowDevice"),
              ElementsAre(AllOf(StartsWith(place), HasSubstr("every step waits for it"),
                                HasSubstr("phalanx drain there"))));
  EXPECT_THAT(cluster.Why(job), HasSubstr(place));
  EXPECT_THAT(cluster.Phalanx({"describe", absl::StrCat("job-", job)}).out, HasSubstr(place));
  EXPECT_THAT(cluster.Phalanx({"describe", "node", "there"}).out, HasSubstr("Slow: "));
  EXPECT_THAT(cluster.Phalanx({"describe", "node", "here"}).out, Not(HasSubstr("Slow: ")));

  const v1::JobStatus over = cluster.Await(
      job, [](const v1::JobStatus& status) { return status.slow_devices_size() == 0; });
  EXPECT_EQ(over.epoch(), 1);
  EXPECT_THAT(EventsOf(cluster, job, "SlowDeviceOver"), ElementsAre(StartsWith(place)));
  EXPECT_THAT(EventsOf(cluster, job, "SlowDevice"), SizeIs(1));
  cluster.Cancel(job);
  cluster.AwaitEnd(job);
}

// Steps [first, first + count) of what a job has written: their median.
double SecondsOfSteps(const DataFolder& data, int64_t first, size_t count) {
  std::vector<double> seconds;
  for (const Metric& metric : MetricsOf(data, "out")) {
    if (metric.step >= first && seconds.size() < count) seconds.push_back(metric.seconds);
  }
  if (seconds.empty()) return 0;
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// Two replicas of two tensor ranks. Whoever is slow makes its replica slow, which gets fewer of the
// samples, and as many as before once it keeps up again; steps are those of a job that nobody hit.
TEST(SlowTest, ReplicaOfASlowRank_IsDealtFewerSamples_AndEveryStepIsAsIfItWereNot) {
  const DataFolder data = MakeData({.samples = 60, .images_min = 0, .images_max = 0, .words = 4});
  Cluster cluster({.devices = 4,
                   .coordinator_flags = {"--allow-inject", "--heartbeat-interval", "500ms",
                                         "--slow-delay", "2s"}});
  const JobOptions options{.steps = kForEver,
                           .precision = "fp64",
                           .vision = "",
                           .language = "ranks: 4, tp: 2",
                           .batch = 12,
                           .micro = 1,
                           .learning_rate = 1e-5,
                           .recovery = "{slow_devices: fewer-samples}",
                           .output = "out"};
  const int64_t job = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(job, 40);
  ASSERT_EQ(Inject(cluster, job, 3, {"--fault", "slow:8", "--for", "45s"}).exit_code, 0);
  const int64_t hit = cluster.Get(job).last_step().step() + 2;

  const v1::JobStatus moved =
      cluster.Await(job, [](const v1::JobStatus& status) { return status.epoch() == 2; });
  const std::string place = "device 3 of node here (rank 3) ";
  EXPECT_THAT(EventsOf(cluster, job, "SamplesMoved"),
              ElementsAre(AllOf(StartsWith(place), HasSubstr("; from epoch 2 on "),
                                HasSubstr("replica 1 of language has "),
                                HasSubstr(" of 12 samples a step, not 6"))));
  const int64_t before = moved.last_step().step();
  const v1::JobStatus later = cluster.Await(job, [&](const v1::JobStatus& status) {
    return status.last_step().epoch() == 2 && status.last_step().step() > before + 60;
  });
  const double slowed = SecondsOfSteps(data, hit, 20);
  const double dealt = SecondsOfSteps(data, later.last_step().step() - 40, 30);
  EXPECT_LT(dealt, 0.7 * slowed) << "seconds a step";
  const v1::JobStatus named = cluster.Await(
      job, [](const v1::JobStatus& status) { return status.slow_devices_size() > 0; });
  EXPECT_EQ(named.slow_devices(0).rank(), 3);
  EXPECT_THAT(cluster.Phalanx({"describe", absl::StrCat("job-", job)}).out,
              HasSubstr("its replica is dealt fewer samples for that"));

  cluster.Await(job, [](const v1::JobStatus& status) { return status.epoch() == 3; });
  EXPECT_THAT(EventsOf(cluster, job, "SamplesMoved").back(),
              AllOf(StartsWith(place + "keeps up again"),
                    HasSubstr("replica 1 of language has 6 of 12 samples a step")));
  const v1::JobStatus last = cluster.Await(
      job, [](const v1::JobStatus& status) { return status.last_step().epoch() == 3; });
  EXPECT_TRUE(cluster.Incidents(job).empty()) << "nobody was lost";
  ExpectCurvesOfAnUndisturbedRun(cluster, data, options, job, last.last_step().step() + 20);
}

}  // namespace
}  // namespace phalanx::e2e
