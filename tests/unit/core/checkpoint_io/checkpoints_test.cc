#include "core/checkpoint_io/checkpoints.h"

#include <filesystem>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/violation.h"
#include "core/checkpoint_io/lock.h"
#include "gmock/gmock.h"
#include "tests/unit/core/checkpoint_io/written.h"

namespace phalanx::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

class CheckpointsTest : public WrittenTest {
 protected:
  absl::Status Verify(const std::string& path,
                      const VerifyOptions& options = {.threads = 3}) const {
    const absl::StatusOr<Manifest> manifest = ReadManifestOf(path);
    return manifest.ok() ? VerifyCheckpoint(path, *manifest, options) : manifest.status();
  }
  std::string Damage(const std::string& path) const {
    const absl::Status status = Verify(path);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  }
  Choice Choose() const {
    auto choice = ChooseCheckpoint(folder_, spec_, {});
    EXPECT_TRUE(choice.ok()) << choice.status();
    return *std::move(choice);
  }
};

TEST_F(CheckpointsTest, Verify_ReadsEveryByte) {
  const std::string path = Write(50);
  for (const int32_t threads : {1, 3, 100}) {
    std::vector<int64_t> seen;
    const absl::Status sound = Verify(path, {.threads = threads, .on_bytes = [&](int64_t bytes) {
                                               seen.push_back(bytes);
                                               return absl::OkStatus();
                                             }});
    EXPECT_TRUE(sound.ok()) << sound;
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(seen.back(), ReadManifestOf(path)->bytes());
  }
}

TEST_F(CheckpointsTest, FlippedBitAnywhere_IsFoundAndNamed) {
  const std::string path = Write(50);
  const std::string file = PartPath(path, 2);
  const size_t bytes = support::ReadFile(file).size();
  const auto header = static_cast<size_t>(ReadManifestOf(path)->parts[2].header_bytes);
  for (size_t at = 0; at < bytes; at += at < header ? header / 7 : (bytes - header) / 50) {
    FlipBit(file, at);
    EXPECT_THAT(Damage(path), StartsWith("rank-00002.safetensors: ")) << at;
    if (at >= header) {
      EXPECT_THAT(Damage(path), AllOf(HasSubstr(": entry language/"),
                                      HasSubstr(": is damaged: its digest does not fit")))
          << at;
    }
    FlipBit(file, at);
  }
  EXPECT_TRUE(Verify(path).ok());
}

TEST_F(CheckpointsTest, EntryOfAFlippedBit_IsTheOne) {
  const std::string path = Write(50);
  const std::vector<Entry> entries = support::MakeParts(plan_)[2].header.entries;
  const auto header = static_cast<size_t>(ReadManifestOf(path)->parts[2].header_bytes);
  FlipBit(PartPath(path, 2), header + static_cast<size_t>(entries[5].offset));
  EXPECT_EQ(Damage(path), absl::StrCat("rank-00002.safetensors: entry ", NameOf(entries[5]),
                                       ": is damaged: its digest does not fit"));
}

TEST_F(CheckpointsTest, EverythingThatIsWrong_IsListedByFile) {
  const std::string path = Write(50);
  std::filesystem::remove(PartPath(path, 3));
  const auto bytes = std::filesystem::file_size(PartPath(path, 1));
  std::filesystem::resize_file(PartPath(path, 1), bytes - 1);
  FlipBit(PartPath(path, 4), std::filesystem::file_size(PartPath(path, 4)) - 1);
  const std::vector<std::string> lines = absl::StrSplit(Damage(path), '\n');
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[0], absl::StrCat("rank-00001.safetensors: has ", bytes - 1,
                                   " bytes, the manifest says ", bytes));
  EXPECT_THAT(lines[1], StartsWith("rank-00003.safetensors: cannot be opened: No such file"));
  EXPECT_THAT(lines[2], StartsWith("rank-00004.safetensors: entry language/"));
}

