// What this release refuses at submit, plans all the same, and warns about.
#include "core/job/not_yet.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/core/job/document.h"

namespace phalanx::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Later {
  const char* name;
  const char* from;
  const char* to;
  const char* violation;
};

class NotYetTest : public ::testing::TestWithParam<Later> {};

TEST_P(NotYetTest, Submit_RefusesByName_AndPlanDoesNot) {
  const std::string text = With(GetParam().from, GetParam().to);
  EXPECT_THAT(Wrong(text, Purpose::kSubmit), ElementsAre(GetParam().violation));
  EXPECT_THAT(Wrong(text, Purpose::kPlan), IsEmpty());
}

constexpr Later kLater[] = {
    {"Context", "tp: 2, pp: 2", "tp: 2, cp: 2",
     "spec.modules[1].parallel.cp: 2: this release does not train with context parallelism yet"},
    {"Expert", "tp: 2, pp: 2", "tp: 2, ep: 2",
     "spec.modules[1].parallel.ep: 2: this release does not train with expert parallelism yet"},
    {"ExpertTensor", "tp: 2, pp: 2", "tp: 2, expt_tp: 2",
     "spec.modules[1].parallel.expt_tp: 2: this release does not train with tensor-parallel "
     "experts "
     "yet"},
    {"Weights", "- name: vision", "- name: vision\n      weights: clip",
     "spec.modules[0].weights: clip: this release does not load weights yet"},
};
INSTANTIATE_TEST_SUITE_P(Features, NotYetTest, ::testing::ValuesIn(kLater),
                         [](const auto& info) { return std::string(info.param.name); });

// Everything that a module graph, its layouts and its schedule may say is trained.
TEST(NotYetTest, GraphsAndSchedules_AreNotRefused) {
  const std::pair<const char*, const char*> trained[] = {
      {"steps: 300", "steps: 300\n  schedule: {name: zero_bubble_v}"},
      {"steps: 300", "steps: 300\n  schedule: {name: interleaved, chunks: 2}"},
      {"ranks: 4, tp: 2, pp: 2}\n      offset: 2", "ranks: 2, tp: 2}\n      offset: vision"},
      {"offset: 2", "offset: 3"},
      {"- name: vision", "- name: vision\n      frozen: true"},
      {"- name: vision", "- name: vision\n      recompute: full"},
      {"type: mlp, hidden_size: 192", "frozen: true"},
      {"family: clip_vision, hidden_size: 128, layers: 4, heads: 4, mlp_size: 512, image_size: 64, "
       "patch_size: 16",
       "family: whisper, hidden_size: 128, layers: 4, heads: 4, mlp_size: 512, mel_bins: 80, "
       "frames: 20"},
      {"  edges:\n",
       "    - name: denoiser\n      architecture: {family: regressor, hidden_size: 192, layers: 1, "
       "heads: 6, mlp_size: 512, context: 64}\n  edges:\n    - {from: language, to: denoiser}\n"},
  };
  for (const auto& [from, to] : trained) {
    EXPECT_THAT(Wrong(With(from, to), Purpose::kSubmit), IsEmpty()) << to;
  }
}

TEST(NotYetTest, WrittenDefaults_AreNotRefused) {
  std::string text = With("steps: 300",
                          "steps: 300\n  priority: 0\n  preemptible: false\n"
                          "  schedule: {name: auto, chunks: 1, encoder_chunks: 1}\n"
                          "  resources: {spares: 0, node_selector: {}}\n  trace: false");
  text =
      With("- name: vision",
           "- name: vision\n      frozen: false\n      recompute: none\n      weights: null", text);
  text = With("tp: 2, pp: 2", "tp: 2, cp: 1, pp: 2, ep: 1, expt_tp: 1", text);
  EXPECT_THAT(Wrong(text), IsEmpty());
}

TEST(NotYetTest, Restart_IsInForce) {
  const auto job =
      wire::ReadJobFile(With("steps: 300",
                             "steps: 300\n  time_limit: 1h\n  checkpoint: {every: "
                             "50}\n  recovery: {widths: own, ladder: [restart]}\n  trace: true"),
                        Purpose::kSubmit);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->warnings, IsEmpty());
}

TEST(NotYetTest, RungsInForce_HaveNoWarnings) {
  const auto job = wire::ReadJobFile(
      With("steps: 300",
           "steps: 300\n  recovery: {ladder: [shrink, drop-replica, wait], budget: {total: 3}}"),
      Purpose::kSubmit);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->warnings, IsEmpty());
}

TEST(NotYetTest, DocumentWithoutThem_HasNoWarnings) {
  const auto job = wire::ReadJobFile(kDocument, Purpose::kSubmit);
  ASSERT_TRUE(job.ok());
  EXPECT_THAT(job->warnings, IsEmpty());
}

}  // namespace
}  // namespace phalanx::job
