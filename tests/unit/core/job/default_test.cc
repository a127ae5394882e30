// What a field is when nobody writes it, and documents that survive a round trip.
#include <string>

#include "core/job/job_reader.h"
#include "core/job/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/core/job/document.h"

namespace phalanx::job {
namespace {

using ::testing::ElementsAre;

std::string Complete(const JobSpec& spec) { return wire::EmitYaml(WriteJobSpec(spec)); }

TEST(DefaultsTest, DerivedOnes_FollowFromTheRest) {
  const JobSpec spec = Right(kDocument);
  EXPECT_EQ(spec.language, 1);
  EXPECT_EQ(spec.World(), 6);
  EXPECT_EQ(spec.resources.devices, 6);
  EXPECT_EQ(spec.modules[0].parallel.dp, 2);
  EXPECT_EQ(spec.modules[1].parallel.dp, 1);
  EXPECT_EQ(spec.modules[0].architecture.head_size, 32);
  EXPECT_EQ(spec.output, "runs/demo");
  EXPECT_EQ(spec.compute, Precision::kFp32);
  EXPECT_FALSE(spec.time_limit.has_value());
}

TEST(DefaultsTest, Precision_IsBf16OnGpus) {
  EXPECT_EQ(Right(With("steps: 300", "steps: 300\n  resources: {device: gpu}")).compute,
            Precision::kBf16);
}

TEST(DefaultsTest, SequenceParallelism_IsOnWhereTensorRanksAreGpus) {
  const std::string on_gpus = With("steps: 300", "steps: 300\n  resources: {device: gpu}");
  EXPECT_FALSE(Right(kDocument).modules[1].parallel.sequence);
  EXPECT_TRUE(Right(on_gpus).modules[1].parallel.sequence);
  EXPECT_FALSE(Right(on_gpus).modules[0].parallel.sequence);
  EXPECT_FALSE(Right(With("tp: 2, pp: 2}", "tp: 2, pp: 2, sequence: false}", on_gpus))
                   .modules[1]
                   .parallel.sequence);
  EXPECT_TRUE(
      Right(With("tp: 2, pp: 2}", "tp: 2, pp: 2, sequence: true}")).modules[1].parallel.sequence);
}

TEST(DefaultsTest, Offset_IsAfterTheModuleBefore) {
  EXPECT_EQ(Right(With("      offset: 2\n", "")).modules[1].offset, 2);
}

TEST(DefaultsTest, Offset_ByName_IsWhereThatModuleIs) {
  const std::string text =
      With("ranks: 4, tp: 2, pp: 2}\n      offset: 2", "ranks: 2, tp: 2}\n      offset: vision");
  EXPECT_EQ(Right(text, Purpose::kPlan).modules[1].offset, 0);
}

TEST(DefaultsTest, Offset_MayNameALaterModule) {
  const std::string text =
      With("tp: 1}", "tp: 1}\n      offset: language",
           With("ranks: 4, tp: 2, pp: 2}\n      offset: 2", "ranks: 2, tp: 2}\n      offset: 5"));
  EXPECT_EQ(Right(text, Purpose::kPlan).modules[0].offset, 5);
}

TEST(DefaultsTest, KvHeads_AreHeads) {
  EXPECT_EQ(Right(With("kv_heads: 2, ", "")).modules[1].architecture.kv_heads, 6);
}

TEST(DefaultsTest, Projector_IsAsWideAsItsTarget) {
  const JobSpec spec = Right(With("{type: mlp, hidden_size: 192}", "{}"));
  ASSERT_TRUE(spec.edges[0].projector.has_value());
  EXPECT_EQ(spec.edges[0].projector->hidden_size, 192);
}

TEST(DefaultsTest, Shards_ExpandInOrder) {
  EXPECT_THAT(Right(kDocument).data->shards,
              ElementsAre("emoji-000.tar", "emoji-001.tar", "emoji-002.tar", "emoji-003.tar"));
}

TEST(DefaultsTest, Plan_NeedsNeitherDataNorArchitectures) {
  const JobSpec spec = Right(R"(metadata: {name: demo}
spec:
  steps: 1
  modules:
    - {name: language, parallel: {ranks: 8, tp: 2, cp: 2, pp: 2}}
  batch: {global: 8}
)",
                             Purpose::kPlan);
  EXPECT_EQ(spec.modules[0].architecture.family, Family::kNone);
  EXPECT_FALSE(spec.data.has_value());
}

TEST(RoundTripTest, CompleteDocument_ReadsBackAsItself) {
  const JobSpec spec = Right(kDocument);
  const std::string complete = Complete(spec);
  EXPECT_EQ(Complete(Right(complete)), complete);
}

TEST(RoundTripTest, EveryWrittenField_Survives) {
  const std::string text = With("steps: 300", R"(steps: 300
  seed: 18446744073709551615
  time_limit: 1h30m
  precision: {compute: bf16}
  schedule: {name: 1f1b}
  optimizer: {learning_rate: 3.0000000000000004e-4, betas: [0.8, 0.99], decay: linear}
  checkpoint: {directory: "~", every: 7, resume_from: "true"}
  recovery: {ladder: [wait], widths: parity, state_home: host, budget: {window: 90s}}
  resources: {devices: 9}
  output: "17"
  trace: true
  profile: true)",
                                With("  optimizer: {learning_rate: 1e-3, warmup_steps: 20}\n", ""));
  const JobSpec spec = Right(text);
  const JobSpec again = Right(Complete(spec));
  EXPECT_EQ(Complete(again), Complete(spec));
  EXPECT_EQ(again.seed, 18446744073709551615u);
  EXPECT_EQ(again.optimizer.learning_rate, 3.0000000000000004e-4);
  EXPECT_EQ(again.checkpoint->directory, "~");
  EXPECT_EQ(again.output, "17");
  EXPECT_EQ(*again.time_limit, absl::Minutes(90));
  EXPECT_THAT(again.recovery.ladder, ElementsAre(Rung::kWait));
}

TEST(RoundTripTest, Json_IsReadLikeYaml) {
  const JobSpec spec = Right(kDocument);
  EXPECT_EQ(Complete(Right(EmitJson(WriteJobSpec(spec)))), Complete(spec));
}

TEST(RoundTripTest, PlannedDocument_WithoutArchitectures_ReadsBack) {
  const JobSpec spec = Right(R"(metadata: {name: demo}
spec:
  steps: 1
  modules:
    - {name: language, architecture: {layers: 5}, parallel: {ranks: 4, pp: 2, layers: [2, 3]}}
    - {name: vision}
  edges: [{from: vision, to: language, projector: {}}]
  batch: {global: 8}
)",
                             Purpose::kPlan);
  EXPECT_EQ(Complete(Right(Complete(spec), Purpose::kPlan)), Complete(spec));
}

}  // namespace
}  // namespace phalanx::job
