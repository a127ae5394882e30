#include "core/schedule/power.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/schedule/power_bound.h"
#include "core/schedule/profile_cost.h"
#include "tests/support/profiles.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using support::LargeClipVision;
using support::LargeLlama;
using support::Llama;
using support::Powered;

constexpr ClockRange kRange = {
    .fast_mhz = 2000, .slow_mhz = 1000, .idle_watts = 100, .limit_watts = 500};
// Half the clock takes twice as long, and a fourth of the dynamic joules: 900 W and 200 W.
constexpr WorkAtClocks kProducts = {
    .fast_seconds = 1, .slow_seconds = 2, .fast_joules = 900, .slow_joules = 400};
// 400 = 800 (f / 2000)^3.
const double kProductsClock = 2000 * std::cbrt(0.5);

TEST(PowerTest, Clock_WorkThatFollowsIt_IsTheCubeRootOfThePower) {
  EXPECT_NEAR(SustainedClock(kRange, kProducts, 0), kProductsClock, 1e-6);
  EXPECT_NEAR(SecondsAt(kRange, kProductsClock, 1, 2), 1 / std::cbrt(0.5), 1e-9);
}

TEST(PowerTest, Clock_WorkOfMemory_IsTheSquareRootOfThePower) {
  // No slower at half the clock: 500 = 100 + 800 (f / 2000)^2.
  const WorkAtClocks memory = {
      .fast_seconds = 1, .slow_seconds = 1, .fast_joules = 900, .slow_joules = 300};
  EXPECT_NEAR(SustainedClock(kRange, memory, 0), 2000 * std::sqrt(0.5), 1e-6);
  EXPECT_EQ(SecondsAt(kRange, 1200, 1, 1), 1);
}

TEST(PowerTest, Clock_OfADeviceThatWaits_IsHigher) {
  const double some = SustainedClock(kRange, kProducts, 0.2);
  EXPECT_GT(some, kProductsClock);
  EXPECT_LT(some, 2000);
  // 900 J + 100 W of a second are 1,000 J of two: within the limit.
  EXPECT_EQ(SustainedClock(kRange, kProducts, 1), 2000);
}

TEST(PowerTest, Clock_OfAPointThatCannotBe_StaysInItsRange) {
  const ClockRange tight = {
      .fast_mhz = 2000, .slow_mhz = 1000, .idle_watts = 100, .limit_watts = 100.1};
  EXPECT_GE(SustainedClock(tight, kProducts, 0), 250);
  // Measured faster at the lower clock: noise.
  EXPECT_EQ(SecondsAt(kRange, 1000, 1, 0.99), 1);
}

job::JobSpec StagedDecoder(int32_t stages = 1) {
  return AJob().Module("language", Llama({.layers = 4}), {.pp = stages}).Batch(8, 1);
}

TEST(PowerTest, Costs_OfOneDevice_AreThoseAtItsClock) {
  const plan::Plan plan = PlanOf(StagedDecoder());
  const Pipeline pipeline = MakePipeline(plan);
  const SustainedCosts capped(plan, pipeline, Powered(NominalProfile(), 900, 2000), 1);
  ASSERT_EQ(capped.clocks().size(), 1u);
  EXPECT_NEAR(capped.clocks()[0], kProductsClock, 1e-6);
  const PartCost& cost = capped.costs().parts[0][0];
  const PartCost alone = CostFromProfile(plan, NominalProfile(), 1).parts[0][0];
  const double slower = 1 / std::cbrt(0.5);
  EXPECT_NEAR(cost.forward, alone.forward * slower, 1e-9 * alone.forward);
  EXPECT_NEAR(cost.backward_input, alone.backward_input * slower, 1e-9 * alone.backward_input);
  EXPECT_NEAR(cost.backward_weight, alone.backward_weight * slower, 1e-9 * alone.backward_weight);
  EXPECT_NEAR(cost.update, alone.update * slower, 1e-9 * alone.update);
  EXPECT_NEAR(capped.parts()[0].total(), cost.forward + cost.backward_input + cost.backward_weight,
              1e-9 * alone.forward);
}

TEST(PowerTest, Costs_WithinTheLimitOrWithoutPower_AreThoseOfTheProfile) {
  const plan::Plan plan = PlanOf(StagedDecoder());
  const Pipeline pipeline = MakePipeline(plan);
  const double forward = CostFromProfile(plan, NominalProfile(), 1).parts[0][0].forward;
  const SustainedCosts cool(plan, pipeline, Powered(NominalProfile(), 499, 2000), 1);
  EXPECT_EQ(cool.clocks()[0], 2000);
  EXPECT_DOUBLE_EQ(cool.costs().parts[0][0].forward, forward);
  const SustainedCosts unknown(plan, pipeline, NominalProfile(), 1);
  EXPECT_EQ(unknown.clocks()[0], 0);
  EXPECT_EQ(unknown.costs().parts[0][0].forward, forward);
}