TEST_F(CheckpointsTest, MuchDamage_IsCounted) {
  const std::string path = Write(50);
  std::string bytes = support::ReadFile(PartPath(path, 1));
  const auto header = static_cast<size_t>(ReadManifestOf(path)->parts[1].header_bytes);
  for (size_t i = header; i < bytes.size(); ++i) bytes[i] ^= 1;
  support::WriteFile(PartPath(path, 1), bytes);
  const std::vector<std::string> lines = absl::StrSplit(Damage(path), '\n');
  ASSERT_THAT(lines, SizeIs(kDamageMax + 1));
  const size_t entries = static_cast<size_t>(ReadManifestOf(path)->parts[1].entries);
  EXPECT_EQ(lines.back(), absl::StrCat("and ", entries - kDamageMax, " more"));
}

// Parts that are each as their digests say, under a manifest that Phalanx did not write so.
TEST_F(CheckpointsTest, PartLeftOutOfTheManifest_IsMissed) {
  const std::string path = Write(50);
  Manifest manifest = *ReadManifestOf(path);
  manifest.parts.erase(manifest.parts.begin() + 2);
  support::WriteFile(path + "/manifest.json", WriteManifest(manifest));
  EXPECT_EQ(Damage(path),
            "language/lm_head.weight: the model has [96, 32], the files have [48, 32]");
}

TEST_F(CheckpointsTest, DamagedManifest_IsNamed) {
  const std::string path = Write(50);
  FlipBit(path + "/manifest.json", 100);
  EXPECT_THAT(Damage(path), StartsWith("manifest.json: "));
  std::filesystem::remove(path + "/manifest.json");
  EXPECT_TRUE(absl::IsNotFound(Verify(path)));
  EXPECT_EQ(Verify(path).message(), "has no manifest.json");
  std::filesystem::create_symlink("manifest.json", path + "/manifest.json");
  EXPECT_EQ(Damage(path), "manifest.json: is a link that leads to itself");
}

TEST_F(CheckpointsTest, List_IsNewestFirst_AndOfCheckpointsAlone) {
  Write(50);
  Write(150);
  Write(100);
  std::filesystem::create_directory(folder_ + "/.step-00000200.epoch-3.00c0ffee00c0ffee-job-7");
  std::filesystem::create_directory(folder_ + "/notes");
  support::WriteFile(folder_ + "/a file", "");
  const auto listed = ListCheckpoints(folder_);
  ASSERT_TRUE(listed.ok()) << listed.status();
  std::vector<std::string> names;
  for (const ListedCheckpoint& one : *listed) {
    names.push_back(ToString(one.name));
    EXPECT_TRUE(one.manifest.ok()) << one.manifest.status();
    EXPECT_GT(one.written, absl::UnixEpoch());
  }
  EXPECT_THAT(names, ElementsAre("step-00000150.epoch-3", "step-00000100.epoch-3",
                                 "step-00000050.epoch-3"));
  EXPECT_TRUE(absl::IsNotFound(ListCheckpoints(folder_ + "/none").status()));
}

TEST_F(CheckpointsTest, RenamedCheckpoint_IsSeen) {
  const std::string path = Write(50);
  std::filesystem::rename(path, folder_ + "/step-00000060.epoch-3");
  EXPECT_EQ(ListCheckpoints(folder_)->front().manifest.status().message(),
            "manifest.json: is of step 50, epoch 3");
}

TEST_F(CheckpointsTest, Choose_PassesOverBadOnes_AndSaysWhy) {
  const std::string good = Write(50);
  FlipBit(PartPath(Write(100), 1), 5000);
  std::filesystem::remove(PartPath(Write(150), 4));
  FlipBit(Write(200) + "/manifest.json", 50);
  std::filesystem::remove(Write(250) + "/manifest.json");
  const Choice choice = Choose();
  ASSERT_TRUE(choice.checkpoint.has_value());
  EXPECT_EQ(choice.checkpoint->path, good);
  EXPECT_EQ(choice.checkpoint->manifest.step, 50);
  EXPECT_THAT(
      choice.passed_over,
      ElementsAre("step-00000250.epoch-3: has no manifest.json",
                  StartsWith("step-00000200.epoch-3: manifest.json: "),
                  StartsWith("step-00000150.epoch-3: rank-00004.safetensors: cannot be opened"),
                  StartsWith("step-00000100.epoch-3: rank-00001.safetensors: ")));
}

