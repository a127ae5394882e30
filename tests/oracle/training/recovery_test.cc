// Ranks that die and return, at any moment: the others go on in another layout with the state that
// is left, every step is taken once, and all is as if nothing had happened.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/prng.h"
#include "core/plan/moves.h"
#include "tests/oracle/training/cases.h"
#include "tests/oracle/training/epochs.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::Layout;

struct RecoveryCase {
  NamedJob job;
  std::vector<plan::RankList> losses;  // one after the other
  bool retire = false;                 // nothing is lost with them
};

class RecoveryTest : public testing::TestWithParam<RecoveryCase> {
 protected:
  void SetUp() override {
    spec_ = GetParam().job.spec;
    spec_.steps = static_cast<int64_t>(2 * GetParam().losses.size()) + 6;
    plain_ = TrainPlain(spec_, GetParam().job.data, spec_.steps);
  }

  static bool Lose(EpochsInProcess& epochs, const plan::RankList& lost,
                   std::optional<int64_t> stop_at = std::nullopt) {
    return GetParam().retire ? epochs.Retire(lost, stop_at) : epochs.Lose(lost, stop_at);
  }
  // After a whole step: homes hold the same bits, and the parameters are the plain model's.
  void ExpectHeld(const EpochsInProcess& epochs) {
    SCOPED_TRACE(epochs.step());
    const TrainedStep held = epochs.Held();
    const TrainedStep& plain = plain_.at(static_cast<size_t>(epochs.step() - 1));
    const WorstTensor worst = Compare(held.parameters, plain.parameters);
    EXPECT_LE(worst.error, 1e-9) << worst.name;
    EXPECT_NEAR(held.decision.loss, plain.decision.loss, 1e-9 * plain.decision.loss);
  }
  // Every rank told the steps that it took part in, each once and in order, as the plain model has
  // them; someone told each.
  void ExpectTold(const EpochsInProcess& epochs) {
    std::map<int64_t, int32_t> tellers;
    for (int32_t rank = 0; rank < epochs.world(); ++rank) {
      int64_t last = 0;
      for (const train::StepSummary& step : epochs.told(rank)) {
        EXPECT_GT(step.step, last) << "rank " << rank;
        last = step.step;
        const double loss = plain_.at(static_cast<size_t>(step.step - 1)).decision.loss;
        EXPECT_NEAR(step.loss, loss, 1e-9 * loss) << "rank " << rank << " step " << step.step;
        ++tellers[step.step];
      }
      EXPECT_EQ(last, spec_.steps) << "rank " << rank;
    }
    EXPECT_EQ(tellers.size(), static_cast<size_t>(spec_.steps));
  }

  job::JobSpec spec_;
  std::vector<TrainedStep> plain_;
};

TEST_P(RecoveryTest, LossesAndAReturn_DoNotShow) {
  EpochsInProcess epochs(spec_, GetParam().job.data);
  const auto run = [&](int64_t steps) {
    for (; steps > 0; --steps) {
      epochs.RunSteps(1);
      ExpectHeld(epochs);
    }
  };
  run(2);
  int64_t planned = 0;
  for (const plan::RankList& lost : GetParam().losses) {
    const plan::Plan before = epochs.plan();
    ASSERT_TRUE(Lose(epochs, lost));
    planned += plan::MovesBetween(before, epochs.plan()).bytes;
    ExpectProven(epochs.plan());
    run(2);
  }
  const int64_t moved = epochs.moved();
  EXPECT_EQ(moved > 0, planned > 0);
  ASSERT_TRUE(epochs.ReturnAll());
  EXPECT_GT(epochs.moved(), moved);
  run(1);
  ASSERT_TRUE(epochs.Run(std::nullopt));
  ExpectHeld(epochs);
  ExpectTold(epochs);
}

TEST_P(RecoveryTest, MirrorsThatFollowBehindAStep_DoNotShow) {
  EpochsInProcess epochs(spec_, GetParam().job.data);
  epochs.LetMirrorsFollow();
  epochs.RunSteps(2);
  for (const plan::RankList& lost : GetParam().losses) {
    ASSERT_TRUE(Lose(epochs, lost));
    epochs.RunSteps(2);
    ExpectHeld(epochs);
  }
  ASSERT_TRUE(epochs.ReturnAll());
  epochs.RunSteps(1);  // ends before they have anything
  ASSERT_TRUE(epochs.Run(std::nullopt));
  ExpectHeld(epochs);
  ExpectTold(epochs);
}