TEST(PowerTest, Clock_OfAnUpdateBesideThePasses_HasItsEnergyButNotItsTime) {
  // All work draws 900 W at 2,000 MHz: 800 W beside idling, a fourth of the joules at half the
  // clock.
  const plan::Plan plan =
      PlanOf(AJob().Module("language", Llama({.layers = 4}), {.dp = 2}).Batch(8, 1));
  const Pipeline pipeline = MakePipeline(plan);
  const SustainedCosts capped(plan, pipeline, Powered(NominalProfile(), 900, 2000), 1);
  const PartCost cost = CostFromProfile(plan, NominalProfile(), 1).parts[0][0];
  ASSERT_FALSE(cost.slices.empty());
  const double beside =
      4 * (cost.forward + cost.backward_input + cost.backward_weight) + cost.norm + cost.prepare;
  // 800 (beside + update) (f / 2000)^2 = 400 beside (2000 / f).
  EXPECT_NEAR(capped.clocks()[0], 2000 * std::cbrt(0.5 * beside / (beside + cost.update)), 1e-6);
}

TEST(PowerTest, Costs_OfAPipeline_EachDeviceHasItsClock) {
  // The stage that waits most keeps the highest.
  const plan::Plan plan = PlanOf(StagedDecoder(2));
  const Pipeline pipeline = MakePipeline(plan);
  const DeviceProfile profile = Powered(NominalProfile(), 900, 2000);
  const SustainedCosts capped(plan, pipeline, profile, 1);
  ASSERT_EQ(capped.clocks().size(), 2u);
  WorkModel model(plan.spec, profile, 1);
  const std::vector<PassSeconds> passes = PassesOf(plan, pipeline, model);
  const size_t busiest = passes[0].total() > passes[1].total() ? 0 : 1;
  EXPECT_LT(capped.clocks()[busiest], capped.clocks()[1 - busiest]);
  EXPECT_GE(capped.clocks()[busiest], kProductsClock - 1e-6);
}

// As large as those of docs/performance.md, all rows through the head.
job::JobSpec FiveBillion() {
  return AJob()
      .Module("vision", LargeClipVision())
      .Module("language", LargeLlama())
      .Edge("vision", "language", {.projector = 4096})
      .Batch(4, 4)
      .Compute(job::Precision::kBf16);
}

// Of an H200, measured by hand before there was a program to measure it, without pauses: so each
// figure is at whatever clock the limit left.
constexpr char kByHand[] = R"({
  "version": 2,
  "name": "h200",
  "measured": {
    "device": "NVIDIA H200, NVLink all to all",
    "software": "torch 2.11.0+cu130, NCCL 2.28.9, bf16",
    "driver": null,
    "power_limit_watts": 700,
    "temperature_celsius": null,
    "clock_mhz": null,
    "source": "each product and attention timed alone, a message and a ring by NCCL; passes over memory, the update and the launch: docs/decisions/0029-pointwise-kernels-are-ours.md; FP8, each figure 0.12 s of calls without pause: docs/decisions/0032-fp8.md"
  },
  "products": [
    {"rows": 16384, "inputs": 4096, "outputs": 6144, "forward": 1.01e-3, "input_gradient": 1.17e-3, "weight_gradient": 1.02e-3},
    {"rows": 16384, "inputs": 4096, "outputs": 4096, "forward": 0.78e-3, "input_gradient": 0.82e-3, "weight_gradient": 0.76e-3},
    {"rows": 16384, "inputs": 4096, "outputs": 28672, "forward": 5.50e-3, "input_gradient": 5.52e-3, "weight_gradient": 5.77e-3},
    {"rows": 16384, "inputs": 14336, "outputs": 4096, "forward": 2.75e-3, "input_gradient": 2.87e-3, "weight_gradient": 2.80e-3},
    {"rows": 16384, "inputs": 4096, "outputs": 128256, "forward": 25.3e-3, "input_gradient": 25.3e-3, "weight_gradient": 25.5e-3}
  ],
  "fp8": {
    "products": [
      {"rows": 16384, "inputs": 4096, "outputs": 6144, "forward": 0.636e-3, "input_gradient": 0.749e-3, "weight_gradient": 0.684e-3},
      {"rows": 16384, "inputs": 4096, "outputs": 4096, "forward": 0.439e-3, "input_gradient": 0.454e-3, "weight_gradient": 0.445e-3},
      {"rows": 16384, "inputs": 4096, "outputs": 28672, "forward": 3.028e-3, "input_gradient": 2.948e-3, "weight_gradient": 3.059e-3},
      {"rows": 16384, "inputs": 14336, "outputs": 4096, "forward": 1.513e-3, "input_gradient": 1.552e-3, "weight_gradient": 1.563e-3}
    ],
    "cast_bytes_per_second": 3.73e12
  },
  "attention": [
    {"rows": 16384, "length": 4096, "heads": 32, "head_size": 128, "causal": true, "forward": 0.90e-3, "backward": 2.80e-3},
    {"rows": 9216, "length": 576, "heads": 16, "head_size": 64, "causal": false, "forward": 0.08e-3, "backward": 0.21e-3}
  ],
  "memory_bytes_per_second": 4.02e12,
  "update_bytes_per_second": 4.10e12,
  "launch": 2.6e-6,
  "power": null,
  "message": {"bytes_per_second": 356e9, "latency": 18e-6},
  "collective": {"bytes_per_second": 330e9, "latency": 27e-6},
  "network": null,
  "unestimated_bytes": null
})";

