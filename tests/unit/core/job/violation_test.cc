// Each class of violation alone, then many at once.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/job/job_reader.h"
#include "core/job/rules.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/core/job/document.h"

namespace phalanx::job {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Spoiled {
  const char* name;
  const char* from;
  const char* to;
  const char* violation;  // the only one
};

class ViolationTest : public ::testing::TestWithParam<Spoiled> {};

TEST_P(ViolationTest, OneMistake_GivesOneViolation) {
  EXPECT_THAT(Wrong(With(GetParam().from, GetParam().to)), ElementsAre(GetParam().violation));
}

std::string NameOf(const ::testing::TestParamInfo<Spoiled>& info) { return info.param.name; }

constexpr Spoiled kFields[] = {
    {"UnknownField", "steps: 300", "steps: 300\n  stepz: 3",
     "spec.stepz: 3: unknown field; did you mean steps?"},
    {"UnknownFieldDeep", "tp: 2, pp: 2", "tp: 2, pp: 2, zz: 1",
     "spec.modules[1].parallel.zz: 1: unknown field"},
    {"UnknownAtTop", "spec:", "specs: 1\nspec:", "specs: 1: unknown field; did you mean spec?"},
    {"WrittenTwice", "steps: 300", "steps: 300\n  steps: 301", "spec.steps: 301: written twice"},
    {"WrongTypeScalar", "steps: 300", "steps: many",
     "spec.steps: many: must be an integer from 1 to 1000000000000"},
    {"WrongTypeQuoted", "steps: 300", "steps: \"300\"",
     "spec.steps: \"300\": must be an integer from 1 to 1000000000000"},
    {"WrongTypeFraction", "steps: 300", "steps: 1.5",
     "spec.steps: 1.5: must be an integer from 1 to 1000000000000"},
    {"WrongTypeMapping", "batch: {global: 48, micro: 2}", "batch: 48",
     "spec.batch: 48: must be a mapping"},
    {"WrongTypeList", "modules:\n    - name: vision",
     "edge_list: []\n  modules:\n    - name: vision", "spec.edge_list: []: unknown field"},
    {"WrongTypeBoolean", "steps: 300", "steps: 300\n  preemptible: yes",
     "spec.preemptible: yes: must be true or false"},
    {"WrongTypeString", "tokenizer: emoji.model", "tokenizer: 17",
     "spec.data.tokenizer: 17: must be a string: put it in quotes"},
    {"MissingSteps", "  steps: 300\n", "",
     "spec.steps: is required: an integer from 1 to 1000000000000"},
    {"MissingData", "  data: {shards: \"emoji-{000..003}.tar\", tokenizer: emoji.model}\n", "",
     "spec.data: is required: a mapping"},
    {"MissingOfFamily", "image_size: 64, ", "",
     "spec.modules[0].architecture.image_size: is required: an integer from 1 to 16384"},
    {"FieldOfAnotherFamily", "image_size: 64", "image_size: 64, vocabulary: 512",
     "spec.modules[0].architecture.vocabulary: 512: family clip_vision has no such field"},
    {"NullIsMissing", "steps: 300", "steps: null",
     "spec.steps: null: is required: an integer from 1 to 1000000000000"},
    {"Zero", "global: 48", "global: 0",
     "spec.batch.global: 0: must be an integer from 1 to 16777216"},
    {"Negative", "ranks: 2", "ranks: -2",
     "spec.modules[0].parallel.ranks: -2: must be an integer from 1 to 1048576"},
    {"Huge", "hidden_size: 192, layers", "hidden_size: 99999999999999999999999, layers",
     "spec.modules[1].architecture.hidden_size: 99999999999999999999999: must be an integer from 1 "
     "to 1048576 (4Ki is 4096)"},
    {"NotANumber", "learning_rate: 1e-3", "learning_rate: .nan",
     "spec.optimizer.learning_rate: .nan: must be a number above 0 and at most 10"},
    {"Infinite", "learning_rate: 1e-3", "learning_rate: .inf",
     "spec.optimizer.learning_rate: .inf: must be a number above 0 and at most 10"},
    {"NegativeRate", "learning_rate: 1e-3", "learning_rate: -1e-3",
     "spec.optimizer.learning_rate: -1e-3: must be a number above 0 and at most 10"},
    {"DurationWithoutUnit", "steps: 300", "steps: 300\n  time_limit: 30",
     "spec.time_limit: 30: must be a duration above 0 and at most 87600h, such as 30s, 15m or 2h"},
    {"DurationInDays", "steps: 300", "steps: 300\n  time_limit: 30d",
     "spec.time_limit: 30d: must be a duration above 0 and at most 87600h, such as 30s, 15m or 2h"},
    {"DurationBeyondTheGreatest", "steps: 300", "steps: 300\n  time_limit: 999999999h",
     "spec.time_limit: 999999999h: must be a duration above 0 and at most 87600h, such as 30s, 15m "
     "or 2h"},
    {"WrongVersion", "metadata:", "apiVersion: phalanx/v9\nmetadata:",
     "apiVersion: phalanx/v9: must be phalanx/v1"},
    {"WrongChoice", "steps: 300", "steps: 300\n  schedule: {name: 1f2b}",
     "spec.schedule.name: 1f2b: must be one of auto, 1f1b, interleaved, zero_bubble_h1, "
     "zero_bubble_v, three_phase; did you mean 1f1b?"},
    {"JobName", "name: demo", "name: Demo!",
     "metadata.name: Demo!: must be lower-case letters, digits and '-', at most 63, starting with "
     "a letter and not ending with '-'"},
    {"JobNameLikeAnId", "name: demo", "name: job-7",
     "metadata.name: job-7: may not be job-N, which is how jobs are numbered"},
    {"LabelNotAString", "name: demo", "name: demo, labels: {team: 5}",
     "metadata.labels.team: 5: must be a string: put it in quotes"},
};
INSTANTIATE_TEST_SUITE_P(Fields, ViolationTest, ::testing::ValuesIn(kFields), NameOf);

constexpr Spoiled kLayouts[] = {
    {"MeshDoesNotDivide", "tp: 2, pp: 2", "tp: 3, pp: 1",
     "spec.modules[1].parallel.tp: 3: tp*cp*pp must divide ranks (4)"},
    {"MeshBlamesTheFactor", "tp: 2, pp: 2", "tp: 2, pp: 3",
     "spec.modules[1].parallel.pp: 3: tp*cp*pp must divide ranks (4)"},
    {"DpWritten", "ranks: 2, tp: 1", "ranks: 2, tp: 1, dp: 2",
     "spec.modules[0].parallel.dp: 2: may not be written: it follows as ranks / (tp*cp*pp)"},
    {"PartialOverlap", "offset: 2", "offset: 1",
     "spec.modules[1].offset: 1: ranks [1, 5) overlap [0, 2) of module 'vision'; spans must be "
     "equal or disjoint"},
    {"BeyondTheDevices", "steps: 300", "steps: 300\n  resources: {devices: 5}",
     "spec.modules[1].offset: 2: ranks [2, 6) end beyond resources.devices (5)"},
    {"BeyondTheWorld", "offset: 2", "offset: 1048575",
     "spec.modules[1].offset: 1048575: ranks [1048575, 1048579) must lie within [0, 1048576)"},
    {"NegativeOffset", "offset: 2", "offset: -1",
     "spec.modules[1].offset: -1: ranks [-1, 3) must lie within [0, 1048576)"},
    {"OffsetOfNoModule", "offset: 2", "offset: visoin",
     "spec.modules[1].offset: visoin: names no module; did you mean vision?"},
    {"OffsetInACircle", "offset: 2", "offset: language",
     "spec.modules[1].offset: language: module offsets must not refer to each other in a circle"},
    {"StageLayersCount", "tp: 2, pp: 2", "tp: 2, pp: 2, layers: [6]",
     "spec.modules[1].parallel.layers: [6]: must have an entry for each of pp (2) stages"},
    {"StageLayersSum", "tp: 2, pp: 2", "tp: 2, pp: 2, layers: [3, 4]",
     "spec.modules[1].parallel.layers: [3, 4]: must add up to the module's layers (6), not to 7"},
    {"EmptyStage", "layers: 6, heads: 6", "layers: 1, heads: 6",
     "spec.modules[1].parallel.pp: 2: every stage needs a layer, and there are 1"},
    {"OrderIncomplete", "tp: 2, pp: 2", "tp: 2, pp: 2, order: [tp, dp, pp]",
     "spec.modules[1].parallel.order: [tp, dp, pp]: must name each of tp, cp, dp, pp once"},
    {"OrderRepeats", "tp: 2, pp: 2", "tp: 2, pp: 2, order: [tp, tp, dp, pp]",
     "spec.modules[1].parallel.order: [tp, tp, dp, pp]: must be a list of tp, cp, dp, pp, each "
     "once"},
    {"StageWithoutLayers", "tp: 2, pp: 2", "tp: 2, pp: 2, layers: [0, 6]",
     "spec.modules[1].parallel.layers: [0, 6]: must be a list of integers from 1 to 4096"},
    {"ExpertAxesDoNotDivide", "tp: 2, pp: 2", "tp: 2, pp: 2, ep: 3",
     "spec.modules[1].parallel.ep: 3: expt_tp*ep*pp must divide ranks (4)"},
    {"ExpertTensorDoesNotDivide", "tp: 2, pp: 2", "tp: 2, pp: 2, expt_tp: 4",
     "spec.modules[1].parallel.expt_tp: 4: expt_tp*ep*pp must divide ranks (4)"},
    {"EncoderWiderThanHeads",
     "heads: 4, mlp_size: 512, image_size: 64, patch_size: 16}\n      parallel: {ranks: 2, tp: 1}",
     "heads: 1, mlp_size: 512, image_size: 64, patch_size: 16}\n      parallel: {ranks: 2, tp: 2}",
     "spec.modules[0].parallel.tp: 2: may not exceed the query heads (1)"},
    {"WiderThanHeads", "heads: 6, kv_heads: 2", "heads: 1, kv_heads: 1",
     "spec.modules[1].parallel.tp: 2: may not exceed the query heads (1)"},
    {"WiderThanMlpBlocks", "mlp_size: 512, vocabulary", "mlp_size: 128, vocabulary",
     "spec.modules[1].parallel.tp: 2: may not exceed the blocks of the MLP (mlp_size 128 in blocks "
     "of 128: 1)"},
    {"WiderThanVocabularyBlocks", "vocabulary: 512", "vocabulary: 100",
     "spec.modules[1].parallel.tp: 2: may not exceed the blocks of the vocabulary (100 rows in "
     "blocks of 128: 1)"},
};
INSTANTIATE_TEST_SUITE_P(Layouts, ViolationTest, ::testing::ValuesIn(kLayouts), NameOf);

constexpr Spoiled kModels[] = {
    {"HeadsDoNotDivideHidden", "hidden_size: 192, layers", "hidden_size: 193, layers",
     "spec.modules[1].architecture.heads: 6: must divide hidden_size (193), or head_size must be "
     "written"},
    {"OddHeadSize", "hidden_size: 192, layers", "hidden_size: 192, head_size: 31, layers",
     "spec.modules[1].architecture.head_size: 31: heads must be of even size, for rotary "
     "positions; "
     "this gives 31"},
    {"KvHeadsDoNotDivideHeads", "kv_heads: 2", "kv_heads: 4",
     "spec.modules[1].architecture.kv_heads: 4: must divide heads (6)"},
    {"PatchesDoNotFit", "image_size: 64", "image_size: 60",
     "spec.modules[0].architecture.image_size: 60: must be a multiple of patch_size (16)"},
    {"ItemDoesNotFitContext", "context: 64", "context: 16",
     "spec.modules[1].architecture.context: 16: must exceed the 16 rows of one item of 'vision'"},
    {"SameName", "  edges:",
     "    - {name: vision, architecture: {family: clip_vision, hidden_size: 8, layers: 1, heads: "
     "1, "
     "mlp_size: 8, image_size: 8, patch_size: 8}}\n  edges:",
     "spec.modules[2].name: vision: must be unique; spec.modules[0] has it too"},
    {"DanglingFrom", "from: vision", "from: visions",
     "spec.edges[0].from: visions: names no module; did you mean vision?"},
    {"DanglingTo", "to: language", "to: nobody",
     "spec.edges[0].to: nobody: names no module; there are vision, language"},
    {"DuplicateEdge", "  batch:", "    - {from: vision, to: language, projector: {}}\n  batch:",
     "spec.edges[1]: {from: vision, to: language, projector: {}}: is the same edge as "
     "spec.edges[0]"},
    {"NoProjector", ", projector: {type: mlp, hidden_size: 192}", "",
     "spec.edges[0].projector: is required where hidden sizes differ: 128 of 'vision', 192 of "
     "'language'"},
    {"SelfEdge", "from: vision, to: language", "from: language, to: language",
     "spec.edges[0].to: language: a module cannot feed itself"},
    {"SinkWithoutLoss",
     "  edges:\n    - {from: vision, to: language, projector: {type: mlp, hidden_size: 192}}\n", "",
     "spec.modules[0].name: vision: feeds no module and has no loss: add an edge from it"},
    {"MinimumAboveRate", "warmup_steps: 20", "warmup_steps: 20, minimum_learning_rate: 0.1",
     "spec.optimizer.minimum_learning_rate: 0.1: may not exceed learning_rate"},
    {"WarmupBeyondSteps", "warmup_steps: 20", "warmup_steps: 301",
     "spec.optimizer.warmup_steps: 301: may not exceed steps (300)"},
    {"Betas", "warmup_steps: 20", "betas: [0.9, 1]",
     "spec.optimizer.betas: [0.9, 1]: must be two numbers from 0 to below 1"},
    {"Fp64OnGpu", "steps: 300",
     "steps: 300\n  precision: {compute: fp64}\n  resources: {device: gpu}",
     "spec.precision.compute: fp64: fp64 needs resources.device: cpu"},
    {"Fp8OfFp32OnGpu", "steps: 300",
     "steps: 300\n  precision: {compute: fp32, linear: fp8}\n  resources: {device: gpu}",
     "spec.precision.linear: fp8: fp8 needs precision.compute: bf16 on gpu"},
    {"BraceUnclosed", "emoji-{000..003}.tar", "emoji-{000..003.tar",
     "spec.data.shards: \"emoji-{000..003.tar\": braces must be closed and may not be nested"},
    {"BraceBomb", "emoji-{000..003}.tar", "{0..999}{0..999}",
     "spec.data.shards: \"{0..999}{0..999}\": a pattern may stand for at most 65536 names"},
};
INSTANTIATE_TEST_SUITE_P(Models, ViolationTest, ::testing::ValuesIn(kModels), NameOf);

// Rules of schedules and of graphs that this release does not train yet: what a plan refuses.
class PlanViolationTest : public ::testing::TestWithParam<Spoiled> {};

TEST_P(PlanViolationTest, OneMistake_GivesOneViolation) {
  EXPECT_THAT(Wrong(With(GetParam().from, GetParam().to), Purpose::kPlan),
              ElementsAre(GetParam().violation));
}

constexpr Spoiled kSchedules[] = {
    {"InterleavedWithoutChunks", "steps: 300", "steps: 300\n  schedule: {name: interleaved}",
     "spec.schedule.chunks: interleaved needs at least 2 chunks a rank"},
    {"ChunksOfOneF1B", "steps: 300", "steps: 300\n  schedule: {name: 1f1b, chunks: 2}",
     "spec.schedule.chunks: 2: this schedule has one chunk a rank"},
    {"ThreeChunksOfVee", "steps: 300", "steps: 300\n  schedule: {name: zero_bubble_v, chunks: 3}",
     "spec.schedule.chunks: 3: zero_bubble_v has 2 chunks a rank"},
    {"MorePartsThanLayers", "steps: 300", "steps: 300\n  schedule: {name: interleaved, chunks: 4}",
     "spec.schedule.chunks: 4: every chunk of every stage needs a layer: 2 x 4, and 'language' has "
     "6"},
    {"NoChunks", "steps: 300", "steps: 300\n  schedule: {chunks: 0}",
     "spec.schedule.chunks: 0: must be an integer from 1 to 64"},
    {"NoEncoderChunks", "steps: 300", "steps: 300\n  schedule: {encoder_chunks: 0}",
     "spec.schedule.encoder_chunks: 0: must be an integer from 1 to 1024"},
    {"EncoderChunksBeyondMicrobatches", "steps: 300",
     "steps: 300\n  schedule: {encoder_chunks: 25}",
     "spec.schedule.encoder_chunks: 25: may not exceed the microbatches (24)"},
    {"EncoderChunksOfOneF1B", "steps: 300",
     "steps: 300\n  schedule: {name: 1f1b, encoder_chunks: 2}",
     "spec.schedule.encoder_chunks: 2: only three_phase cuts encoder passes"},
    {"MoreMicrobatchesThanCanBePlanned", "global: 48, micro: 2", "global: 16777216, micro: 2",
     "spec.batch.global: 16777216: makes 8388608 microbatches with a planning load of 3 each (n x "
     "n for each kind of rank that holds n pipeline parts): at most 1048576 in a step; a larger "
     "batch.micro makes fewer"},
    {"ThreePhaseOnOtherRanks", "steps: 300", "steps: 300\n  schedule: {name: three_phase}",
     "spec.schedule.name: three_phase: needs an encoder on the ranks of 'language' that feeds it"},
};
INSTANTIATE_TEST_SUITE_P(Schedules, PlanViolationTest, ::testing::ValuesIn(kSchedules), NameOf);

TEST(ScheduleRulesTest, InterleavedOnOneStage_IsRefused) {
  EXPECT_THAT(
      Wrong(With("tp: 2, pp: 2", "tp: 2",
                 With("steps: 300", "steps: 300\n  schedule: {name: interleaved, chunks: 2}")),
            Purpose::kPlan),
      ElementsAre("spec.modules[1].parallel.pp: interleaved needs at least 2 stages"));
}

// Before each pass planning looks at all parts of a rank.
TEST(ScheduleRulesTest, PartsOfOneRank_CountForEachOther) {
  const auto wrong = [](absl::string_view chunks) {
    const std::string deep = With("layers: 6, heads: 6", "layers: 48, heads: 6",
                                  With("global: 48, micro: 2", "global: 4096, micro: 1"));
    return Wrong(With("steps: 300", absl::StrCat("steps: 300\n  schedule: ", chunks), deep),
                 Purpose::kPlan);
  };
  EXPECT_THAT(wrong("{name: interleaved, chunks: 8}"), IsEmpty());
  EXPECT_THAT(wrong("{name: interleaved, chunks: 24}"),
              ElementsAre(HasSubstr("4096 microbatches with a planning load of 1153 each")));
}

// They are not known to be on ranks of their own.
TEST(ScheduleRulesTest, ModulesWithoutAPlace_HaveNoPlanningLoad) {
  EXPECT_THAT(Wrong(With("offset: 2", "offset: speech",
                         With("global: 48, micro: 2", "global: 16777216, micro: 2"))),
              ElementsAre(HasSubstr("spec.modules[1].offset")));
}

TEST(ScheduleRulesTest, VeeHasTwoChunks_WrittenOrNot) {
  const std::string few = With("layers: 6, heads: 6", "layers: 3, heads: 6");
  constexpr absl::string_view kRule =
      "every chunk of every stage needs a layer: 2 x 2, and 'language' has 3";
  EXPECT_THAT(Wrong(With("steps: 300", "steps: 300\n  schedule: {name: zero_bubble_v}", few),
                    Purpose::kPlan),
              ElementsAre(absl::StrCat("spec.schedule.name: zero_bubble_v: ", kRule)));
  EXPECT_THAT(
      Wrong(With("steps: 300", "steps: 300\n  schedule: {name: zero_bubble_v, chunks: 2}", few),
            Purpose::kPlan),
      ElementsAre(absl::StrCat("spec.schedule.chunks: 2: ", kRule)));
  EXPECT_THAT(Wrong(With("steps: 300", "steps: 300\n  schedule: {name: zero_bubble_v, chunks: 2}"),
                    Purpose::kPlan),
              IsEmpty());
}

TEST(ScheduleRulesTest, StageWithFewerLayersThanChunks_IsRefused) {
  EXPECT_THAT(
      Wrong(With("tp: 2, pp: 2", "tp: 2, pp: 2, layers: [1, 5]",
                 With("steps: 300", "steps: 300\n  schedule: {name: interleaved, chunks: 2}")),
            Purpose::kPlan),
      ElementsAre("spec.modules[1].parallel.layers: [1, 5]: every stage needs a layer for "
                  "each of its 2 chunks"));
}

TEST(ScheduleRulesTest, ThreePhase_NeedsTheEncoderOnTheLanguageModulesRanks) {
  const std::string colocated =
      With("offset: 2", "offset: vision", With("ranks: 2, tp: 1", "ranks: 4, tp: 1"));
  EXPECT_THAT(
      Wrong(With("steps: 300", "steps: 300\n  schedule: {name: three_phase, encoder_chunks: 4}",
                 colocated),
            Purpose::kPlan),
      IsEmpty());
}

TEST(ViolationsTest, Document_WithoutMistakes_HasNone) { EXPECT_THAT(Wrong(kDocument), IsEmpty()); }

TEST(ViolationsTest, OffsetOfTheModuleThatFollows_IsACircle) {
  EXPECT_THAT(Wrong(With("ranks: 2, tp: 1}", "ranks: 2, tp: 1}\n      offset: language",
                         With("\n      offset: 2", ""))),
              ElementsAre("spec.modules[1].offset: module offsets must not refer to each other in "
                          "a circle: without one, it follows the module before it"));
}

TEST(ViolationsTest, ManyMistakes_AreReportedAtOnceInTheDocumentsOrder) {
  std::string text = With("steps: 300", "steps: 0");
  text = With("name: demo", "name: Demo", text);
  text = With("layers: 4, heads: 4", "layers: four, heads: 4", text);
  text = With("tp: 2, pp: 2", "tp: 3, pp: 1, dp: 1", text);
  text = With("micro: 2", "micor: 2", text);
  text = With("warmup_steps: 20", "warmup_steps: -1, epsilon: 0", text);
  std::vector<std::string> fields;
  for (const Violation& violation :
       ViolationsOf(wire::ReadJobFile(text, Purpose::kSubmit).status())) {
    fields.push_back(violation.field);
  }
  EXPECT_THAT(
      fields,
      ElementsAre("metadata.name", "spec.steps", "spec.modules[0].architecture.layers",
                  "spec.modules[1].parallel.tp", "spec.modules[1].parallel.dp", "spec.batch.micor",
                  "spec.optimizer.warmup_steps", "spec.optimizer.epsilon"));
}

TEST(ViolationsTest, HeadsThatFitNothing_HideNoRuleOfTheirGroups) {
  EXPECT_THAT(
      Wrong(With("heads: 6, kv_heads: 2", "heads: 5, kv_heads: 2")),
      ElementsAre("spec.modules[1].architecture.heads: 5: must divide hidden_size (192), or "
                  "head_size must be written",
                  "spec.modules[1].architecture.kv_heads: 2: must divide heads (5)"));
}

TEST(ViolationsTest, LabelThatIsNoString_HidesNoOtherFaultsOfItsMap) {
  EXPECT_THAT(
      Wrong(With("steps: 300",
                 "steps: 300\n  resources: {node_selector: {a: 1, a: b, c: \"d\\te\"}}")),
      ElementsAre("spec.resources.node_selector.a: 1: must be a string: put it in quotes",
                  "spec.resources.node_selector.a: b: written twice",
                  "spec.resources.node_selector.c: \"d e\": must have no control characters"));
}

TEST(ViolationsTest, Violation_KnowsItsLine) {
  const std::vector<Violation> violations =
      ViolationsOf(wire::ReadJobFile(With("steps: 300", "steps: 0"), Purpose::kSubmit).status());
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].line, 3);
}

