// Every schedule on several layouts, six microbatches a replica.
#include <gtest/gtest.h>

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

class ScheduleTest : public testing::TestWithParam<NamedJob> {};
TEST_P(ScheduleTest, Fp64_EqualsThePlainModel) { ExpectEqualsPlain(GetParam()); }

struct NamedSchedule {
  std::string name;
  job::Schedule schedule;
};

NamedJob Scheduled(const std::string& name, AJob job, const job::Schedule& schedule) {
  job.spec().schedule = schedule;
  const auto& language = job.spec().modules[static_cast<size_t>(job.spec().language)];
  job.Batch(6 * language.parallel.dp, 1);
  return Named(name, job);
}

std::vector<std::pair<std::string, AJob>> AnyLayouts() {
  const job::Architecture language = TinyLanguage({.layers = 6});
  return {
      {"language_dp2_pp2", AJob().Module("language", language, {.dp = 2, .pp = 2})},
      {"tied_language_tp2_pp3",
       AJob().Module("language", TinyLanguage({.layers = 7, .tied_head = true}),
                     {.tp = 2, .pp = 3})},
      {"vision_dp2_to_tp2_pp2", AJob()
                                    .Module("vision", TinyVision(), {.dp = 2})
                                    .Module("language", language, {.tp = 2, .pp = 2})
                                    .Edge("vision", "language", {.projector = 20})},
      {"vision_pp2_beside_audio_to_pp3", AJob()
                                             .Module("vision", TinyVision(), {.pp = 2})
                                             .Module("audio", TinyAudio(), {.tp = 2})
                                             .Module("language", language, {.pp = 3})
                                             .Edge("vision", "language", {.projector = 20})
                                             .Edge("audio", "language")},
      {"vision_dp4_on_the_ranks_of_tp2_pp2",
       AJob()
           .Module("vision", TinyVision(), {.dp = 4})
           .Module("language", language, {.tp = 2, .pp = 2, .offset = 0})
           .Edge("vision", "language", {.projector = 20})},
      {"vision_and_audio_share_ranks_beside_pp2",
       AJob()
           .Module("vision", TinyVision(), {.dp = 2})
           .Module("audio", TinyAudio(), {.tp = 2, .offset = 0})
           .Module("language", language, {.pp = 2})
           .Edge("vision", "language", {.projector = 20})
           .Edge("audio", "language")},
      {"vision_to_pp2_to_regressor_pp2", AJob()
                                             .Module("vision", TinyVision())
                                             .Module("language", language, {.pp = 2})
                                             .Module("regressor", TinyRegressor(), {.pp = 2})
                                             .Edge("vision", "language")
                                             .Edge("vision", "regressor")
                                             .Edge("language", "regressor")},
      {"frozen_vision_to_dp2_pp2", AJob()
                                       .Module("vision", TinyVision(), {.frozen = true})
                                       .Module("language", language, {.dp = 2, .pp = 2})
                                       .Edge("vision", "language")},
  };
}

std::vector<NamedJob> OnAnyLayout() {
  const std::vector<NamedSchedule> schedules = {
      {"auto", {.name = ScheduleName::kAuto}},
      {"1f1b", {.name = ScheduleName::k1F1B}},
      {"interleaved", {.name = ScheduleName::kInterleaved, .chunks = 2}},
      {"zero_bubble_h1", {.name = ScheduleName::kZeroBubbleH1}},
      {"zero_bubble_v", {.name = ScheduleName::kZeroBubbleV}},
  };
  std::vector<NamedJob> jobs;
  for (const NamedSchedule& schedule : schedules) {
    for (const auto& [name, job] : AnyLayouts()) {
      jobs.push_back(Scheduled(absl::StrCat(schedule.name, "_", name), job, schedule.schedule));
    }
  }
  return jobs;
}
INSTANTIATE_TEST_SUITE_P(OnAnyLayout, ScheduleTest, testing::ValuesIn(OnAnyLayout()), NameOf);

std::vector<std::pair<std::string, AJob>> SharedLayouts() {
  auto pair = [](const Layout& vision, Layout language) {
    language.offset = 0;
    return AJob()
        .Module("vision", TinyVision(), vision)
        .Module("language", TinyLanguage(), language)
        .Edge("vision", "language", {.projector = 20});
  };
  return {
      {"dp4_tp2_pp2", pair({.dp = 4}, {.tp = 2, .pp = 2})},
      {"dp4_pp4", pair({.dp = 4}, {.pp = 4})},
      {"tp2_dp2_to_dp2_pp2",
       pair({.tp = 2, .dp = 2}, {.dp = 2, .pp = 2, .order = kPipelineInsideData})},
      {"tp2_pp2_to_tp2_pp2", pair({.tp = 2, .pp = 2}, {.tp = 2, .pp = 2})},
      {"one_rank", pair({}, {})},
      {"frozen_dp2_pp2", pair({.dp = 2, .frozen = true}, {.pp = 2})},
      {"vision_and_audio_and_language",
       AJob()
           .Module("vision", TinyVision(), {.dp = 2})
           .Module("audio", TinyAudio(), {.tp = 2, .offset = 0})
           .Module("language", TinyLanguage(), {.pp = 2, .offset = 0})
           .Edge("vision", "language", {.projector = 20})
           .Edge("audio", "language")},
      {"audio_and_regressor_elsewhere",
       AJob()
           .Module("vision", TinyVision(), {.dp = 2})
           .Module("language", TinyLanguage(), {.pp = 2, .offset = 0})
           .Module("audio", TinyAudio(), {.offset = 2})
           .Module("regressor", TinyRegressor(), {.dp = 2})
           .Edge("vision", "language")
           .Edge("audio", "language")
           .Edge("language", "regressor")
           .Edge("vision", "regressor")},
  };
}

std::vector<NamedJob> InThreePhases() {
  const std::vector<NamedSchedule> schedules = {
      {"whole", {.name = ScheduleName::kThreePhase}},
      {"encoder_chunks_2", {.name = ScheduleName::kThreePhase, .encoder_chunks = 2}},
      {"encoder_chunks_6", {.name = ScheduleName::kThreePhase, .encoder_chunks = 6}},
  };
  std::vector<NamedJob> jobs;
  for (const NamedSchedule& schedule : schedules) {
    for (const auto& [name, job] : SharedLayouts()) {
      jobs.push_back(Scheduled(absl::StrCat(schedule.name, "_", name), job, schedule.schedule));
      if (job.Build().modules[static_cast<size_t>(job.Build().language)].parallel.pp != 2) continue;
      job::Schedule folded = schedule.schedule;
      folded.chunks = 2;
      jobs.push_back(Scheduled(absl::StrCat(schedule.name, "_chunks_2_", name), job, folded));
    }
  }
  return jobs;
}
INSTANTIATE_TEST_SUITE_P(InThreePhases, ScheduleTest, testing::ValuesIn(InThreePhases()), NameOf);

}  // namespace
}  // namespace phalanx::oracle
