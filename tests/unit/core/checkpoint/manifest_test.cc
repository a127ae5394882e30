#include "core/checkpoint/manifest.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/checkpoints.h"
#include "tests/support/specs.h"

namespace phalanx::checkpoint {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

job::JobSpec ASpec() {
  return AJob()
      .Module("vision", ClipVision(), {.tp = 2, .frozen = true})
      .Module("language", Llama(), {.tp = 2, .dp = 2})
      .Edge("vision", "language", {.projector = 48})
      .Batch(8, 2)
      .Steps(100);
}

Manifest AManifest() {
  const auto plan = plan::MakePlan(ASpec(), plan::MakeCluster(1, 6), Epoch{1});
  return support::ManifestOf(*plan, support::MakeParts(*plan));
}

std::string Refusal(const Manifest& manifest) {
  return std::string(ReadManifest(WriteManifest(manifest)).status().message());
}

TEST(ManifestTest, ReadsBack) {
  const Manifest manifest = AManifest();
  ASSERT_EQ(manifest.parts.size(), 6u);
  const auto read = ReadManifest(WriteManifest(manifest));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(WriteManifest(*read), WriteManifest(manifest));
  EXPECT_EQ(read->model, manifest.model);
  EXPECT_EQ(read->parts, manifest.parts);
  EXPECT_EQ(read->decision.loss, 2.125);
  EXPECT_EQ(read->bytes(), manifest.bytes());
}

TEST(ManifestTest, SkippedStepWithoutALoss_ReadsBack) {
  Manifest manifest = AManifest();
  manifest.decision.verdict = Decision::Verdict::kSkipped;
  manifest.decision.loss = std::numeric_limits<double>::quiet_NaN();
  manifest.decision.gradient_norm = std::numeric_limits<double>::infinity();
  manifest.skipped_in_a_row = 1;
  const auto read = ReadManifest(WriteManifest(manifest));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(std::isnan(read->decision.loss));
  EXPECT_TRUE(std::isinf(read->decision.gradient_norm));
}

TEST(ManifestTest, ChangedText_IsRefused) {
  const std::string text = WriteManifest(AManifest());
  EXPECT_EQ(ReadManifest(absl::StrReplaceAll(text, {{"\"loss\": 2.125", "\"loss\": 2.5"}}))
                .status()
                .message(),
            "its digest does not fit: it was changed or is damaged");
  EXPECT_EQ(
      ReadManifest(absl::StrReplaceAll(text, {{"phalanx-1", "phalanx-9"}})).status().message(),
      "format: \"phalanx-9\": this release reads phalanx-1");
  EXPECT_THAT(std::string(ReadManifest(text.substr(0, text.size() / 2)).status().message()),
              HasSubstr("is no JSON at byte"));
  EXPECT_THAT(std::string(ReadManifest("[]").status().message()), HasSubstr("must be an object"));
}

struct ManifestLie {
  std::function<void(Manifest&)> tell;
  std::string said;
};

TEST(ManifestTest, Lies_AreNamed) {
  const std::vector<ManifestLie> lies = {
      {[](Manifest& m) { m.job = ""; }, "job: \"\": must be 1 to 63 letters"},
      {[](Manifest& m) { m.job = "demo\nstep-00000060.epoch-1"; }, "must be 1 to 63 letters"},
      {[](Manifest& m) { m.store = std::string(64, 'a'); }, "must be 1 to 63 letters"},
      {[](Manifest& m) { m.number = 0; }, "number: 0: must be an integer of at least 1"},
      {[](Manifest& m) { m.step = -50; }, "step: -50: must be an integer of at least 1"},
      {[](Manifest& m) { m.updates = 51; }, "updates: 51: must be an integer from 0 to 50"},
      {[](Manifest& m) { m.skipped_in_a_row = 2; },
       "skipped_in_a_row: 2: must be an integer from 0 to 1"},
      {[](Manifest& m) { m.skipped_in_a_row = 1; },
       "decision.verdict: \"committed\": skipped_in_a_row is 1"},
      {[](Manifest& m) { m.decision.tokens = -1; }, "decision.tokens: -1: must be"},
      {[](Manifest& m) { m.data_digest = "xyz"; },
       "data_digest: \"xyz\": must be 32 hexadecimal digits"},
      {[](Manifest& m) { m.model.modules[1].name = "vision"; },
       "modules[1].name: \"vision\": stands twice"},
      {[](Manifest& m) { m.model.modules[1].name = "a/b"; },
       "modules[1].name: \"a/b\": is no name of a module"},
      {[](Manifest& m) { m.model.modules.clear(); }, "modules: []: must not be empty"},
      {[](Manifest& m) { m.model.projectors[0].to = "audio"; },
       "projectors[0].to: \"audio\": is none of the modules"},
      {[](Manifest& m) { m.model.projectors[0].hidden_size = 0; }, "projectors[0].hidden_size: 0"},
      {[](Manifest& m) { m.parts.clear(); }, "parts: []: must not be empty"},
      {[](Manifest& m) { m.parts[1].file = "../rank-00001.safetensors"; },
       "parts[1].file: \"../rank-00001.safetensors\": must be the name of a part file"},
      {[](Manifest& m) { m.parts[1].file = m.parts[0].file; },
       "parts[1].file: \"rank-00000.safetensors\": must be of a later rank"},
      {[](Manifest& m) { m.parts[3].bytes = -5; }, "parts[3].bytes: -5: must be"},
      {[](Manifest& m) { m.parts[2].bytes = m.parts[3].bytes = int64_t{1} << 62; },
       "parts[3].bytes: 4611686018427387904: all parts together"},
      {[](Manifest& m) { m.parts[0].header_bytes = 65; }, "parts[0].header_bytes: 65: must be"},
      {[](Manifest& m) { m.parts[0].header_bytes = m.parts[0].bytes / 64 * 64 + 64; },
       "must be a multiple of 64 and less than bytes"},
      {[](Manifest& m) { m.parts[0].entries = 0; }, "parts[0].entries: 0: must be"},
      {[](Manifest& m) { m.parts[0].digest[0] = 'G'; }, "parts[0].digest: \"G"},
  };
  for (const ManifestLie& lie : lies) {
    Manifest manifest = AManifest();
    lie.tell(manifest);
    EXPECT_THAT(Refusal(manifest), HasSubstr(lie.said));
  }
}

std::vector<std::string> Against(const job::JobSpec& spec) {
  std::vector<std::string> said;
  for (const Violation& violation : Incompatible(spec, "step-00000050.epoch-3", AManifest())) {
    EXPECT_EQ(violation.field, "spec.checkpoint.resume_from");
    EXPECT_EQ(violation.value, "step-00000050.epoch-3");
    said.push_back(violation.rule);
  }
  return said;
}

TEST(IncompatibleTest, AnotherLayoutBatchAndLength_AreFree) {
  EXPECT_THAT(Against(ASpec()), IsEmpty());
  job::JobSpec spec = AJob()
                          .Module("language", Llama({.block = 16, .context = 64}), {.pp = 4})
                          .Module("vision", ClipVision({.block = 4}), {.dp = 3, .frozen = true})
                          .Edge("vision", "language", {.projector = 48})
                          .Batch(24, 3)
                          .Steps(50)
                          .Seed(99);
  spec.optimizer.learning_rate = 1;
  EXPECT_THAT(Against(spec), IsEmpty());
}

TEST(IncompatibleTest, EverythingOfAnotherModel_IsNamed) {
  const job::JobSpec spec =
      AJob()
          .Module("vision", ClipVision({.layers = 3}), {.tp = 2})
          .Module("language", Llama({.vocabulary = 256, .tied_head = true}), {.tp = 2, .dp = 2})
          .Edge("vision", "language", {.projector = 32, .frozen = true})
          .Batch(8, 2)
          .Steps(49)
          .Compute(job::Precision::kFp64);
  EXPECT_THAT(
      Against(spec),
      ElementsAre("the checkpoint has precision.compute fp32, the job's has fp64",
                  "module vision has layers 2, the job's has 3",
                  "module vision is frozen there and trains in the job",
                  "module language has vocabulary 96, the job's has 256",
                  "module language has tied_head false, the job's has true",
                  "the projector from vision to language has hidden_size 48, the job's has 32",
                  "the projector from vision to language trains there and is frozen in the job",
                  "is of step 50, and the job ends at step 49"));
}

TEST(IncompatibleTest, ModulesAndProjectors_MustBeTheSame) {
  const job::JobSpec spec = AJob()
                                .Module("audio", support::Whisper())
                                .Module("language", Llama(), {.tp = 2, .dp = 2})
                                .Edge("audio", "language", {.projector = 48})
                                .Batch(8, 2)
                                .Steps(100);
  EXPECT_THAT(Against(spec),
              ElementsAre("has no module audio", "has a module vision, the job has none",
                          "has not the projector from audio to language",
                          "has the projector from vision to language, the job has not"));
}

}  // namespace
}  // namespace phalanx::checkpoint
