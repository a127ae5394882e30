// From where a state can go on, and what that does to it.
#include "worker/train/training_state.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"

namespace phalanx::train {
namespace {

using testing::HasSubstr;

plan::Plan APlan(Epoch epoch = Epoch{1}, int32_t layers = 1) {
  job::JobSpec spec = support::AJob()
                          .Module("language", support::Llama({.layers = layers}))
                          .Batch(2, 1)
                          .Steps(20)
                          .Compute(job::Precision::kFp64);
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, 1), epoch);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : plan::Plan();
}

Decision Of(int64_t step, Verdict verdict = Verdict::kCommitted) {
  return {.step = step, .verdict = verdict, .gradient_scale = 0.25};
}

class TrainingStateTest : public testing::Test {
 protected:
  // Gradients of `step` stand in the buffers; `applied`: the optimizer has run, too.
  void Reduce(int64_t step, TrainingState& state) {
    PartState& part = *state.parts()[0];
    part.gradients().fill_(0.01 * static_cast<double>(step));
    state.set_reduced_step(step);
  }
  void Run(int64_t step, TrainingState& state, const Decision& decision) {
    Reduce(step, state);
    state.kernels().SetDecision(decision);
    ASSERT_TRUE(state.Optimize(plan_, *state.parts()[0], step, {}).ok());
    state.Account(decision);
  }
  at::Tensor Weights(TrainingState& state) { return state.parts()[0]->weights().clone(); }

  const plan::Plan plan_ = APlan();
  const BufferOptions options_{.compute = at::kDouble};
  const std::unique_ptr<TrainingState> owned_ = *TrainingState::Create(plan_, Rank{0}, options_);
  const std::unique_ptr<TrainingState> others_ = *TrainingState::Create(plan_, Rank{0}, options_);
  TrainingState &state_ = *owned_, &other_ = *others_;
};

TEST_F(TrainingStateTest, StepDecidedElsewhere_IsAppliedFromTheKeptGradients) {
  Run(1, state_, Of(1));
  Run(1, other_, Of(1));
  Run(2, other_, Of(2));  // what would have been

  Reduce(2, state_);
  const Start start{.decision = Of(2), .counts = {.updates = 2}};
  ASSERT_TRUE(state_.GoOn(plan_, start).ok());
  EXPECT_TRUE(at::equal(Weights(state_), Weights(other_)));
  EXPECT_EQ(state_.decided().step, 2);
  EXPECT_EQ(state_.counts().updates, 2);
  EXPECT_EQ(state_.StandingNow().homes.at(0).applied, 2);
}

TEST_F(TrainingStateTest, StepDecidedHereAndNotApplied_IsAppliedWithItsOwnUpdateCount) {
  Run(1, state_, Of(1));
  Run(1, other_, Of(1));
  Run(2, other_, Of(2));

  Reduce(2, state_);
  state_.Account(Of(2));
  ASSERT_TRUE(state_.GoOn(plan_, {.decision = Of(2), .counts = {.updates = 2}}).ok());
  EXPECT_TRUE(at::equal(Weights(state_), Weights(other_)));
}

TEST_F(TrainingStateTest, AppliedStep_IsNotAppliedAgain) {
  Run(1, state_, Of(1));
  const at::Tensor before = Weights(state_);
  const Start start{.decision = Of(1), .counts = {.updates = 1}};
  ASSERT_TRUE(state_.GoOn(plan_, start).ok());
  ASSERT_TRUE(state_.GoOn(plan_, start).ok());
  EXPECT_TRUE(at::equal(Weights(state_), before));
}

TEST_F(TrainingStateTest, SkippedStep_IsCountedAndUpdatesNothing) {
  Run(1, state_, Of(1));
  Reduce(2, state_);
  const at::Tensor before = Weights(state_);
  const Start start{.decision = Of(2, Verdict::kSkipped),
                    .counts = {.updates = 1, .skipped_in_a_row = 1}};
  ASSERT_TRUE(state_.GoOn(plan_, start).ok());
  EXPECT_TRUE(at::equal(Weights(state_), before));
  EXPECT_EQ(state_.StandingNow().homes.at(0).applied, 2);
  EXPECT_EQ(state_.counts().skipped_in_a_row, 1);
}

