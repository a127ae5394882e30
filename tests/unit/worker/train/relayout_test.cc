// State that comes from one layout to another: every element has a value of its own, and each home
// of the new layout has it afterwards.
#include "worker/train/relayout.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/prng.h"
#include "core/plan/derivation.h"
#include "core/plan/loss.h"
#include "core/plan/moves.h"
#include "core/plan/ruler_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "tests/unit/worker/train/relayout_ranks.h"

namespace phalanx::train {
namespace {

using support::AJob;
using support::Layout;
using support::Llama;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

plan::Plan HealthyOf(AJob job) {
  const job::JobSpec spec = job.Build();
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

plan::Plan Without(const plan::Plan& before, const plan::RankList& lost) {
  auto next = plan::LayoutAfter(before, {.lost = lost, .spares = false});
  EXPECT_TRUE(next.ok()) << next.status();
  return *plan::Expand(before.spec, std::move(next->layout));
}

void ExpectOk(const std::map<Rank, absl::Status>& results) {
  for (const auto& [rank, status] : results) EXPECT_TRUE(status.ok()) << rank.value << status;
}

job::Architecture Decoder(int32_t layers = 2) {
  return Llama({.hidden_size = 16,
                .layers = layers,
                .heads = 8,
                .kv_heads = 4,
                .mlp_size = 38,
                .block = 4,
                .vocabulary = 29,
                .context = 64});
}
AJob Language(const Layout& layout, int32_t layers = 2) {
  AJob job = AJob().Module("language", Decoder(layers), layout).Batch(12, 1);
  job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
  return job;
}

struct RelayoutCase {
  std::string name;
  AJob job;
  std::vector<plan::RankList> losses;  // one after the other
};

class RelayoutTest : public testing::TestWithParam<RelayoutCase> {};

std::vector<plan::Plan> LayoutsOf(const RelayoutCase& c) {
  std::vector<plan::Plan> plans = {HealthyOf(c.job)};
  for (const plan::RankList& lost : c.losses) plans.push_back(Without(plans.back(), lost));
  plans.push_back(plans.front());
  return plans;
}

TEST_P(RelayoutTest, EveryHome_HasItsState) {
  const std::vector<plan::Plan> plans = LayoutsOf(GetParam());
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kDouble}) {
    Ranks ranks(plans.front(), compute);
    for (size_t i = 1; i < plans.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectOk(ranks.Enter(plans[i]));
      ranks.ExpectWhole();
    }
  }
}

TEST_P(RelayoutTest, Moves_NoMoreThanThePlanSays) {
  const std::vector<plan::Plan> plans = LayoutsOf(GetParam());
  Ranks ranks(plans.front());
  for (size_t i = 1; i + 1 < plans.size(); ++i) {
    ExpectOk(ranks.Enter(plans[i]));
    EXPECT_EQ(ranks.moved() * kStateArrays * 4, plan::MovesBetween(plans[i - 1], plans[i]).bytes);
  }
}

TEST_P(RelayoutTest, StoppedAnywhere_NothingIsLost) {
  const std::vector<plan::Plan> plans = LayoutsOf(GetParam());
  Prng prng(11);
  int32_t stopped = 0;
  for (int32_t run = 0; run < 4; ++run) {
    Ranks ranks(plans.front(), run % 2 == 0 ? at::kFloat : at::kBFloat16);
    for (size_t i = 1; i < plans.size(); ++i) {
      for (int32_t stops = 0; stops < 2; ++stops)
        stopped += !ranks.EnterOrStop(plans[i], static_cast<int64_t>(prng.Below(40)));
      // Now and then the next layout comes before this one does. With two homes alone the next loss
      // could then take the second.
      const bool spare = plans.front().spec.recovery.state_copies > 2;
      if (spare && prng.Below(2) == 0 && i + 1 < plans.size()) continue;
      ASSERT_TRUE(ranks.EnterOrStop(plans[i], kNever));
      ranks.ExpectWhole();
    }
  }
  EXPECT_GT(stopped, 0);
}

std::vector<RelayoutCase> Cases() {
  const auto ranks = [](std::vector<int32_t> numbers) {
    plan::RankList list;
    for (const int32_t number : numbers) list.push_back(Rank{number});
    return list;
  };
  std::vector<RelayoutCase> cases = {
      {"dp4", Language({.dp = 4}), {ranks({1})}},
      {"tp2_dp3", Language({.tp = 2, .dp = 3}), {ranks({3}), ranks({0})}},
      {"tp3_dp2_pp2", Language({.tp = 3, .dp = 2, .pp = 2}, 4), {ranks({4}), ranks({7})}},
      {"tp4_dp3", Language({.tp = 4, .dp = 3}), {ranks({5}), ranks({8, 10})}},
      {"replica_goes", Language({.dp = 4, .pp = 2}, 4), {ranks({2}), ranks({7})}},
      {"interleaved",
       Language({.dp = 3, .pp = 2}, 4).Schedule(job::ScheduleName::kInterleaved, 2),
       {ranks({3})}}};
  AJob three = Language({.tp = 2, .dp = 3});
  three.spec().recovery.state_copies = 3;
  cases.push_back({"three_homes", std::move(three), {ranks({2}), ranks({5})}});
  const auto with_vision = [](bool frozen, int32_t offset) {
    AJob job = AJob()
                   .Module("vision", support::ClipVision({.hidden_size = 16}),
                           {.tp = 2, .dp = 2, .frozen = frozen})
                   .Module("language", Decoder(), {.tp = 2, .dp = 2, .offset = offset})
                   .Edge("vision", "language", {.projector = 20})
                   .Batch(4, 1);
    job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
    return job;
  };
  cases.push_back({"frozen_vision", with_vision(true, -1), {ranks({1}), ranks({5})}});
  cases.push_back({"colocated_vision", with_vision(false, 0), {ranks({2})}});
  cases.push_back({"colocated_frozen", with_vision(true, 0), {ranks({1})}});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Layouts, RelayoutTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// From one that has restarted on what is left, with stages cut otherwise, to the healthy one.
class ReturnFromRestartTest : public testing::TestWithParam<RelayoutCase> {};

TEST_P(ReturnFromRestartTest, EveryHome_HasItsState_HoweverOftenItIsStopped) {
  AJob job = GetParam().job;
  job.spec().recovery.ladder = {job::Rung::kRestart};
  const plan::Plan healthy = HealthyOf(std::move(job));
  const plan::Plan restarted = Without(healthy, GetParam().losses.at(0));
  ASSERT_FALSE(plan::SameRulers(restarted, healthy));
  Prng prng(12);
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kDouble}) {
    Ranks ranks(restarted, compute);
    int32_t stopped = 0;
    for (int32_t stops = 0; stops < 3; ++stops)
      stopped += !ranks.EnterOrStop(healthy, static_cast<int64_t>(prng.Below(6)));
    EXPECT_GT(stopped, 0);
    ASSERT_TRUE(ranks.EnterOrStop(healthy, kNever));
    ranks.ExpectWhole();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ReturnFromRestartTest,
    testing::Values(RelayoutCase{"pp2", Language({.pp = 2}, 4), {{Rank{1}}}},
                    RelayoutCase{"pp3_of_two", Language({.pp = 3}, 5), {{Rank{1}}}},
                    RelayoutCase{"tp2_pp2", Language({.tp = 2, .pp = 2}, 4), {{Rank{2}}}},
                    RelayoutCase{
                        "interleaved",
                        Language({.pp = 2}, 4).Schedule(job::ScheduleName::kInterleaved, 2),
                        {{Rank{0}}}}),
    [](const auto& info) { return info.param.name; });

TEST(RelayoutOfRanksTest, BlocksThatBothLayoutsHave_StayWhereTheyAre) {
  const plan::Plan healthy = HealthyOf(Language({.tp = 2, .dp = 2, .pp = 2}, 4));
  // Another stage's rank: what belongs to the first stage stays.
  const Rank lost = healthy.TensorGroup(0, 0, 1)[0];
  const Rank stays = healthy.TensorGroup(0, 0, 0)[0];
  const plan::Plan after = Without(healthy, {lost});
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    Ranks ranks(healthy, compute);
    PartState& before = *ranks.of(stays.value).parts().at(0);
    const void* moment = before.blocks().at(0).first_moment.const_data_ptr();
    const void* weights = before.weights().const_data_ptr();
    ExpectOk(ranks.Enter(after));
    PartState& now = *ranks.of(stays.value).parts().at(0);
    EXPECT_EQ(now.blocks().at(0).first_moment.const_data_ptr(), moment);
    EXPECT_EQ(now.weights().const_data_ptr(), weights);
  }
}

