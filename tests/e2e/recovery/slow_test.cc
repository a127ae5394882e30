// A rank that is slower than the others: it is named, and training goes on with it.
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

}  // namespace
}  // namespace phalanx::e2e
