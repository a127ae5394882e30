// Replicas whose weights differ, and mirrors whose masters are not what these say, are found by one
// bit before training goes on.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/plan/loss.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "worker/train/part_reduction.h"
#include "worker/train/share_exchange.h"

namespace phalanx::train {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kWeights[] =
    "replicas hold different parameters of pipeline part 0 chunk 0 of module 0";
constexpr char kMirrors[] =
    "mirrors of optimizer state differ from the parameters of pipeline part 0 chunk 0 of module 0";

plan::Plan CopiedPlan(const support::Layout& layout) {
  support::AJob job;
  job.Module("language", support::Llama(), layout).Batch(4, 1);
  job.spec().recovery.state_copies = 2;
  const job::JobSpec spec = job;
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

plan::Plan TwoReplicas() { return CopiedPlan({.dp = 2}); }

// Ranks 0 and 1 are one replica, rank 2 is what is left of the other.
plan::Plan ReplicasOfTwoWidths() {
  const auto narrowed = plan::PlanWithout(CopiedPlan({.tp = 2, .dp = 2}), {Rank{3}});
  EXPECT_TRUE(narrowed.ok()) << narrowed.status();
  return *narrowed;
}

// What ranks say that all have the plan's initial weights, but for what `plant` does to some of
// them; "" where all is well.
std::vector<std::string> SaidOfCopies(const plan::Plan& plan, at::ScalarType compute,
                                      const std::function<void(Rank, PartState&)>& plant,
                                      PartReduction::Sums sums = PartReduction::Sums::kOfWords) {
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  comm::InProcessWorld world(plan.world);
  std::vector<std::unique_ptr<PartState>> states;
  for (Rank rank{0}; rank.value < plan.world; ++rank.value) {
    const std::vector<plan::Place> places = plan.PlacesOf(rank);
    if (places.empty()) continue;
    PartState& state = *states.emplace_back(
        std::make_unique<PartState>(plan, places[0], 0, BufferOptions{.compute = compute}));
    state.Initialise(plan, 1);
    plant(rank, state);
  }
  std::vector<std::string> said(states.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < states.size(); ++i) {
    ranks.emplace_back([&, i] {
      const plan::Place& place = states[i]->place();
      comm::Communicators communicators = world.Connect(specs, Rank{static_cast<int32_t>(i)});
      const int32_t data = plan::FindCommunicator(specs, plan::CommunicatorSpec::Use::kData,
                                                  plan.DataGroupOf(place));
      ReductionMeans means(at::kCPU);
      PartReduction reduction(plan::ReductionOf(plan, place, 0, states[i]->parameters()),
                              *states[i],
                              {.data = communicators.at(static_cast<size_t>(data)).get()}, means,
                              PartReduction::Order::kForward, sums);
      said[i] = std::string(reduction.VerifyCopies().message());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return said;
}

// The first block that the rank is a mirror of, or is the home of.
StateBlock& FirstBlock(PartState& state, bool mirrors) {
  for (StateBlock& block : state.blocks())
    if (block.mirrors == mirrors && !block.runs.empty()) return block;
  throw std::logic_error("there is no such block");
}

// The last bit of one element.
void Flip(at::Tensor& values, int64_t element) {
  values.view(BitsOf(values)).narrow(0, element, 1).bitwise_xor_(1);
}

// A weight of the first block of these.
void FlipWeight(PartState& state, bool mirrored) {
  Flip(state.weights(), FirstBlock(state, mirrored).runs.front().gradient_offset);
}

// A master of the first block that the rank mirrors.
void FlipMirror(PartState& state) {
  StateBlock& block = FirstBlock(state, /*mirrors=*/true);
  Flip(block.master, block.runs.back().state_offset + block.runs.back().count - 1);
}

TEST(VerifyCopiesTest, CopiesThatAreAlike_AreFine) {
  for (const plan::Plan& plan : {TwoReplicas(), ReplicasOfTwoWidths()}) {
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kDouble})
      EXPECT_THAT(SaidOfCopies(plan, compute, [](Rank, PartState&) {}), Each(IsEmpty()));
  }
}

TEST(VerifyCopiesTest, OneBitOfAWeight_IsFoundByBothReplicas) {
  const plan::Plan plan = TwoReplicas();
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const bool mirrored : {false, true}) {
      const auto said = SaidOfCopies(plan, compute, [&](Rank rank, PartState& state) {
        if (rank == Rank{1}) FlipWeight(state, mirrored);
      });
      EXPECT_THAT(said, ElementsAre(kWeights, kWeights));
    }
  }
}

// As releases before compare them: they tell one bit, and not two elements that stand in each
// other's place, as words do.
TEST(VerifyCopiesTest, SumsOfElements_AreThoseOfReleasesBefore) {
  using Sums = PartReduction::Sums;
  const plan::Plan plan = TwoReplicas();
  const auto swap = [](Rank rank, PartState& state) {
    if (rank != Rank{1}) return;
    const StateBlock& own = FirstBlock(state, /*mirrors=*/false);
    const at::Tensor two = state.weights().narrow(0, own.runs.front().gradient_offset, 2);
    ASSERT_FALSE(two[0].equal(two[1]));
    two.copy_(two.flip(0));
  };
  EXPECT_THAT(SaidOfCopies(plan, at::kBFloat16, swap, Sums::kOfElements), Each(IsEmpty()));
  EXPECT_THAT(SaidOfCopies(plan, at::kBFloat16, swap), ElementsAre(kWeights, kWeights));
  const auto flip = [](Rank rank, PartState& state) {
    if (rank == Rank{1}) FlipWeight(state, /*mirrored=*/false);
  };
  EXPECT_THAT(SaidOfCopies(plan, at::kBFloat16, flip, Sums::kOfElements),
              ElementsAre(kWeights, kWeights));
}

TEST(VerifyCopiesTest, OneBitOfAMirror_IsFoundByTheRankThatMirrors) {
  const plan::Plan plan = TwoReplicas();
  for (const at::ScalarType compute : {at::kFloat, at::kDouble}) {
    const auto said = SaidOfCopies(plan, compute, [](Rank rank, PartState& state) {
      if (rank == Rank{1}) FlipMirror(state);
    });
    EXPECT_THAT(said, ElementsAre("", kMirrors));
  }
}

// Replicas compare what goes between two of their ranks, and the home of it tells.
TEST(VerifyCopiesTest, OneBitOfAWeight_WhereReplicasDifferInWidth_IsFoundByItsHome) {
  const plan::Plan plan = ReplicasOfTwoWidths();
  EXPECT_THAT(SaidOfCopies(plan, at::kFloat,
                           [](Rank rank, PartState& state) {
                             if (rank == Rank{2}) FlipWeight(state, /*mirrored=*/false);
                           }),
              ElementsAre("", "", kWeights));
}

TEST(VerifyCopiesTest, OneBitOfAMirror_WhereReplicasDifferInWidth_IsFoundByTheRankThatMirrors) {
  const plan::Plan plan = ReplicasOfTwoWidths();
  EXPECT_THAT(SaidOfCopies(plan, at::kFloat,
                           [](Rank rank, PartState& state) {
                             if (rank == Rank{2}) FlipMirror(state);
                           }),
              ElementsAre("", "", kMirrors));
}

// It is given that between steps.
TEST(VerifyCopiesTest, WhatAMirrorLacks_IsNotLookedAt) {
  const plan::Plan plan = TwoReplicas();
  EXPECT_THAT(SaidOfCopies(plan, at::kFloat,
                           [](Rank rank, PartState& state) {
                             if (rank != Rank{1}) return;
                             FlipMirror(state);
                             StateBlock& block = FirstBlock(state, /*mirrors=*/true);
                             block.lacking = {{0, block.elements}};
                           }),
              Each(IsEmpty()));
}

}  // namespace
}  // namespace phalanx::train