TEST(RelayoutOfRanksTest, MirrorsThatLackTheirState_HoldNoneUntilTheyAreGivenIt) {
  const plan::Plan healthy = HealthyOf(Language({.dp = 3}));
  const plan::Plan after = Without(healthy, {Rank{2}});
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    Ranks ranks(healthy, compute);
    ranks.set_fills(false);
    ExpectOk(ranks.Enter(after));
    EXPECT_TRUE(ranks.of(0).Lacks());
    EXPECT_TRUE(ranks.of(1).Lacks());
    // The epoch ends before they are given any.
    ranks.set_fills(true);
    ExpectOk(ranks.Enter(after));
    EXPECT_FALSE(ranks.of(0).Lacks());
    ranks.ExpectWhole();
    ExpectOk(ranks.Enter(Without(after, {Rank{1}})));
    ranks.ExpectWhole();
  }
}

TEST(RelayoutOfRanksTest, LongStepsOfOneRank_LeaveMirrorsFewerOfThem) {
  const plan::Plan healthy = HealthyOf(Language({.dp = 3, .pp = 2}, 4));
  const plan::Plan after = Without(healthy, {healthy.replicas(0).At(2, 0, 0, 0)});
  const auto runs_with = [&](absl::Duration of_rank_0) {
    Ranks ranks(healthy);
    ranks.set_step([&](Rank rank) { return rank == Rank{0} ? of_rank_0 : absl::Seconds(1); });
    ExpectOk(ranks.Enter(after));
    ranks.ExpectWhole();
    std::set<int> runs;
    for (const auto& [rank, count] : ranks.fill_runs()) runs.insert(count);
    return runs;
  };
  // A bucket of each of two stages.
  EXPECT_THAT(runs_with(absl::Seconds(2)), ElementsAre(2));
  EXPECT_THAT(runs_with(absl::Seconds(6)), ElementsAre(1));
}