TEST_F(CheckpointsTest, Choose_PassesOverAnotherModel) {
  Write(50);
  job::JobSpec other = spec_;
  other.modules[1].architecture.vocabulary = 256;
  other.modules[1].architecture.hidden_size = 64;
  const auto choice = ChooseCheckpoint(folder_, other, {});
  ASSERT_TRUE(choice.ok());
  EXPECT_FALSE(choice->checkpoint.has_value());
  EXPECT_THAT(choice->passed_over,
              ElementsAre("step-00000050.epoch-3: module language has hidden_size 32, the job's "
                          "has 64; module language has vocabulary 96, the job's has 256"));
}

// A field of the language module, in the manifest and in a job of the model that it describes.
struct Lie {
  const char* field;
  int64_t value;
  const char* fault;  // as verify tells it
};

class LyingManifestTest : public CheckpointsTest, public testing::WithParamInterface<Lie> {
 protected:
  // A checkpoint of the job that says that it is of the lie's model.
  std::string WriteLying(int64_t step) const {
    std::string path = Write(step);
    Manifest manifest = *ReadManifestOf(path);
    manifest.model = ModelOf(LyingJob());
    support::WriteFile(path + "/manifest.json", WriteManifest(manifest));
    return path;
  }
  job::JobSpec LyingJob() const {
    job::JobSpec spec = spec_;
    job::Architecture& architecture = spec.modules[1].architecture;
    const std::string field = GetParam().field;
    if (field == "layers") architecture.layers = static_cast<int32_t>(GetParam().value);
    if (field == "vocabulary") architecture.vocabulary = GetParam().value;
    if (field == "mlp_size") architecture.mlp_size = GetParam().value;
    if (field == "hidden_size") architecture.hidden_size = GetParam().value;
    if (field == "tied_head") architecture.tied_head = true;
    if (field == "frozen") spec.modules[1].frozen = true;
    return spec;
  }
};

TEST_P(LyingManifestTest, IsFoundOut_AndLatestIsTheNewestThatSaysTheTruth) {
  const std::string lying = WriteLying(100);
  EXPECT_EQ(Damage(lying), GetParam().fault);
  job::JobSpec job = LyingJob();
  const std::string good = support::WriteCheckpoint(PlanOf(job), folder_, 50);
  const auto choice = ChooseCheckpoint(folder_, job, {});
  ASSERT_TRUE(choice.ok()) << choice.status();
  ASSERT_TRUE(choice->checkpoint.has_value());
  EXPECT_EQ(choice->checkpoint->path, good);
  EXPECT_THAT(choice->passed_over,
              ElementsAre(absl::StrCat("step-00000100.epoch-3: ", GetParam().fault)));
  job.checkpoint = {.directory = folder_, .resume_from = lying};
  const std::vector<Violation> violations = ViolationsOf(ChooseToResume(job, "/", {}).status());
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].rule, GetParam().fault);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, LyingManifestTest,
    testing::Values(
        Lie{"layers", 1,
            "language/model.layers.1.input_layernorm.weight: the model has no such tensor, the "
            "files have [32, 1]"},
        Lie{"layers", 3,
            "language/model.layers.2.mlp.down_proj.weight: the model has [32, 64], the files have "
            "none of it"},
        Lie{"vocabulary", 64,
            "language/lm_head.weight: the model has [64, 32], the files have [96, 32]"},
        Lie{"vocabulary", 128,
            "language/lm_head.weight: the model has [128, 32], the files have [96, 32]"},
        Lie{"mlp_size", 32,
            "language/model.layers.1.mlp.down_proj.weight: the model has [32, 32], the files have "
            "[32, 64]"},
        Lie{"mlp_size", 640,
            "language/model.layers.1.mlp.down_proj.weight: the model has [32, 640], the files have "
            "[32, 64]"},
        Lie{"hidden_size", 16,
            "vision/projector.language.linear_2.bias: the model has [16, 1], the files have "
            "[32, 1]"},
        Lie{"hidden_size", 64,
            "vision/projector.language.linear_2.bias: the model has [64, 1], the files have "
            "[32, 1]"},
        Lie{"tied_head", 1,
            "language/lm_head.weight: the model has no such tensor, the files have [96, 32]"},
        Lie{"frozen", 1,
            "language/lm_head.weight: is frozen in the model, so it may have no #master"}),
    [](const auto& lie) { return absl::StrCat(lie.param.field, "_", lie.param.value); });

