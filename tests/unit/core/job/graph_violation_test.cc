// Module graphs that cannot be: families, edges, losses, and that something trains.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/job/job_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/core/job/document.h"

namespace phalanx::job {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kClip[] =
    "{family: clip_vision, hidden_size: 192, layers: 1, heads: 4, mlp_size: 128, image_size: 32, "
    "patch_size: 16}";
constexpr char kWhisper[] =
    "{family: whisper, hidden_size: 192, layers: 1, heads: 4, mlp_size: 128, mel_bins: 8, frames: "
    "16}";
std::string Regressor(int hidden_size) {
  return absl::StrCat("{family: regressor, hidden_size: ", hidden_size,
                      ", layers: 1, heads: 4, mlp_size: 128, context: 64}");
}

struct Added {
  std::string name, architecture;
};
// The document with more modules, and edges beside its own.
std::string WithModules(const std::vector<Added>& modules, const std::vector<std::string>& edges) {
  std::string more, more_edges;
  for (const Added& module : modules) {
    absl::StrAppend(&more, "    - {name: ", module.name, ", architecture: ", module.architecture,
                    "}\n");
  }
  for (const std::string& edge : edges) absl::StrAppend(&more_edges, "    - ", edge, "\n");
  return With("  batch:", more_edges + "  batch:", With("  edges:\n", more + "  edges:\n"));
}

TEST(GraphRulesTest, SecondEncoderOfAModality_IsSound) {
  EXPECT_THAT(
      Wrong(WithModules({{"close_up", kClip}}, {"{from: close_up, to: language}"}), Purpose::kPlan),
      IsEmpty());
}

TEST(GraphRulesTest, ItemsOfSeveralEncoders_MustFitTheContextTogether) {
  const std::string two = WithModules({{"close_up", kClip}}, {"{from: close_up, to: language}"});
  const auto with_context = [&two](const std::string& context) {
    return Wrong(With("context: 64", "context: " + context, two), Purpose::kPlan);
  };
  EXPECT_THAT(with_context("21"), IsEmpty());
  EXPECT_THAT(with_context("20"),
              ElementsAre("spec.modules[1].architecture.context: 20: must exceed the 20 rows of "
                          "one item of 'vision' and 'close_up'"));
}

TEST(GraphRulesTest, VisionBesideAudio_IsPlanned) {
  EXPECT_THAT(
      Wrong(WithModules({{"voice", kWhisper}}, {"{from: voice, to: language}"}), Purpose::kPlan),
      IsEmpty());
}

TEST(GraphRulesTest, RegressorThatNothingFeeds_IsRefused) {
  EXPECT_THAT(Wrong(WithModules({{"denoiser", Regressor(192)}}, {}), Purpose::kPlan),
              ElementsAre("spec.modules[2].name: denoiser: a regressor needs the sequence of the "
                          "language module: no edge leads to it"));
}

TEST(GraphRulesTest, RegressorThatOnlyAnEncoderFeeds_IsRefused) {
  EXPECT_THAT(Wrong(WithModules({{"denoiser", Regressor(192)}},
                                {"{from: vision, to: denoiser, projector: {}}"}),
                    Purpose::kPlan),
              ElementsAre("spec.modules[2].name: denoiser: a regressor needs the sequence of the "
                          "language module: what feeds it does not get that"));
}

TEST(GraphRulesTest, RegressorBehindARegressor_HasTheSequence) {
  EXPECT_THAT(Wrong(WithModules({{"first", Regressor(192)}, {"second", Regressor(192)}},
                                {"{from: language, to: first}", "{from: first, to: second}",
                                 "{from: vision, to: second, projector: {}}"}),
                    Purpose::kPlan),
              IsEmpty());
}

TEST(GraphRulesTest, RegressorThatCannotHoldTheSequence_IsRefused) {
  const std::string text =
      With("heads: 4, mlp_size: 128, context: 64", "heads: 4, mlp_size: 128, context: 63",
           WithModules({{"first", Regressor(192)}, {"second", Regressor(192)}},
                       {"{from: language, to: first}", "{from: first, to: second}"}));
  EXPECT_THAT(Wrong(text),
              ElementsAre("spec.modules[2].architecture.context: 63: must be at least that of "
                          "'language' (64), whose whole sequence it gets"));
}

TEST(GraphRulesTest, RegressorsAtTheEnd_ShareTheirHiddenSize) {
  EXPECT_THAT(
      Wrong(WithModules({{"first", Regressor(192)}, {"second", Regressor(64)}},
                        {"{from: language, to: first}",
                         "{from: language, to: second, projector: {hidden_size: 256}}"}),
            Purpose::kPlan),
      ElementsAre("spec.modules[3].architecture.hidden_size: 64: must be that of 'first' (192): "
                  "both predict the rows of KEY.target.npy"));
}

TEST(GraphRulesTest, EverythingFrozen_IsRefused) {
  const std::string frozen =
      With("- name: vision", "- name: vision\n      frozen: true",
           With("- name: language", "- name: language\n      frozen: true",
                With("type: mlp, hidden_size: 192", "hidden_size: 192, frozen: true")));
  EXPECT_THAT(
      Wrong(frozen, Purpose::kPlan),
      ElementsAre(::testing::AllOf(
          ::testing::StartsWith("spec.modules: "),
          ::testing::EndsWith(": nothing trains: every module and every projector is frozen"))));
  EXPECT_THAT(Wrong(With("frozen: true}", "frozen: false}", frozen), Purpose::kPlan), IsEmpty());
}

TEST(GraphRulesTest, HomesOfState_AreNoMoreThanThereAre) {
  const auto recovery = [](absl::string_view text, absl::string_view document = kDocument) {
    return With("  optimizer:", absl::StrCat("  recovery: {", text, "}\n  optimizer:"), document);
  };
  EXPECT_THAT(Wrong(recovery("state_home: mirror")),
              ElementsAre("spec.recovery.state_home: mirror: mirror needs a second replica of "
                          "'language', which has one: host keeps a copy in its node's memory"));
  EXPECT_THAT(Wrong(recovery("state_copies: 3")),
              ElementsAre("spec.recovery.state_copies: 3: may not exceed 2: state of 'language' is "
                          "at one replica and in its node's host memory"));
  const std::string two = With("ranks: 4, tp: 2, pp: 2", "ranks: 4, tp: 2, pp: 1");
  EXPECT_THAT(Wrong(recovery("state_copies: 3", two)),
              ElementsAre("spec.recovery.state_copies: 3: may not exceed the replicas of 'vision' "
                          "(2)"));
  EXPECT_THAT(Wrong(recovery("state_copies: 2, state_home: mirror", two)), IsEmpty());
  EXPECT_THAT(Wrong(recovery("state_copies: 2, state_home: host", two)), IsEmpty());
  // A projector trains where its encoder does not.
  const std::string one = With("- name: vision", "- name: vision\n      frozen: true",
                               With("ranks: 2", "ranks: 1", two));
  EXPECT_THAT(Wrong(recovery("state_home: mirror", one)),
              ElementsAre("spec.recovery.state_home: mirror: mirror needs a second replica of "
                          "'vision', which has one: host keeps a copy in its node's memory"));
}

TEST(GraphRulesTest, LossWeight_IsAboveZero) {
  for (const char* weight : {"0", "-1", ".inf", ".nan"}) {
    const std::string text =
        With("{name: denoiser", absl::StrCat("{name: denoiser, loss_weight: ", weight),
             WithModules({{"denoiser", Regressor(192)}}, {"{from: language, to: denoiser}"}));
    EXPECT_THAT(Wrong(text, Purpose::kPlan),
                ElementsAre(absl::StrCat("spec.modules[2].loss_weight: ", weight,
                                         ": must be a number above 0 and at most 1e+06")));
  }
}

TEST(GraphRulesTest, Whisper_HasEvenSizes) {
  std::string odd =
      WithModules({{"voice", kWhisper}}, {"{from: voice, to: language, projector: {}}"});
  odd = With("whisper, hidden_size: 192, layers: 1, heads: 4",
             "whisper, hidden_size: 15, layers: 1, heads: 5", odd);
  odd = With("frames: 16", "frames: 17", odd);
  EXPECT_THAT(Wrong(odd),
              ElementsAre("spec.modules[2].architecture.hidden_size: 15: must be even: half of it "
                          "holds the sines of a position, half the cosines",
                          "spec.modules[2].architecture.frames: 17: must be even: two frames make "
                          "one row"));
}

TEST(GraphRulesTest, RegressorThatFeedsTheLanguageModule_IsRefused) {
  EXPECT_THAT(
      Wrong(WithModules({{"denoiser", Regressor(192)}}, {"{from: denoiser, to: language}"})),
      ElementsAre("spec.modules[2].name: denoiser: a regressor needs the sequence of the "
                  "language module: no edge leads to it"));
}

TEST(GraphRulesTest, ManyMistakes_AreReportedAtOnceInTheDocumentsOrder) {
  std::string text = WithModules({{"voice", kWhisper}, {"noise", kWhisper}},
                                 {"{from: language, to: voice}", "{from: noise, to: noise}"});
  text = With("offset: 2", "offset: 1", text);
  text = With("tp: 2, pp: 2", "tp: 2, pp: 2, layers: [3, 4]", text);
  text = With("heads: 4, mlp_size: 512", "heads: 1, mlp_size: 512", text);
  text = With("ranks: 2, tp: 1", "ranks: 2, tp: 2", text);
  text = With("steps: 300", "steps: 300\n  schedule: {name: 1f1b, chunks: 2, encoder_chunks: 2}",
              text);
  std::vector<std::string> fields;
  for (const Violation& violation :
       ViolationsOf(wire::ReadJobFile(text, Purpose::kSubmit).status())) {
    fields.push_back(violation.field);
  }
  EXPECT_THAT(fields,
              ElementsAre("spec.schedule.chunks", "spec.schedule.encoder_chunks",
                          "spec.modules[0].parallel.tp", "spec.modules[1].parallel.layers",
                          "spec.modules[1].offset", "spec.edges[1].to", "spec.edges[2].to"));
}
TEST(GraphRulesTest, TwoLanguageModules_AreRefused) {
  const std::string two =
      With("family: clip_vision", "family: llama",
           With("image_size: 64, patch_size: 16", "vocabulary: 512, context: 64"));
  EXPECT_THAT(Wrong(two), ElementsAre("spec.modules[0].architecture.family: llama: exactly one "
                                      "module may be a language module, and 'language' is it"));
}

TEST(GraphRulesTest, NoLanguageModule_IsRefused) {
  const std::string none =
      With("to: language", "to: text", With("- name: language", "- name: text"));
  EXPECT_THAT(Wrong(none), ElementsAre("spec.language: is required where no module is called "
                                       "'language': the language module's name"));
}

TEST(GraphRulesTest, LanguageModule_OfAnotherFamily_IsRefused) {
  EXPECT_THAT(Wrong(With("steps: 300", "steps: 300\n  language: vision")),
              ::testing::Contains("spec.modules[0].architecture.family: clip_vision: the language "
                                  "module must be of family llama"));
}

TEST(GraphRulesTest, Projector_NarrowerThanItsTensorRanks_IsRefused) {
  const std::string narrow =
      With("tp: 1}", "tp: 2}", With("type: mlp, hidden_size: 192", "type: mlp, hidden_size: 100"));
  EXPECT_THAT(Wrong(narrow),
              ElementsAre("spec.modules[0].parallel.tp: 2: may not exceed the blocks of the "
                          "projector of spec.edges[0] (hidden_size 100 in blocks of 128: 1)"));
}

TEST(GraphRulesTest, CyclicEdges_AreRefused) {
  constexpr absl::string_view kThree = R"(metadata: {name: demo}
spec:
  steps: 1
  modules:
    - {name: language, architecture: {layers: 1}}
    - {name: b, architecture: {layers: 1}}
    - {name: c, architecture: {layers: 1}}
  edges: [{from: b, to: c}, {from: c, to: b}, {from: b, to: language}]
  batch: {global: 1}
)";
  EXPECT_THAT(
      Wrong(kThree, Purpose::kPlan),
      ElementsAre(HasSubstr("must have no cycle; one runs through or before language, b, c")));
}

TEST(GraphRulesTest, EncoderAsTarget_IsRefused) {
  const std::string backwards =
      With("{from: vision, to: language, projector: {type: mlp, hidden_size: 192}}",
           "{from: language, to: vision, projector: {}}");
  EXPECT_THAT(Wrong(backwards),
              ::testing::Contains("spec.edges[0].to: vision: must be a decoder: encoders read "
                                  "items, not rows"));
}

}  // namespace
}  // namespace phalanx::job