// Behind which number of steps mirrors have their state: within 10 s, or behind the first one.
TEST(RelayoutOfRanksTest, StepsOfAnyLength_LeaveMirrorsWhatEndsWithinTenSeconds) {
  const plan::Plan healthy = HealthyOf(Language({.dp = 3, .pp = 8}, 8));
  const plan::Plan after = Without(healthy, {healthy.replicas(0).At(2, 0, 0, 0)});
  const auto steps_with = [&](const std::function<absl::Duration(Rank)>& step) {
    Ranks ranks(healthy);
    ranks.set_step(step);
    ExpectOk(ranks.Enter(after));
    ranks.ExpectWhole();
    std::set<int> steps;
    for (const auto& [rank, count] : ranks.fill_runs()) steps.insert(count);
    return steps;
  };
  const auto all_take = [](absl::Duration step) { return [step](Rank) { return step; }; };
  // A bucket of each of eight stages.
  EXPECT_THAT(steps_with(all_take(absl::Milliseconds(100))), ElementsAre(4));
  EXPECT_THAT(steps_with(all_take(absl::Milliseconds(2600))), ElementsAre(3));
  EXPECT_THAT(steps_with(all_take(absl::Seconds(20))), ElementsAre(1));
  // Of ranks that disagree the longest counts, whoever says it.
  EXPECT_THAT(steps_with([](Rank rank) {
                return rank == Rank{5} ? absl::Seconds(20) : absl::Milliseconds(2600);
              }),
              ElementsAre(1));
  EXPECT_THAT(steps_with([](Rank rank) {
                return rank == Rank{0} ? absl::Milliseconds(2600) : absl::Milliseconds(100);
              }),
              ElementsAre(3));
}

// Ranks of the release before are in the same epoch and call nothing but exchanges of state.
TEST(RelayoutOfRanksTest, LongStepsUnderTheDerivationBefore_LeaveMirrorsFourOfThem_Unasked) {
  const plan::Plan healthy = HealthyOf(Language({.dp = 3, .pp = 2}, 4));
  plan::Plan after = Without(healthy, {healthy.replicas(0).At(2, 0, 0, 0)});
  after.layout.derivation = plan::kDerivationOfAgreedMirrorSteps - 1;
  Ranks ranks(healthy);
  ranks.set_step([](Rank) { return absl::Minutes(1); });
  // Over communicators that fail whoever gathers.
  ASSERT_TRUE(ranks.EnterOrStop(after, kNever));
  ranks.ExpectWhole();
  for (const auto& [rank, count] : ranks.fill_runs()) EXPECT_EQ(count, 2) << "two buckets";
}

