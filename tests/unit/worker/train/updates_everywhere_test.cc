// Where every replica is a home of all weights, each updates them all, to the bits of the others.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/derivation.h"
#include "core/plan/loss.h"
#include "core/plan/shares.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "tests/unit/worker/train/all_places.h"
#include "worker/train/training_state.h"

namespace phalanx::train {
namespace {

struct Case {
  std::string name;
  support::Layout layout;
  int32_t copies = 2;
  bool host = false;
  plan::RankList lost = {};
  bool everywhere = true;
};

plan::Plan PlanOf(const Case& c, int32_t derivation = plan::kDerivation) {
  support::AJob job;
  job.Module("language", support::Llama(), c.layout).Batch(12, 1).Steps(20);
  job.spec().recovery.state_copies = c.copies;
  if (c.host) job.spec().recovery.state_home = job::StateHome::kHost;
  const job::JobSpec spec = job;
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!c.lost.empty()) plan = plan::PlanWithout(*plan, c.lost);
  EXPECT_TRUE(plan.ok()) << plan.status();
  plan->layout.derivation = derivation;
  return *std::move(plan);
}

class UpdatesEverywhereTest : public testing::TestWithParam<Case> {};

// A rank that leads something and has no state of it would keep its weights of the step before.
TEST_P(UpdatesEverywhereTest, RanksHaveStateOfAllThatTheyLead_OrGather) {
  const plan::Plan plan = PlanOf(GetParam());
  EXPECT_EQ(plan::EveryReplicaIsHome(plan, 0), GetParam().everywhere);
  bool all = true, some = false;
  for (const plan::Place& place : AllPlaces(plan)) {
    const auto part = PartState::Outline(plan, place, 0, BufferOptions{});
    int64_t elements = 0;
    for (const StateBlock& block : part->blocks()) elements += block.elements;
    all = all && elements >= part->parameters().LedElements();  // of even shares padding, too
    some = true;
  }
  EXPECT_TRUE(some);
  EXPECT_EQ(all && plan.world > 1, GetParam().everywhere);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, UpdatesEverywhereTest,
    testing::Values(
        Case{.name = "dp2", .layout = {.dp = 2}},
        Case{.name = "tp2_dp2", .layout = {.tp = 2, .dp = 2}},
        Case{.name = "tp2_dp2_narrowed", .layout = {.tp = 2, .dp = 2}, .lost = {Rank{3}}},
        Case{.name = "dp3_of_three_homes", .layout = {.dp = 3}, .copies = 3},
        Case{.name = "dp3_shrunk", .layout = {.dp = 3}, .lost = {Rank{1}}},
        Case{.name = "dp3", .layout = {.dp = 3}, .everywhere = false},
        Case{.name = "one_home", .layout = {.dp = 2}, .copies = 1, .everywhere = false},
        Case{.name = "home_on_the_host", .layout = {.dp = 2}, .host = true, .everywhere = false}),
    [](const auto& test) { return test.param.name; });

// Ranks of the release before gather, and wait for those of this one.
TEST(UpdatesEverywhereTest, UnderTheDerivationBefore_RanksGather) {
  const Case c{.layout = {.dp = 2}};
  EXPECT_TRUE(plan::EveryReplicaIsHome(PlanOf(c), 0));
  EXPECT_FALSE(plan::EveryReplicaIsHome(PlanOf(c, plan::kOldestDerivation), 0));
}

TEST(UpdatesEverywhereTest, WeightsOfMirrors_AreTheBitsOfTheirPrimaries) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kDouble}) {
    SCOPED_TRACE(c10::toString(compute));
    const plan::Plan plan = PlanOf({.layout = {.dp = 2}});
    const Decision decision{.step = 1, .verdict = Verdict::kCommitted, .gradient_scale = 0.25};
    std::vector<at::Tensor> weights;
    for (const bool everywhere : {false, true, true}) {
      const Rank rank{weights.size() == 2 ? 1 : 0};
      const auto state = TrainingState::Create(plan, rank, {.compute = compute});
      ASSERT_TRUE(state.ok()) << state.status();
      PartState& part = *(*state)->parts()[0];
      const int64_t elements = part.gradients().numel();
      part.gradients().copy_(at::sin(at::arange(elements, part.gradients().options())));
      (*state)->kernels().SetDecision(decision);
      ASSERT_TRUE((*state)->Optimize(plan, part, 1, {.everywhere = everywhere}).ok());
      weights.push_back(part.weights());
      for (const StateBlock& block : part.blocks()) {
        if (!block.mirrors) continue;
        for (const StateRun& run : block.runs) {
          const at::Tensor master = block.master.narrow(0, run.state_offset, run.count);
          const at::Tensor weight = part.weights().narrow(0, run.gradient_offset, run.count);
          EXPECT_EQ(master.to(compute).equal(weight), everywhere) << block.bucket;
        }
      }
    }
    EXPECT_FALSE(weights[0].equal(weights[1])) << "what is gathered else";
    EXPECT_TRUE(weights[1].equal(weights[2])) << "of both ranks";
  }
}

}  // namespace
}  // namespace phalanx::train