TEST(ViolationsTest, EmptyDocument_NamesWhatIsRequired) {
  const std::string kNoMapping = "the document must be a mapping: apiVersion, kind, metadata, spec";
  EXPECT_THAT(Wrong(""), ElementsAre(kNoMapping));
  EXPECT_THAT(Wrong("{}"),
              ElementsAre("metadata: is required: a mapping", "spec: is required: a mapping"));
  EXPECT_THAT(Wrong("[1, 2]"), ElementsAre(kNoMapping));
}

TEST(ViolationsTest, LongValue_IsCut) {
  const std::vector<std::string> wrong =
      Wrong(With("steps: 300", "steps: " + std::string(500, 'x')));
  ASSERT_THAT(wrong, SizeIs(1));
  EXPECT_LT(wrong[0].size(), 200u);
}

std::string List(int count, absl::string_view item) {
  std::string list = "[";
  for (int i = 0; i < count; ++i) absl::StrAppend(&list, i > 0 ? ", " : "", item);
  return list + "]";
}

TEST(ViolationsTest, NamesOfFilesWithManyBytes_AreOneViolation) {
  const std::string pattern = "\"" + std::string(200, 'a') + "{00000..30000}\"";
  const std::string shards = "shards: [" + pattern + ", " + pattern + "]";
  EXPECT_THAT(Wrong(With("shards: \"emoji-{000..003}.tar\"", shards)),
              ElementsAre(::testing::AllOf(HasSubstr("spec.data.shards: "),
                                           HasSubstr("at most 8388608 bytes of names"))));
}