TEST_F(CheckpointsTest, ModuleThatTheManifestLeavesOut_IsNamed) {
  const std::string path = Write(50);
  Manifest manifest = *ReadManifestOf(path);
  manifest.model.modules.erase(manifest.model.modules.begin());
  manifest.model.projectors.clear();
  support::WriteFile(path + "/manifest.json", WriteManifest(manifest));
  EXPECT_THAT(Damage(path), AllOf(StartsWith("vision/"), HasSubstr("no such tensor")));
}

TEST_F(CheckpointsTest, ModuleThatTheManifestMakesUp_IsNamed) {
  const std::string path = Write(50);
  Manifest manifest = *ReadManifestOf(path);
  manifest.model.modules.push_back(manifest.model.modules[0]);
  manifest.model.modules.back().name = "more";
  support::WriteFile(path + "/manifest.json", WriteManifest(manifest));
  EXPECT_THAT(Damage(path), AllOf(StartsWith("more/"), HasSubstr("the files have none of it")));
}

TEST_F(CheckpointsTest, ProjectorThatTheManifestChanges_IsNamed) {
  const std::string path = Write(50);
  const Manifest manifest = *ReadManifestOf(path);
  for (const int64_t size : {32, 64}) {
    Manifest lying = manifest;
    lying.model.projectors[0].hidden_size = size;
    support::WriteFile(path + "/manifest.json", WriteManifest(lying));
    EXPECT_THAT(Damage(path), HasSubstr(absl::StrCat(
                                  "vision/projector.language.linear_2.weight: the model has [32, ",
                                  size, "], the files have [32, 48]")));
  }
}

TEST_F(CheckpointsTest, ManifestThatDescribesNoModel_IsRefusedByPath) {
  const std::string path = Write(50);
  Manifest manifest = *ReadManifestOf(path);
  for (auto& [field, value] : manifest.model.modules[1].architecture) {
    if (field == "layers") value = "many";
  }
  support::WriteFile(path + "/manifest.json", WriteManifest(manifest));
  EXPECT_EQ(Damage(path),
            "manifest.json: modules[1].architecture.layers: many: must be an integer from 1 to "
            "4096");
}

// Its job has published a newer one since, which was not there to be listed.
TEST_F(CheckpointsTest, Choose_WhereTheOneToTakeIsDeletedMeanwhile_LooksAgain) {
  const std::string older = Write(50);
  FlipBit(PartPath(Write(100), 1), 5000);
  std::string newer;
  const auto choice = ChooseCheckpoint(folder_, spec_, {.on_bytes = [&](int64_t) {
                                         if (newer.empty()) {
                                           std::filesystem::remove_all(older);
                                           newer = Write(150);
                                         }
                                         return absl::OkStatus();
                                       }});
  ASSERT_TRUE(choice.ok()) << choice.status();
  ASSERT_TRUE(choice->checkpoint.has_value());
  EXPECT_EQ(choice->checkpoint->path, newer);
  EXPECT_THAT(choice->passed_over, IsEmpty());
}

TEST_F(CheckpointsTest, CheckpointThatIsBeingDeleted_IsNotRead) {
  const std::string path = Write(50);
  const std::optional<CheckpointLock> deleting = CheckpointLock::ToDelete(path);
  ASSERT_TRUE(deleting.has_value());
  const absl::Status status = Verify(path);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(status.message(), "is being deleted by the job that wrote it");
  EXPECT_TRUE(absl::IsNotFound(ChooseCheckpoint(folder_, spec_, {}).status()));
}

TEST_F(CheckpointsTest, Choose_EndsWhereItIsCalledOff) {
  Write(50);
  int calls = 0;
  const auto choice = ChooseCheckpoint(folder_, spec_, {.on_bytes = [&](int64_t) {
                                         ++calls;
                                         return absl::CancelledError("called off");
                                       }});
  EXPECT_TRUE(absl::IsCancelled(choice.status())) << choice.status();
  EXPECT_EQ(calls, 1);
}

TEST_F(CheckpointsTest, Choose_NoFolder_HasNone) {
  const auto choice = ChooseCheckpoint(folder_ + "/none", spec_, {});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_FALSE(choice->checkpoint.has_value());
  EXPECT_THAT(choice->passed_over, IsEmpty());
}

}  // namespace
}  // namespace phalanx::checkpoint