TEST_P(RecoveryTest, EpochsAndMovesThatEndAnywhere_DoNotShow) {
  EpochsInProcess unbroken(spec_, GetParam().job.data);
  ASSERT_TRUE(unbroken.Run(std::nullopt));
  const auto a_step = static_cast<uint64_t>(unbroken.operations() / spec_.steps);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    EpochsInProcess epochs(spec_, GetParam().job.data);
    const auto anywhere = [&](uint64_t operations) {
      return static_cast<int64_t>(prng.Below(operations));
    };
    for (const plan::RankList& lost : GetParam().losses) {
      ASSERT_FALSE(epochs.Run(Ending{.kind = Ending::Kind::kAbort, .at = anywhere(2 * a_step)}));
      // The survivors' moves are ended too, and go on into the same layout.
      bool moved = Lose(epochs, lost, anywhere(60));
      while (!moved) {
        moved = prng.Below(2) == 0 ? epochs.MoveOn(anywhere(60)) : epochs.MoveOn();
      }
    }
    if (epochs.Run(Ending{.kind = Ending::Kind::kAbort, .at = anywhere(a_step)})) {
      // One rank alone waits for nobody who could end it.
      ASSERT_EQ(epochs.plan().layout.lost.size() + 1, static_cast<size_t>(epochs.plan().world));
      ExpectHeld(epochs);
      continue;
    }
    const bool returned = epochs.ReturnAll(anywhere(60));
    ASSERT_TRUE(returned || epochs.MoveOn());
    ASSERT_TRUE(epochs.Run(std::nullopt));
    ExpectHeld(epochs);
    ExpectTold(epochs);
  }
}

// Of a job with three homes: the second loss comes while the first one's state is on its way.
TEST(RecoveryOfThreeHomesTest, LossInTheMiddleOfARecovery_DoesNotShow) {
  AJob builder = AJob()
                     .Module("language", TinyLanguage({.layers = 2}), {.tp = 2, .dp = 4})
                     .Batch(12, 2)
                     .Steps(6);
  builder.spec().recovery.state_copies = 3;
  builder.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
  const NamedJob job = Named("three_homes", std::move(builder));
  job::JobSpec spec = job.spec;
  spec.steps = 6;
  const std::vector<TrainedStep> plain = TrainPlain(spec, job.data, spec.steps);
  int32_t stopped = 0;
  for (int64_t at = 0; at < 40; at += 3) {
    SCOPED_TRACE(at);
    EpochsInProcess epochs(spec, job.data);
    epochs.RunSteps(2);
    stopped += !epochs.Lose({Rank{1}}, at);
    ASSERT_TRUE(epochs.Lose({Rank{4}}));
    epochs.RunSteps(2);
    ASSERT_TRUE(epochs.ReturnAll());
    ASSERT_TRUE(epochs.Run(std::nullopt));
    const WorstTensor worst = Compare(epochs.Held().parameters, plain.back().parameters);
    EXPECT_LE(worst.error, 1e-9) << worst.name;
  }
  EXPECT_GT(stopped, 0);
}

RecoveryCase Lost(const std::string& name, AJob job, std::vector<std::vector<int32_t>> losses) {
  job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
  RecoveryCase made{.job = Named(name, std::move(job))};
  for (const std::vector<int32_t>& ranks : losses) {
    plan::RankList& lost = made.losses.emplace_back();
    for (const int32_t rank : ranks) lost.push_back(Rank{rank});
  }
  return made;
}

job::Architecture EightHeads(int32_t layers = 2, bool tied = false) {
  return support::Llama({.hidden_size = 16,
                         .layers = layers,
                         .heads = 8,
                         .kv_heads = 2,
                         .mlp_size = 38,
                         .block = 4,
                         .vocabulary = 29,
                         .context = 64,
                         .tied_head = tied});
}

AJob Language(const Layout& layout, int32_t layers = 2, bool tied = false) {
  return AJob().Module("language", EightHeads(layers, tied), layout).Batch(12, 2);
}

