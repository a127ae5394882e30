// Replicas of several widths at once, of any modules, compute the plain model's step; and the homes
// of their state hold the same bits. Every width by itself: every_width_test.cc.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/oracle/training/cases.h"

namespace phalanx::oracle {
namespace {

using job::ScheduleName;
using support::AJob;
using support::Layout;

struct WidthsCase {
  NamedJob job;
  plan::RankList lost;
};

class WidthsTest : public testing::TestWithParam<WidthsCase> {};

TEST_P(WidthsTest, EqualThePlainModel) { ExpectEqualsPlain(GetParam().job, GetParam().lost); }

std::string NameOfCase(const testing::TestParamInfo<WidthsCase>& info) {
  return info.param.job.name;
}

WidthsCase Lost(const std::string& name, AJob job, std::vector<int32_t> lost) {
  job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
  WidthsCase made{.job = Named(name, std::move(job))};
  for (const int32_t rank : lost) made.lost.push_back(Rank{rank});
  return made;
}

// Eight query heads and blocks, so that every width has something; the vocabulary of 29 makes eight
// blocks of 4, the last one short.
job::Architecture EightHeads(int32_t kv_heads, bool tied = false, int32_t layers = 2) {
  return support::Llama({.hidden_size = 16,
                         .layers = layers,
                         .heads = 8,
                         .kv_heads = kv_heads,
                         .mlp_size = 38,
                         .block = 4,
                         .vocabulary = 29,
                         .context = 64,
                         .tied_head = tied});
}

AJob Language(job::Architecture architecture, const Layout& layout) {
  return AJob().Module("language", std::move(architecture), layout).Batch(6, 2);
}

std::vector<WidthsCase> Shapes() {
  std::vector<WidthsCase> cases;
  const auto add = [&](const std::string& name, AJob job, std::vector<int32_t> lost) {
    cases.push_back(Lost(name, std::move(job), std::move(lost)));
  };
  const Layout tp4_dp3{.tp = 4, .dp = 3};
  add("three_widths", Language(EightHeads(2), tp4_dp3), {5, 8, 10, 11});
  add("three_widths_tied", Language(EightHeads(4, true), tp4_dp3), {4, 9, 10, 11});
  add("all_hit_alike", Language(EightHeads(2), tp4_dp3), {0, 5, 10});
  add("first_slot_of_the_first", Language(EightHeads(8), {.tp = 3, .dp = 2}), {0});
  add("recomputed", Language(EightHeads(2), {.tp = 3, .dp = 2, .recompute = job::Recompute::kFull}),
      {4});
  const auto with_vision = [](const Layout& vision, const Layout& language) {
    return AJob()
        .Module("vision", TinyVision(), vision)
        .Module("language", EightHeads(2), language)
        .Batch(6, 2);
  };
  add("frozen_encoder",
      with_vision({.dp = 2, .frozen = true}, {.tp = 3, .dp = 2})
          .Edge("vision", "language", {.projector = 20}),
      {3});
  // Quick-GELU, GELU.
  const Layout tp3_dp2{.tp = 3, .dp = 2}, tp2_dp2{.tp = 2, .dp = 2};
  add("encoder_hit", with_vision(tp3_dp2, tp2_dp2).Edge("vision", "language", {.projector = 20}),
      {1});
  add("encoder_and_language_hit",
      with_vision(tp3_dp2, tp3_dp2).Edge("vision", "language", {.projector = 20}), {4, 6, 7});
  add("sounds_hit",
      AJob()
          .Module("audio", TinyAudio(), tp3_dp2)
          .Module("language", EightHeads(2), tp3_dp2)
          .Edge("audio", "language", {.projector = 20})
          .Batch(6, 2),
      {0, 10});
  add("one_device_hits_both",
      AJob()
          .Module("vision", TinyVision(), {.tp = 2, .dp = 3, .offset = 0})
          .Module("language", EightHeads(2), {.tp = 3, .dp = 2, .offset = 0})
          .Edge("vision", "language", {.projector = 20})
          .Batch(6, 2),
      {2});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, WidthsTest, testing::ValuesIn(Shapes()), NameOfCase);

struct HomesCase {
  std::string name;
  Layout layout;
  int32_t copies = 2;
  std::vector<int32_t> lost;
};

class HomesTest : public testing::TestWithParam<HomesCase> {};

// TrainInProcess() holds parameters, gradients and optimizer state of all homes to each other's
// bits after every step.
TEST_P(HomesTest, StateOfAllHomes_IsTheSameToTheBit) {
  const HomesCase& c = GetParam();
  for (const job::Precision precision : {job::Precision::kFp32, job::Precision::kBf16}) {
    job::JobSpec spec = Language(EightHeads(2, true, 4), c.layout).Compute(precision).Build();
    spec.recovery.state_copies = c.copies;
    spec.steps = 5;
    plan::RankList lost;
    for (const int32_t rank : c.lost) lost.push_back(Rank{rank});
    const auto plan = PlanWithout(spec, lost);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectProven(*plan);
    EXPECT_EQ(TrainInProcess(*plan, DataShapeOf(spec)).size(), 5u);
  }
}

std::vector<HomesCase> Homes() {
  std::vector<HomesCase> cases;
  const auto add = [&](const std::string& name, const Layout& layout, int32_t copies,
                       std::vector<int32_t> lost) {
    cases.push_back({name, layout, copies, std::move(lost)});
  };
  add("dp2", {.dp = 2}, 2, {});
  add("one_home", {.dp = 2}, 1, {});
  add("dp4_three_homes", {.dp = 4}, 3, {});
  add("tp2_dp3_pp2", {.tp = 2, .dp = 3, .pp = 2}, 2, {});
  add("widths_4_3_1", {.tp = 4, .dp = 3}, 2, {5, 8, 9, 11});
  add("widths_4_3_1_three_homes", {.tp = 4, .dp = 3}, 3, {5, 8, 9, 11});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Copies, HomesTest, testing::ValuesIn(Homes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace phalanx::oracle
