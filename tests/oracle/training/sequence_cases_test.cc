// Sequence parallelism: every layout trains as the plain model does, on slices as on whole rows.
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

class SequenceTest : public testing::TestWithParam<NamedJob> {};
TEST_P(SequenceTest, Fp64_EqualsThePlainModel) { ExpectEqualsPlain(GetParam()); }

// Every module of more than one tensor rank works on slices.
NamedJob Sliced(const std::string& name, AJob job) {
  for (job::Module& module : job.spec().modules) module.parallel.sequence = true;
  job.Batch(8, 4);
  NamedJob made = Named(name, std::move(job));
  made.data.images_max = 3;
  made.data.text_max = 9;
  return made;
}

AJob Language(const Layout& layout, const TinyDecoder& shape = {}) {
  return AJob().Module("language", TinyLanguage(shape), layout);
}

AJob Two(const Layout& vision, const Layout& language) {
  return AJob()
      .Module("vision", TinyVision(), vision)
      .Module("language", TinyLanguage(), language)
      .Edge("vision", "language", {.projector = 20});
}

std::vector<NamedJob> Jobs() {
  const TinyDecoder tied{.tied_head = true}, one_kv_head{.kv_heads = 1};
  const auto full = job::Recompute::kFull, selective = job::Recompute::kSelective;
  std::vector<NamedJob> jobs = {
      Sliced("tp2", Language({.tp = 2})),
      Sliced("tp3_tied", Language({.tp = 3}, tied)),
      Sliced("tp4_one_kv_head", Language({.tp = 4}, one_kv_head)),
      Sliced("tp4_pp2_tied", Language({.tp = 4, .pp = 2}, tied)),
      Sliced("tp3_dp2_pp2", Language({.tp = 3, .dp = 2, .pp = 2})),
      Sliced("tp1_pp2", Language({.pp = 2})),
      Sliced("recompute_full", Language({.tp = 3, .pp = 2, .recompute = full})),
      Sliced("recompute_selective", Language({.tp = 2, .recompute = selective})),
      Sliced("vision_tp2", Two({.tp = 2}, {.tp = 3})),
      Sliced("vision_tp3_pp2", Two({.tp = 3, .pp = 2}, {.tp = 2, .pp = 2})),
      Sliced("vision_frozen", Two({.tp = 2, .frozen = true}, {.tp = 2})),
      Sliced("vision_recompute_full", Two({.tp = 2, .recompute = full}, {.tp = 2})),
      Sliced("vision_recompute_selective", Two({.tp = 3, .recompute = selective}, {.tp = 2})),
      Sliced("language_frozen", Two({.tp = 2}, {.tp = 2, .pp = 2, .frozen = true})),
      Sliced("same_ranks", Two({.tp = 4, .offset = 0}, {.tp = 2, .pp = 2, .offset = 0})),
      Sliced("three_phase", Two({.dp = 4, .offset = 0}, {.tp = 2, .pp = 2, .offset = 0})
                                .Schedule(ScheduleName::kThreePhase)),
      Sliced("interleaved",
             Language({.tp = 2, .pp = 2}, tied).Schedule(ScheduleName::kInterleaved, 2)),
      Sliced("zero_bubble_h1", Language({.tp = 2, .pp = 2}).Schedule(ScheduleName::kZeroBubbleH1)),
      Sliced("zero_bubble_v",
             Language({.tp = 3, .pp = 2}, tied).Schedule(ScheduleName::kZeroBubbleV)),
      Sliced("audio_and_regressor", AJob()
                                        .Module("vision", TinyVision(), {.tp = 2})
                                        .Module("audio", TinyAudio(), {.tp = 3})
                                        .Module("language", TinyLanguage(), {.tp = 2, .pp = 2})
                                        .Module("regressor", TinyRegressor(), {.tp = 2, .pp = 2})
                                        .Edge("vision", "language", {.projector = 20})
                                        .Edge("audio", "language")
                                        .Edge("language", "regressor")
                                        .Edge("vision", "regressor")),
  };
  // Only one of two modules.
  jobs.push_back(Sliced("language_alone", Two({.tp = 2}, {.tp = 2})));
  jobs.back().spec.modules[0].parallel.sequence = false;
  // Fewer rows than ranks have slices.
  jobs.push_back(Sliced("few_rows", Language({.tp = 4, .pp = 2})));
  jobs.back().spec.batch.micro = 1;
  return jobs;
}
INSTANTIATE_TEST_SUITE_P(Layouts, SequenceTest, testing::ValuesIn(Jobs()), NameOf);

}  // namespace
}  // namespace phalanx::oracle
