// Stages of unequal width train as the plain model does.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/oracle/training/cases.h"

namespace phalanx::oracle {
namespace {

using job::ScheduleName;
using support::AJob;
using support::Layout;

struct StageWidths {
  NamedJob job;
  plan::RankList lost;
};

void PrintTo(const StageWidths& each, std::ostream* out) { *out << each.job.name; }

class StageWidthsTest : public testing::TestWithParam<StageWidths> {};

TEST_P(StageWidthsTest, StagesOfUnequalWidth_EqualThePlainModel) {
  ExpectEqualsPlain(GetParam().job, GetParam().lost);
}

StageWidths Made(const std::string& name, AJob job, const std::vector<int32_t>& lost) {
  job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
  StageWidths made{.job = NamedOfManyRows(name, std::move(job))};
  for (const int32_t rank : lost) made.lost.push_back(Rank{rank});
  return made;
}

std::vector<StageWidths> OfOneModule() {
  const TinyDecoder tied{.tied_head = true}, one_kv_head{.kv_heads = 1};
  return {
      Made("tp2_pp2_first_1", LanguageAlone({.tp = 2, .pp = 2}), {1}),
      Made("tp2_pp2_last_1_tied", LanguageAlone({.tp = 2, .pp = 2}, tied), {2}),
      Made("tp3_pp2_last_2", LanguageAlone({.tp = 3, .pp = 2}), {4}),
      Made("tp3_pp3_middle_2", LanguageAlone({.tp = 3, .pp = 3}, one_kv_head), {3}),
      Made("tp4_pp2_first_3_tied", LanguageAlone({.tp = 4, .pp = 2}, tied), {0}),
      Made("tp4_pp2_3_to_2", LanguageAlone({.tp = 4, .pp = 2}), {1, 4, 7}),
      Made("tp4_pp2_1_to_3", LanguageAlone({.tp = 4, .pp = 2}), {0, 1, 2, 6}),
      Made("tp4_pp3_4_to_3_to_2_tied", LanguageAlone({.tp = 4, .pp = 3}, tied), {4, 8, 11}),
      Made("recompute_full", LanguageAlone({.tp = 3, .pp = 2, .recompute = job::Recompute::kFull}),
           {0}),
      Made("recompute_selective",
           LanguageAlone({.tp = 3, .pp = 2, .recompute = job::Recompute::kSelective}), {5}),
      Made("dp2_alike", LanguageAlone({.tp = 3, .dp = 2, .pp = 2}, tied), {7, 9}),
      Made("dp2_alike_2_to_3", LanguageAlone({.tp = 3, .dp = 2, .pp = 2}, tied), {0, 5}),
      Made("dp2_one_replica", LanguageAlone({.tp = 3, .dp = 2, .pp = 2}, tied), {10}),
      Made("dp2_other_stages", LanguageAlone({.tp = 4, .dp = 2, .pp = 2}), {1, 2, 13}),
      Made("pipeline_inside_data",
           LanguageAlone({.tp = 3, .dp = 2, .pp = 2, .order = kPipelineInsideData}), {1, 7}),
  };
}

std::vector<StageWidths> UnderSchedules() {
  const TinyDecoder tied{.tied_head = true};
  std::vector<StageWidths> cases;
  const auto add = [&](ScheduleName schedule, int32_t chunks, const std::string& of) {
    const auto name = [&of](const std::string& what) { return absl::StrCat(of, "_", what); };
    const auto under = [&](AJob job) { return job.Schedule(schedule, chunks); };
    cases.push_back(Made(name("first"), under(LanguageAlone({.tp = 3, .pp = 2}, tied)), {1}));
    cases.push_back(Made(name("last"), under(LanguageAlone({.tp = 3, .pp = 2}, tied)), {5}));
    cases.push_back(
        Made(name("encoder"), under(VisionAndLanguage({.tp = 2}, {.tp = 2, .pp = 2})), {0}));
    cases.push_back(
        Made(name("language"), under(VisionAndLanguage({.tp = 2}, {.tp = 3, .pp = 2})), {3, 7}));
    cases.push_back(
        Made(name("one_replica"), under(LanguageAlone({.tp = 3, .dp = 2, .pp = 2}, tied)), {4}));
    cases.push_back(
        Made(name("both"), under(VisionAndLanguage({.tp = 4}, {.tp = 3, .pp = 2})), {2, 5}));
  };
  add(ScheduleName::k1F1B, 1, "1f1b");
  add(ScheduleName::kInterleaved, 2, "interleaved");
  add(ScheduleName::kZeroBubbleH1, 1, "zero_bubble_h1");
  add(ScheduleName::kZeroBubbleV, 1, "zero_bubble_v");
  return cases;
}

std::vector<StageWidths> WithEncoders() {
  const auto phases = [](AJob job) { return job.Schedule(ScheduleName::kThreePhase); };
  return {
      Made("encoder_pp2_last", VisionAndLanguage({.tp = 3, .pp = 2}, {.tp = 2}), {4}),
      Made("encoder_pp2_first_frozen",
           VisionAndLanguage({.tp = 3, .pp = 2, .frozen = true}, {.tp = 2}), {1}),
      Made("encoders_dp2_alike", VisionAndLanguage({.tp = 2, .dp = 2}, {.tp = 3}), {1, 2}),
      Made("encoder_dp4_to_3", VisionAndLanguage({.dp = 4}, {.tp = 4}), {6}),
      Made("encoder_tp4_to_dp2", VisionAndLanguage({.tp = 4}, {.dp = 2}), {0}),
      Made("same_ranks_encoder_dp",
           VisionAndLanguage({.dp = 4, .offset = 0}, {.tp = 2, .pp = 2, .offset = 0}), {3}),
      Made("same_ranks_both", VisionAndLanguage({.tp = 4, .offset = 0}, {.tp = 4, .offset = 0}),
           {1}),
      Made("same_ranks_encoder_dp2_alike",
           VisionAndLanguage({.tp = 2, .dp = 2, .offset = 0}, {.tp = 4, .offset = 0}), {1, 2}),
      Made("same_ranks_encoder_wider",
           VisionAndLanguage({.tp = 4, .offset = 0}, {.tp = 2, .pp = 2, .offset = 0}), {2}),
      Made("three_phase_language",
           phases(VisionAndLanguage({.dp = 4, .offset = 0}, {.tp = 2, .pp = 2, .offset = 0})), {2}),
      Made("three_phase_one_replica",
           phases(VisionAndLanguage({.tp = 2, .dp = 4, .offset = 0},
                                    {.tp = 2, .dp = 2, .pp = 2, .offset = 0})),
           {1, 6}),
      Made("three_phase_both",
           phases(VisionAndLanguage({.tp = 4, .offset = 0}, {.tp = 2, .pp = 2, .offset = 0})), {3}),
      Made("regressor_and_audio",
           AJob()
               .Module("vision", TinyVision(), {.tp = 2})
               .Module("audio", TinyAudio(), {.tp = 2})
               .Module("language", TinyLanguage(), {.tp = 3, .pp = 2})
               .Module("regressor", TinyRegressor(), {.tp = 2, .pp = 2})
               .Edge("vision", "language", {.projector = 20})
               .Edge("audio", "language")
               .Edge("language", "regressor")
               .Edge("vision", "regressor"),
           {0, 5, 9, 10}),
  };
}

// The same where every module works on slices of its rows.
std::vector<StageWidths> OnSlices() {
  std::vector<StageWidths> cases = OfOneModule();
  for (const StageWidths& each : UnderSchedules()) cases.push_back(each);
  for (const StageWidths& each : WithEncoders()) cases.push_back(each);
  for (StageWidths& each : cases) {
    for (job::Module& module : each.job.spec.modules) module.parallel.sequence = true;
  }
  return cases;
}

std::string NameOfWidths(const testing::TestParamInfo<StageWidths>& info) {
  return info.param.job.name;
}
INSTANTIATE_TEST_SUITE_P(OneModule, StageWidthsTest, testing::ValuesIn(OfOneModule()),
                         NameOfWidths);
INSTANTIATE_TEST_SUITE_P(Schedules, StageWidthsTest, testing::ValuesIn(UnderSchedules()),
                         NameOfWidths);
INSTANTIATE_TEST_SUITE_P(OnSlices, StageWidthsTest, testing::ValuesIn(OnSlices()), NameOfWidths);
INSTANTIATE_TEST_SUITE_P(Encoders, StageWidthsTest, testing::ValuesIn(WithEncoders()),
                         NameOfWidths);

}  // namespace
}  // namespace phalanx::oracle
