// What trains and what is computed twice: every combination of frozen and trained parts of two
// encoders, their projectors and the language module, and of recomputation.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/oracle/training/cases.h"

namespace phalanx::oracle {
namespace {

using job::Recompute;
using job::ScheduleName;
using support::AJob;
using support::Layout;

// Parts of a job that can be frozen, in the order in which names tell them.
enum Part : size_t { kVision, kVisionProjector, kLanguage, kAudio, kAudioProjector, kParts };
using Trained = std::array<bool, kParts>;

Part PartOf(const std::string& parameter) {
  const bool projector = absl::StrContains(parameter, "projector");
  if (absl::StartsWith(parameter, "vision/")) return projector ? kVisionProjector : kVision;
  if (absl::StartsWith(parameter, "audio/")) return projector ? kAudioProjector : kAudio;
  return kLanguage;
}

struct FreezeCase {
  NamedJob job;
  Trained trained = {};
};
std::string NameOfFreeze(const testing::TestParamInfo<FreezeCase>& info) {
  return info.param.job.name;
}

class FreezeTest : public testing::TestWithParam<FreezeCase> {};

TEST_P(FreezeTest, Fp64_EqualsThePlainModelAndOnlyWhatTrainsMoves) {
  const std::vector<TrainedStep> steps = ExpectEqualsPlain(GetParam().job);
  ASSERT_EQ(steps.size(), 3u);
  Trained moved = {};
  for (const auto& [name, after] : steps[2].parameters) {
    if (!at::equal(after, steps[0].parameters.at(name))) moved[PartOf(name)] = true;
  }
  EXPECT_EQ(moved, GetParam().trained);
}

// One or two encoders and a language module.
struct FreezeLayouts {
  Layout vision, language, audio = {.dp = 0};
  ScheduleName schedule = ScheduleName::k1F1B;
};

AJob JobOf(FreezeLayouts layouts, const Trained& trained) {
  layouts.vision.frozen = !trained[kVision];
  layouts.language.frozen = !trained[kLanguage];
  layouts.audio.frozen = !trained[kAudio];
  AJob job;
  job.Module("vision", TinyVision(), layouts.vision);
  if (layouts.audio.dp > 0) job.Module("audio", TinyAudio(), layouts.audio);
  job.Module("language", TinyLanguage(), layouts.language);
  job.Edge("vision", "language", {.projector = 20, .frozen = !trained[kVisionProjector]});
  if (layouts.audio.dp > 0) {
    job.Edge("audio", "language", {.projector = 20, .frozen = !trained[kAudioProjector]});
  }
  return job.Batch(6 * layouts.language.dp, 2).Schedule(layouts.schedule);
}

// Every combination in which something trains.
std::vector<FreezeCase> Combinations(const FreezeLayouts& layouts) {
  static constexpr const char* kNames[kParts] = {"vision", "projector", "language", "audio",
                                                 "audio_projector"};
  const size_t parts = layouts.audio.dp > 0 ? kParts : kAudio;
  std::vector<FreezeCase> cases;
  for (size_t bits = 1; bits < size_t{1} << parts; ++bits) {
    FreezeCase it;
    std::string name = "trained";
    for (size_t part = 0; part < parts; ++part) {
      it.trained[part] = (bits >> part & 1) != 0;
      if (it.trained[part]) absl::StrAppend(&name, "_", kNames[part]);
    }
    it.job = Named(name, JobOf(layouts, it.trained));
    cases.push_back(std::move(it));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(VisionTp2Dp2ToTp2Pp2, FreezeTest,
                         testing::ValuesIn(Combinations({.vision = {.tp = 2, .dp = 2},
                                                         .language = {.tp = 2, .pp = 2}})),
                         NameOfFreeze);
INSTANTIATE_TEST_SUITE_P(VisionPp2OnTheRanksOfPp2InThreePhases, FreezeTest,
                         testing::ValuesIn(Combinations({.vision = {.pp = 2},
                                                         .language = {.pp = 2, .offset = 0},
                                                         .schedule = ScheduleName::kThreePhase})),
                         NameOfFreeze);
INSTANTIATE_TEST_SUITE_P(VisionPp2BesideAudioTp2ToPp2ZeroBubble, FreezeTest,
                         testing::ValuesIn(Combinations({.vision = {.pp = 2},
                                                         .language = {.pp = 2},
                                                         .audio = {.tp = 2},
                                                         .schedule = ScheduleName::kZeroBubbleH1})),
                         NameOfFreeze);
INSTANTIATE_TEST_SUITE_P(VisionDp2AndAudioTp2OnTheRanksOfPp2, FreezeTest,
                         testing::ValuesIn(Combinations({.vision = {.dp = 2},
                                                         .language = {.pp = 2, .offset = 0},
                                                         .audio = {.tp = 2, .offset = 0}})),
                         NameOfFreeze);

class RecomputeTest : public testing::TestWithParam<NamedJob> {};

TEST_P(RecomputeTest, Fp64_EqualsThePlainModel) { ExpectEqualsPlain(GetParam()); }

std::vector<NamedJob> Recomputations() {
  struct Layouts {
    std::string name;
    Layout vision, language;
    ScheduleName schedule;
  };
  const std::vector<Layouts> all = {
      {"tp2_pp2_to_tp2_pp2", {.tp = 2, .pp = 2}, {.tp = 2, .pp = 2}, ScheduleName::k1F1B},
      {"dp2_to_pp2_zero_bubble_v", {.dp = 2}, {.pp = 2}, ScheduleName::kZeroBubbleV},
      {"dp2_on_pp2_three_phase", {.dp = 2}, {.pp = 2, .offset = 0}, ScheduleName::kThreePhase},
  };
  static constexpr const char* kNames[] = {"none", "selective", "full"};
  std::vector<NamedJob> jobs;
  for (Layouts layouts : all) {
    for (size_t vision = 0; vision < 3; ++vision) {
      for (size_t language = 0; language < 3; ++language) {
        layouts.vision.recompute = static_cast<Recompute>(vision);
        layouts.language.recompute = static_cast<Recompute>(language);
        // The other encoder and the decoder behind as the first ones.
        AJob job;
        job.Module("vision", TinyVision(), layouts.vision)
            .Module("language", TinyLanguage(), layouts.language)
            .Module("audio", TinyAudio(), {.recompute = layouts.vision.recompute})
            .Module("regressor", TinyRegressor(), {.recompute = layouts.language.recompute})
            .Edge("vision", "language", {.projector = 20})
            .Edge("audio", "language")
            .Edge("language", "regressor")
            .Batch(6, 2)
            .Schedule(layouts.schedule);
        jobs.push_back(
            Named(absl::StrCat(layouts.name, "_", kNames[vision], "_", kNames[language]), job));
      }
    }
  }
  return jobs;
}
INSTANTIATE_TEST_SUITE_P(Layouts, RecomputeTest, testing::ValuesIn(Recomputations()), NameOf);

}  // namespace
}  // namespace phalanx::oracle
