#include <gtest/gtest.h>

#include "tests/sim/scale/field_run.h"
#include "tests/sim/scale/light_cluster.h"
#include "tests/sim/scale/static_losses.h"

namespace phalanx::scale {
namespace {

constexpr double kRounding = 1e-9;

TEST(LoseAtRandom, PoliciesOrderAsTheyShould) {
  std::vector<Policy> policies = PoliciesInForce();
  policies.push_back(Policy::kSpares);
  const Workload workload = SmallWorkload();
  const std::vector<StaticRow> rows = LoseAtRandom(workload, policies, {0.05}, {8, 64}, 20, 7);
  ASSERT_EQ(rows.size(), 4u);
  const StaticRow &dropped = rows[0], &parity = rows[1], &own = rows[2], &spares = rows[3];
  EXPECT_EQ(dropped.lost, 3);
  EXPECT_NEAR(dropped.work_lost, 1 - dropped.replicas / workload.dp, kRounding);
  EXPECT_EQ(dropped.narrowed, 0);
  EXPECT_GT(own.work_lost, 0);
  EXPECT_LE(own.work_lost, parity.work_lost);
  EXPECT_LT(parity.work_lost, dropped.work_lost);
  EXPECT_LT(spares.work_lost, dropped.work_lost);
  EXPECT_NEAR(own.replicas, workload.dp, kRounding);
  // Few samples are rounded, and fill a pipeline better if there are more for each replica.
  for (const StaticRow& row : rows) {
    EXPECT_GE(row.step_lost[1], 0);
    EXPECT_NEAR(row.step_lost[1], row.work_lost, 0.01);
  }
}

// The days draw nearer to the wanted share as they grow.
TEST(Field, KeepsItsShareOut) {
  constexpr int32_t kDevices = 10'000;
  Field field(0.004, kDevices, 3);
  double out = 0;
  for (const Outage& outage : field.Now()) out += outage.lasts > absl::ZeroDuration() ? 1 : 0;
  EXPECT_NEAR(out / kDevices, 0.004, 0.002);
  absl::Duration time;
  double device_days = 0;
  for (int i = 0; i < 20'000; ++i) {
    time += field.UntilNext();
    device_days += absl::ToDoubleHours(field.Next().lasts) / 24;
  }
  EXPECT_NEAR(device_days / (absl::ToDoubleHours(time) / 24) / kDevices, 0.004, 0.0002);
}

TEST(LightCluster, WhatFailsComesBack) {
  LightCluster cluster({.workload = SmallWorkload()});
  cluster.Register();
  cluster.Train();
  cluster.Break({{.device = 3, .lasts = absl::Hours(1)},
                 {.device = 70, .hardware = true, .lasts = absl::Hours(2)},
                 {.device = 71, .hardware = true, .lasts = absl::Hours(3)}});
  cluster.Run(absl::Minutes(30));
  const auto& jobs = cluster.machine().jobs();
  EXPECT_EQ(jobs.at(JobId{1}).state.layout->lost.size(), 1u);
  EXPECT_EQ(jobs.at(JobId{3}).state.layout->lost.size(), 2u);
  cluster.Run(absl::Hours(4));
  for (const auto& [id, job] : jobs) {
    EXPECT_EQ(job.state.phase, job::JobPhase::kRunning) << job.state.reason;
    EXPECT_TRUE(job.state.layout->lost.empty()) << ToString(id);
  }
  EXPECT_EQ(cluster.FailedShare(), 0);
}

// 5 failures are to be expected.
TEST(RunField, IsAFunctionOfItsSeed) {
  constexpr double kDays = 4;
  const Workload workload = SmallWorkload();
  const FieldRow first = RunField(workload, Policy::kOwn, 0.02, kDays, 5);
  const FieldRow again = RunField(workload, Policy::kOwn, 0.02, kDays, 5);
  EXPECT_EQ(first.trouble, "");
  EXPECT_GT(first.changes_a_day, 0);
  EXPECT_GT(first.failures_a_day, 0);
  EXPECT_NEAR(first.stood, 0, kRounding) << "all of the time is tallied";
  EXPECT_EQ(first.work_lost, again.work_lost);
  EXPECT_EQ(first.step_lost, again.step_lost);
  EXPECT_EQ(first.broken_off, again.broken_off);
  const FieldRow dropped = RunField(workload, Policy::kDropReplica, 0.02, kDays, 5);
  EXPECT_EQ(dropped.trouble, "");
  EXPECT_EQ(dropped.failures_a_day, first.failures_a_day);
  EXPECT_LT(first.work_lost, dropped.work_lost / 2);
}

}  // namespace
}  // namespace phalanx::scale