TEST(RelayoutOfRanksTest, BytesThatChangeOnTheirWay_AreAnErrorThatNamesThem) {
  const plan::Plan healthy = HealthyOf(Language({.dp = 3}));
  const plan::Plan after = Without(healthy, {Rank{2}});
  Ranks ranks(healthy);
  const auto results = ranks.Enter(
      after,
      [](Rank rank,
         std::unique_ptr<comm::Communicator> inner) -> std::unique_ptr<comm::Communicator> {
        if (rank != Rank{0}) return inner;
        return std::make_unique<Corrupting>(std::move(inner));
      });
  EXPECT_TRUE(absl::IsDataLoss(results.at(Rank{0}))) << results.at(Rank{0});
  EXPECT_THAT(std::string(results.at(Rank{0}).message()),
              HasSubstr("rank 0 did not get from rank 1 what that sent of the state of module "
                        "language, stage 0, chunk 0, bucket 0: "));
  EXPECT_FALSE(results.at(Rank{1}).ok());
  ExpectOk(ranks.Enter(after));
  ranks.ExpectWhole();
}

// No step needs it: training goes on, and it is no home.
TEST(RelayoutOfRanksTest, MirrorThatIsGivenDamagedBytes_LacksThemUntilTheNextChange) {
  const plan::Plan healthy = HealthyOf(Language({.dp = 3}));
  const plan::Plan after = Without(healthy, {Rank{2}});
  Ranks ranks(healthy);
  ExpectOk(ranks.Enter(
      after,
      [&](Rank rank,
          std::unique_ptr<comm::Communicator> inner) -> std::unique_ptr<comm::Communicator> {
        if (rank != Rank{0}) return inner;
        // What primary homes need has come.
        return std::make_unique<Corrupting>(std::move(inner),
                                            [&] { return ranks.of(0).layout() == after.digest; });
      }));
  EXPECT_THAT(ranks.damaged().at(Rank{0}),
              AllOf(HasSubstr("rank 0 did not get from rank 1 what that sent of the mirrored state "
                              "of module language, bucket "),
                    HasSubstr(" bytes with another hash")));
  EXPECT_EQ(ranks.damaged().at(Rank{1}), "");
  EXPECT_TRUE(ranks.of(0).Lacks());
  EXPECT_FALSE(ranks.of(1).Lacks());
  // All know it, or one of them would wait for weights that the other does not give.
  EXPECT_THAT(ranks.whole(), ElementsAre(Pair(Rank{0}, false), Pair(Rank{1}, false)));
  ExpectOk(ranks.Enter(after));
  EXPECT_EQ(ranks.damaged().at(Rank{0}), "");
  EXPECT_THAT(ranks.whole(), ElementsAre(Pair(Rank{0}, true), Pair(Rank{1}, true)));
  EXPECT_FALSE(ranks.of(0).Lacks());
  ranks.ExpectWhole();
}

TEST(RelayoutOfRanksTest, StateThatNobodyHolds_IsNamed) {
  AJob job = Language({.dp = 3});
  job.spec().recovery.state_copies = 1;
  const plan::Plan healthy = HealthyOf(std::move(job));
  const plan::Plan after = Without(healthy, {Rank{2}});
  const auto state = *TrainingState::Create(healthy, Rank{0}, {});
  ASSERT_EQ(state->Leave(healthy), absl::OkStatus());
  const auto transfers = TransfersInto(after, {{Rank{0}, state->HoldingsNow()}});
  EXPECT_TRUE(absl::IsFailedPrecondition(transfers.status())) << transfers.status();
  EXPECT_THAT(std::string(transfers.status().message()),
              HasSubstr("no rank holds some optimizer state of module language, stage 0"));
}

TEST(RelayoutOfRanksTest, StateThatHasNotAppliedTheLastStep_DoesNotLeave) {
  const plan::Plan plan = HealthyOf(Language({.dp = 2}));
  const auto state = *TrainingState::Create(plan, Rank{0}, {});
  state->Account({.step = 1, .verdict = Verdict::kCommitted});
  EXPECT_TRUE(absl::IsFailedPrecondition(state->Leave(plan)));
  EXPECT_EQ(state->layout(), plan.digest);
}

}  // namespace
}  // namespace phalanx::train