std::vector<RecoveryCase> Cases() {
  std::vector<RecoveryCase> cases;
  const auto add = [&](const std::string& name, AJob job,
                       std::vector<std::vector<int32_t>> losses) {
    cases.push_back(Lost(name, std::move(job), std::move(losses)));
  };
  add("dp4", Language({.dp = 4}), {{1}});
  add("dp4_twice", Language({.dp = 4}), {{3}, {0}});
  add("tp2_dp2", Language({.tp = 2, .dp = 2}), {{1}});
  add("tp2_dp3_twice", Language({.tp = 2, .dp = 3}), {{1}, {4}});
  add("tp3_dp2_pp2", Language({.tp = 3, .dp = 2, .pp = 2}), {{4}, {8}});
  add("tied_pp2_dp3", Language({.dp = 3, .pp = 2}, 2, true), {{2}});
  add("interleaved",
      Language({.tp = 2, .dp = 2, .pp = 2}, 4).Schedule(job::ScheduleName::kInterleaved, 2), {{5}});
  add("zero_bubble",
      Language({.tp = 2, .dp = 2, .pp = 2}, 4).Schedule(job::ScheduleName::kZeroBubbleH1), {{0}});
  add("two_at_once", Language({.tp = 3, .dp = 3}), {{1, 8}});
  add("two_encoders",
      AJob()
          .Module("vision", TinyVision(), {.dp = 3})
          .Module("audio", TinyAudio(), {.tp = 2, .dp = 2})
          .Module("language", EightHeads(), {.tp = 2, .dp = 2})
          .Edge("vision", "language", {.projector = 20})
          .Edge("audio", "language", {.projector = 20})
          .Batch(6, 2),
      {{1}, {4}, {8}});
  add("frozen_encoder",
      AJob()
          .Module("vision", TinyVision(), {.tp = 2, .dp = 2, .frozen = true})
          .Module("language", EightHeads(), {.tp = 2, .dp = 2})
          .Edge("vision", "language", {.projector = 20})
          .Batch(6, 2),
      {{1}, {6}});
  add("colocated_three_phase",
      AJob()
          .Module("vision", TinyVision(), {.tp = 2, .dp = 2, .offset = 0})
          .Module("language", EightHeads(), {.tp = 2, .dp = 2, .offset = 0})
          .Edge("vision", "language", {.projector = 20})
          .Batch(6, 1)
          .Schedule(job::ScheduleName::kThreePhase),
      {{2}});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Layouts, RecoveryTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.job.name; });

// Lower degrees instead.
std::vector<RecoveryCase> Restarts() {
  std::vector<RecoveryCase> cases;
  const auto add = [&](const std::string& name, AJob job, std::vector<std::vector<int32_t>> losses,
                       bool retire) {
    RecoveryCase made = Lost(name, std::move(job), std::move(losses));
    made.job.spec.recovery.ladder = {job::Rung::kRestart};
    made.retire = retire;
    cases.push_back(std::move(made));
  };
  // Every share has a home left.
  add("dp2", Language({.dp = 2}), {{1}}, false);
  add("tp2_dp2", Language({.tp = 2, .dp = 2}), {{1}}, false);
  add("pp2_dp3_twice", Language({.dp = 3, .pp = 2}, 4), {{1}, {3}}, false);
  add("encoder",
      AJob()
          .Module("vision", TinyVision(), {.dp = 3})
          .Module("language", EightHeads(), {.tp = 2, .dp = 2})
          .Edge("vision", "language", {.projector = 20})
          .Batch(6, 2),
      {{1}, {4}}, false);
  // What is lost comes from elsewhere.
  add("pp2", Language({.pp = 2}), {{1}}, true);
  add("pp3_twice", Language({.pp = 3}, 5), {{1}, {0}}, true);
  add("tp2", Language({.tp = 2}), {{0}}, true);
  add("tp2_pp2_twice", Language({.tp = 2, .pp = 2}, 4), {{1}, {3}}, true);
  add("tied_pp2", Language({.pp = 2}, 2, true), {{0}}, true);
  add("dp2_pp2", Language({.dp = 2, .pp = 2}, 4), {{0, 1, 2}}, true);
  add("interleaved", Language({.pp = 2}, 4).Schedule(job::ScheduleName::kInterleaved, 2), {{1}},
      true);
  add("zero_bubble_v", Language({.pp = 2}, 4).Schedule(job::ScheduleName::kZeroBubbleV), {{0}},
      true);
  add("staged_encoder",
      AJob()
          .Module("vision", TinyVision(), {.pp = 2})
          .Module("language", EightHeads(), {.pp = 2})
          .Edge("vision", "language", {.projector = 20})
          .Batch(6, 2),
      {{1}, {2}}, true);
  add("colocated_three_phase",
      AJob()
          .Module("vision", TinyVision(), {.dp = 2, .offset = 0})
          .Module("language", EightHeads(), {.pp = 2, .offset = 0})
          .Edge("vision", "language", {.projector = 20})
          .Batch(6, 1)
          .Schedule(job::ScheduleName::kThreePhase),
      {{1}}, true);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Restarts, RecoveryTest, testing::ValuesIn(Restarts()),
                         [](const auto& info) { return info.param.job.name; });

}  // namespace
}  // namespace phalanx::oracle
