// What a plan says that its ranks take of host memory, against what they do take.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/loss.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/parameters.h"
#include "core/plan/shares.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "worker/checkpoint/host_copy.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/train/training_state.h"

namespace phalanx::checkpoint {
namespace {

using support::AJob;
using support::ClipVision;
using support::LargeLlama;
using support::Llama;

struct Case {
  std::string name;
  job::JobSpec spec;
  plan::RankList lost;
};

AJob WithCheckpoints(AJob job, job::StateHome home) {
  job.spec().checkpoint = job::Checkpoint{.directory = "checkpoints"};
  job.spec().recovery.state_home = home;
  return job;
}

std::vector<Case> Cases() {
  using enum job::StateHome;
  const auto language = [](const support::Layout& layout, bool tied = false) {
    return AJob().Module("language", Llama({.tied_head = tied}), layout).Batch(8, 1);
  };
  const auto graph = [](bool frozen) {
    return AJob()
        .Module("vision", ClipVision(), {.tp = 2, .dp = 2, .frozen = frozen})
        .Module("language", Llama(), {.tp = 2, .pp = 2})
        .Edge("vision", "language", {.projector = 32})
        .Batch(8, 2);
  };
  std::vector<Case> cases = {
      {"one rank", WithCheckpoints(language({}), kAuto)},
      {"replicas", WithCheckpoints(language({.dp = 4}), kHost)},
      {"mirrors", WithCheckpoints(language({.dp = 4}), kAuto)},
      {"tensor ranks that share KV heads", WithCheckpoints(language({.tp = 4, .dp = 2}), kHost)},
      {"tied ends of a pipeline", WithCheckpoints(language({.dp = 2, .pp = 2}, true), kHost)},
      {"frozen encoder", WithCheckpoints(graph(true), kAuto)},
      {"encoder that trains", WithCheckpoints(graph(false), kHost)},
      {"narrowed replica", WithCheckpoints(language({.tp = 4, .dp = 2}), kHost), {Rank{1}}},
      {"last replica", WithCheckpoints(language({.dp = 2}), kAuto), {Rank{0}}},
      {"no checkpoints", language({.tp = 2})},
  };
  for (const job::Precision compute : {job::Precision::kBf16, job::Precision::kFp64}) {
    AJob job = WithCheckpoints(graph(true), kHost);
    cases.push_back({"another precision", job.Compute(compute)});
  }
  return cases;
}

plan::Plan PlanOfCase(const Case& one) {
  const plan::Plan healthy =
      *plan::MakePlan(one.spec, plan::MakeCluster(1, one.spec.World()), Epoch{1});
  return one.lost.empty() ? healthy : *plan::PlanWithout(healthy, one.lost);
}

// What a rank may take more or less than the plan says, in bytes of one copy. Equal parts of
// buckets are taken to have equal parts of what a rank leads; they may have all of the rest, which
// is padding and copies of what others lead. Where shares are cut by widths, those of one width
// differ by two quanta a bucket and family of units. And sections end at boundaries.
int64_t ToleranceOf(const plan::Plan& plan, const plan::StageParameters& parameters,
                    const plan::Place& place) {
  constexpr int64_t kFamilies = 8;
  const int64_t elements =
      plan.replicas(place.module).EqualWidths(place.pp)
          ? parameters.trained_extent - parameters.LedElements()
          : 2 * plan::kShareQuantum * kFamilies * static_cast<int64_t>(parameters.buckets.size());
  const int64_t bytes = std::max<int64_t>(4, plan::BytesOf(plan.spec.compute));
  return 3 * (elements * bytes + plan::kHostSectionAlignment);
}

void ExpectNear(int64_t estimated, int64_t taken, int64_t tolerance) {
  EXPECT_NEAR(static_cast<double>(estimated), static_cast<double>(taken),
              static_cast<double>(tolerance));
  EXPECT_EQ(estimated == 0, taken == 0);
}

TEST(HostEstimateTest, EveryRank_TakesAsMuchAsThePlanSays) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.name);
    const plan::Plan plan = PlanOfCase(one);
    const std::vector<plan::MemoryEstimate> estimates = plan::EstimateMemory(plan);
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      SCOPED_TRACE(rank);
      const plan::HostEstimate& estimate = estimates[static_cast<size_t>(rank)].host;
      const auto state = *train::TrainingState::CreateEmpty(
          plan, Rank{rank}, {.compute = train::ComputeType(plan.spec.compute)});
      int64_t tolerance = 0;
      for (const auto& part : state->parts())
        tolerance += ToleranceOf(plan, part->parameters(), part->place());
      ExpectNear(estimate.copies, 2 * HostCopy::BytesNeeded(plan, *state), 2 * tolerance);
      const int64_t snapshot =
          plan.spec.checkpoint.has_value() ? (*Snapshot::Create(plan, *state))->bytes() : 0;
      ExpectNear(estimate.snapshot, snapshot, tolerance);
    }
  }
}

TEST(HostEstimateTest, WhatEqualPartsMayDifferBy_IsLittleOfAModelOfUsualSize) {
  AJob job = AJob().Module("language", LargeLlama({.layers = 4}), {.tp = 8, .dp = 4}).Batch(4, 1);
  const plan::Plan plan = *plan::MakePlan(job, plan::MakeCluster(4, 8), Epoch{1});
  for (plan::Place place{.module = 0, .width = 8}; place.tp < 8; ++place.tp) {
    const plan::StageParameters parameters = plan::ParametersOf(plan, place);
    EXPECT_LT(ToleranceOf(plan, parameters, place), 12 * parameters.LedElements() / 1000);
  }
}

}  // namespace
}  // namespace phalanx::checkpoint