TEST(ViolationsTest, QuotedNames_HaveNoControlCharactersAndAnEnd) {
  const std::string strange = "\"a\\x1e\\x1f\\e[2J\\n" + std::string(4000, 'b') + "\"";
  std::string text = With("offset: 2", "offset: 1");
  text = With("name: vision", "name: " + strange, With("from: vision", "from: " + strange, text));
  const std::vector<Violation> violations =
      ViolationsOf(wire::ReadJobFile(text, Purpose::kSubmit).status());
  ASSERT_THAT(violations, SizeIs(1));  // a separator of the name's makes no second one
  for (const Violation& violation : violations) {
    EXPECT_LE(violation.rule.size(), 4099u);
    EXPECT_GT(violation.line, 0);
  }
}

TEST(ViolationsTest, DerivedHeadsThatAreTooWide_AreReportedWhereTheyAreWritten) {
  EXPECT_THAT(
      Wrong(With("hidden_size: 128, layers: 4, heads: 4",
                 "hidden_size: 131072, layers: 4, heads: 1")),
      ElementsAre("spec.modules[0].architecture.heads: 1: heads may have a size of at most 65536; "
                  "this gives 131072"));
}

TEST(ViolationsTest, ParametersThatNobodyCanCount_AreRefused) {
  EXPECT_THAT(Wrong(With("hidden_size: 128, layers: 4, heads: 4",
                         "hidden_size: 1048576, layers: 512, heads: 65536, head_size: 65536")),
              ElementsAre("spec.modules[0].architecture.hidden_size: 1048576: a module may have at "
                          "most 10^14 parameters; its layers would have more"));
}