// One H200: its parts, timed alone, add up to 765 ms without the update. In the step's own order
// they take 841 ms with it at 1,410 MHz and 700 W. If work followed the clock, the parts were timed
// at 1,528 MHz.
TEST(PowerTest, Costs_OfFiveBillionParameters_AreAboutWhatABoardKeepsUp) {
  const job::JobSpec spec = FiveBillion();
  const auto h200 = ReadProfile(kByHand);
  ASSERT_TRUE(h200.ok()) << h200.status();
  WorkModel model(spec, *h200, 4);
  double passes = 0;
  for (const int32_t module : {0, 1}) {
    passes +=
        model
            .OfModule({.module = module,
                       .rows = model.RowsOfLane(module, static_cast<double>(spec.batch.micro), 1)})
            .total();
  }
  EXPECT_NEAR(passes, 0.765, 0.03 * 0.765);

  const double update = 0.011, clock = 1410 * 0.841 / 0.776, idle = 120;
  const double fast = passes + update, dynamic = (700 - idle) * 0.841 * std::pow(clock / 1410, 2);
  const ClockRange board = {
      .fast_mhz = clock, .slow_mhz = clock / 2, .idle_watts = idle, .limit_watts = 700};
  const WorkAtClocks work = {.fast_seconds = fast,
                             .slow_seconds = 2 * fast,
                             .fast_joules = idle * fast + dynamic,
                             .slow_joules = idle * 2 * fast + dynamic / 4};
  const double kept = SustainedClock(board, work, 0);
  EXPECT_NEAR(kept, 1410, 0.03 * 1410);
  EXPECT_NEAR(SecondsAt(board, kept, work.fast_seconds, work.slow_seconds), 0.841, 0.03 * 0.841);
}

// They hide behind passes, and the board's power is spent on them all the same.
TEST(PowerTest, CollectivesBesidePasses_LowerTheClockByTheirJoules) {
  AJob job;
  job.Module("language", FiveBillion().modules[1].architecture, {.dp = 2})
      .Batch(8, 4)
      .Compute(job::Precision::kBf16);
  const plan::Plan plan = PlanOf(job);
  const Pipeline pipeline = MakePipeline(plan);
  DeviceProfile profile = *FindProfile("h200");
  const auto seconds_at = [&](double joules_per_byte) {
    profile.collective.joules_per_byte = joules_per_byte;
    const SustainedCosts costs(plan, pipeline, profile, 4);
    double seconds = 0;
    for (const PassSeconds& part : costs.parts()) seconds += pipeline.microbatches * part.total();
    return seconds;
  };
  double carried = 0;
  const plan::UpdateBytes bytes = UpdatesOf(plan)[0][0];
  for (const double one : {bytes.reduced, bytes.gathered, bytes.mirror_sums}) carried += one;
  const double free = seconds_at(0), paid = seconds_at(1e-9);
  const double alone =
      carried * 1e-9 / (profile.measured.power_limit_watts - profile.power->idle_watts);
  EXPECT_GT(paid - free, 0.5 * alone);
  EXPECT_LT(paid - free, 2 * alone);
}

TEST(PowerTest, LeastWithinLimit_IsBelowWhatIsKeptUp) {
  const job::JobSpec spec = AJob()  // of one device, which never waits
                                .Module("language", FiveBillion().modules[1].architecture)
                                .Batch(16, 4)
                                .Compute(job::Precision::kBf16);
  const plan::Plan plan = PlanOf(spec);
  const Pipeline pipeline = MakePipeline(plan);
  const auto sum = [](const std::vector<PassSeconds>& parts) {
    double seconds = 0;
    for (const PassSeconds& part : parts) seconds += part.total();
    return seconds;
  };
  const auto of_kept = [&](const DeviceProfile& profile, const DeviceProfile& other) {
    WorkModel model(spec, other, 4);
    return sum(PassesOf(plan, pipeline, model)) /
           sum(SustainedCosts(plan, pipeline, profile, 4).parts());
  };
  const DeviceProfile h200 = *FindProfile("h200"), powered = support::Powered(h200, 650, 1980);
  EXPECT_LT(of_kept(h200, *LeastWithinLimit(h200)), 1);
  EXPECT_LT(of_kept(powered, *LeastWithinLimit(powered)), 1);
  // Where all work draws as much the clock of the profile tells less.
  EXPECT_GT(of_kept(powered, *LeastWithinLimit(powered)), 1.02 * of_kept(powered, powered));
}

TEST(PowerTest, LeastWithinLimit_OfADeviceThatItDoesNotSlow_IsNothing) {
  EXPECT_FALSE(LeastWithinLimit(NominalProfile()).has_value());
  EXPECT_FALSE(LeastWithinLimit(support::Powered(NominalProfile(), 400, 1980)).has_value());
}

}  // namespace
}  // namespace phalanx::schedule