TEST_F(TrainingStateTest, Counts_FollowTheVerdicts) {
  state_.Account(Of(1));
  state_.Account(Of(2, Verdict::kSkipped));
  state_.Account(Of(3, Verdict::kEmpty));  // no failure, and none that ends a row of them
  state_.Account(Of(4, Verdict::kSkipped));
  EXPECT_EQ(state_.counts(), (Counts{.updates = 1, .skipped_in_a_row = 2}));
  state_.Account(Of(5));
  EXPECT_EQ(state_.counts(), (Counts{.updates = 2}));
}

TEST_F(TrainingStateTest, KeptGradientsOfAnotherStep_AreRefused) {
  Run(1, state_, Of(1));
  state_.set_reduced_step(0);  // step 2 had begun to clear them
  const absl::Status status = state_.GoOn(plan_, {.decision = Of(2), .counts = {.updates = 2}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("cannot go on from step 2"));
}

TEST_F(TrainingStateTest, StepBehindOrFarAhead_IsRefused) {
  Run(1, state_, Of(1));
  Run(2, state_, Of(2));
  for (const int64_t step : {1, 4}) {
    const absl::Status status =
        state_.GoOn(plan_, {.decision = Of(step), .counts = {.updates = step}});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << step;
    EXPECT_THAT(status.message(), HasSubstr("last decided step is 2"));
  }
}

TEST_F(TrainingStateTest, AnotherDecisionOfTheSameStep_IsRefused) {
  Run(1, state_, Of(1));
  // Done again in another layout, a step differs in the last bits of its sums alone.
  for (double Decision::*field :
       {&Decision::gradient_scale, &Decision::loss, &Decision::gradient_norm}) {
    Decision other = Of(1);
    other.*field = std::nextafter(other.*field, 9.0);
    EXPECT_THAT(state_.GoOn(plan_, {.decision = other, .counts = {.updates = 1}}).message(),
                HasSubstr("decided otherwise"));
  }
}

TEST_F(TrainingStateTest, OtherCounts_AreRefused) {
  Run(1, state_, Of(1));
  EXPECT_THAT(state_.GoOn(plan_, {.decision = Of(1), .counts = {.updates = 2}}).message(),
              HasSubstr("counts 1 updates"));
}

TEST_F(TrainingStateTest, FromTheBeginning_IsWhereAFreshStateStands) {
  EXPECT_TRUE(state_.GoOn(plan_, {}).ok());
  EXPECT_EQ(state_.StandingNow().decided.step, 0);
}

class AdoptedStateTest : public TrainingStateTest {
 protected:
  // `state_` after seven steps, as a reader would fill an empty one.
  std::unique_ptr<TrainingState> Filled() {
    for (int64_t step = 1; step <= 7; ++step) Run(step, state_, Of(step));
    auto filled = *TrainingState::CreateEmpty(plan_, Rank{0}, options_);
    PartState &from = *state_.parts()[0], &to = *filled->parts()[0];
    to.weights().copy_(from.weights());
    to.blocks()[0].first_moment.copy_(from.blocks()[0].first_moment);
    to.blocks()[0].second_moment.copy_(from.blocks()[0].second_moment);
    return filled;
  }
  const Start at_seven_{.decision = Of(7), .counts = {.updates = 7}};
};

TEST_F(AdoptedStateTest, NextStep_IsThatOfTheStateThatItCameFrom) {
  const auto adopted = Filled();
  adopted->Adopt(at_seven_);
  ASSERT_TRUE(adopted->GoOn(plan_, at_seven_).ok());
  EXPECT_EQ(adopted->StandingNow().homes.at(0).applied, 7);
  Run(8, *adopted, Of(8));
  Run(8, state_, Of(8));
  EXPECT_TRUE(at::equal(Weights(*adopted), Weights(state_)));
  EXPECT_EQ(adopted->counts(), state_.counts());
}

TEST_F(AdoptedStateTest, GradientsFromBefore_AreOfNoUse) {
  const auto adopted = Filled();
  Reduce(8, *adopted);
  adopted->Adopt(at_seven_);
  EXPECT_THAT(adopted->GoOn(plan_, {.decision = Of(8), .counts = {.updates = 8}}).message(),
              HasSubstr("cannot go on from step 8"));
}

TEST_F(AdoptedStateTest, GoOnElsewhere_IsRefused) {
  const auto adopted = Filled();
  adopted->Adopt(at_seven_);
  EXPECT_THAT(adopted->GoOn(plan_, {}).message(), HasSubstr("last decided step is 7"));
}

// Each block by itself, so that who copies state may go through it beside the updates.
TEST(HeldStateTest, Optimize_AwaitsReadersBlockByBlock_EachBeforeItChanges) {
  job::JobSpec spec =
      support::AJob().Module("language", support::Llama({.layers = 1}), {.dp = 2}).Batch(2, 1);
  const plan::Plan plan = *plan::MakePlan(spec, plan::MakeCluster(1, 2), Epoch{1});
  const auto state = *TrainingState::Create(plan, Rank{0}, {});
  PartState& part = *state->parts()[0];
  ASSERT_EQ(part.blocks().size(), 2);  // its own and what it mirrors of the other
  const auto changed = [](const StateBlock& block) {
    return block.first_moment.abs().sum().item<double>() > 0;
  };
  std::vector<const StateBlock*> waited;
  state->HoldState(&waited, {.wait =
                                 [&](const StateBlock* block) {
                                   ASSERT_NE(block, nullptr);
                                   EXPECT_FALSE(changed(*block));
                                   for (const StateBlock* before : waited)
                                     EXPECT_TRUE(changed(*before));
                                   waited.push_back(block);
                                 },
                             .reads = [] { return true; }});
  part.gradients().fill_(0.01);
  state->kernels().SetDecision(Of(1));
  ASSERT_TRUE(state->Optimize(plan, part, 1, {}).ok());
  EXPECT_THAT(waited, testing::ElementsAre(&part.blocks()[0], &part.blocks()[1]));
}

TEST_F(TrainingStateTest, HeldState_ThatLeavesItsLayout_IsAwaitedAsAWhole) {
  std::vector<const StateBlock*> waited;
  state_.HoldState(this, {.wait = [&](const StateBlock* block) { waited.push_back(block); },
                          .reads = [] { return true; }});
  ASSERT_TRUE(state_.Leave(plan_).ok());
  EXPECT_THAT(waited, testing::ElementsAre(nullptr));
}

// A device that waits for a reader is no device that stands still.
TEST_F(TrainingStateTest, HeldState_IsReadUntilTheReaderSaysOtherwise) {
  EXPECT_FALSE(state_.IsRead());
  bool reads = true;
  state_.HoldState(this, {.wait = [](const StateBlock*) {}, .reads = [&reads] { return reads; }});
  Run(1, state_, Of(1));
  EXPECT_TRUE(state_.IsRead());
  reads = false;
  EXPECT_FALSE(state_.IsRead());
  reads = true;
  state_.LetGo(this);
  EXPECT_FALSE(state_.IsRead());
}

TEST(TrainingStateBf16Test, GoOn_MakesTheParametersThoseOfTheirMasters) {
  job::JobSpec spec = support::AJob()
                          .Module("language", support::Llama({.layers = 1}))
                          .Batch(2, 1)
                          .Compute(job::Precision::kBf16);
  const auto plan = plan::MakePlan(spec, plan::MakeCluster(1, 1), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto state = *TrainingState::Create(*plan, Rank{0}, {.compute = at::kBFloat16});
  PartState& part = *state->parts()[0];
  const at::Tensor before = part.weights().clone();
  part.weights().fill_(7);  // garbage of an aborted collective
  ASSERT_TRUE(state->GoOn(*plan, {}).ok());
  for (const plan::LocalMatrix& matrix : part.parameters().matrices) {
    const int64_t count = matrix.rows * matrix.cols;
    EXPECT_TRUE(at::equal(part.weights().narrow(0, matrix.offset, count),
                          before.narrow(0, matrix.offset, count)))
        << plan::RoleName(matrix.role);
  }
}

}  // namespace
}  // namespace phalanx::train