TEST(ViolationsTest, SpecWhoseLanguageModuleIsNone_IsRefused) {
  JobSpec spec = Right(kDocument);
  EXPECT_THAT(CheckLayout(spec), IsEmpty());
  for (int32_t language : {-1, 2}) {
    spec.language = language;
    const std::vector<Violation> violations = CheckLayout(spec);
    ASSERT_THAT(violations, SizeIs(1));
    EXPECT_EQ(ToString(violations[0]), "spec.language: must be one of the modules");
  }
}

TEST(ViolationsTest, TooManyModules_AreOneViolation) {
  const std::string text =
      absl::StrCat("metadata: {name: demo}\nspec:\n  steps: 1\n  batch: {global: 1}\n  modules: ",
                   List(65, "{name: a}"), "\n  edges: ", List(64, "{from: a, to: b}"), "\n");
  EXPECT_THAT(Wrong(text, Purpose::kPlan),
              ElementsAre(::testing::EndsWith("may have at most 64 entries")));
}

TEST(ViolationsTest, TooManyEdges_AreOneViolation) {
  const std::string text =
      With("{from: vision, to: language, projector: {type: mlp, hidden_size: 192}}", "",
           With("    - {from", "    {from",
                With("  edges:\n",
                     absl::StrCat("  edges: ", List(257, "{from: vision, to: language}"), "\n"))));
  EXPECT_THAT(Wrong(text), ElementsAre(::testing::EndsWith("may have at most 256 entries")));
}

TEST(ViolationsTest, UnreadableModuleName_BringsNoOthers) {
  EXPECT_THAT(Wrong(With("- name: vision", "- name: [vision]")),
              ElementsAre("spec.modules[0].name: [vision]: must be a string"));
}

TEST(ViolationsTest, ThousandsOfMistakes_AreCountedNotListed) {
  std::string fields;
  for (int i = 0; i < 5000; ++i) fields += "  unknown" + std::to_string(i) + "x: 1\n";
  const std::vector<std::string> wrong = Wrong(std::string(kDocument) + fields);
  ASSERT_THAT(wrong, SizeIs(257));
  EXPECT_EQ(wrong.back(), "and 4744 more violations");
}

}  // namespace
}  // namespace phalanx::job
