#include "core/checkpoint_io/checkpoints.h"

#include <filesystem>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/job/failure.h"
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

class CheckpointsTest : public testing::Test {
 protected:
  std::string Write(int64_t step) const { return support::WriteCheckpoint(plan_, folder_, step); }
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

  const job::JobSpec spec_ = TwoModules();
  const plan::Plan plan_ = PlanOf(spec_);
  const std::string folder_ = support::MakeFolder("checkpoints");
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
TEST_F(CheckpointsTest, PartLeftOutOfTheManifest_LeavesAGap) {
  const std::string path = Write(50);
  Manifest manifest = *ReadManifestOf(path);
  manifest.parts.erase(manifest.parts.begin() + 2);
  support::WriteFile(path + "/manifest.json", WriteManifest(manifest));
  EXPECT_THAT(Damage(path), HasSubstr(": no file has all of row"));
}

TEST_F(CheckpointsTest, DamagedManifest_IsNamed) {
  const std::string path = Write(50);
  FlipBit(path + "/manifest.json", 100);
  EXPECT_THAT(Damage(path), StartsWith("manifest.json: "));
  std::filesystem::remove(path + "/manifest.json");
  EXPECT_TRUE(absl::IsNotFound(Verify(path)));
  EXPECT_EQ(Verify(path).message(), "has no manifest.json");
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

class ResumeTest : public CheckpointsTest {
 protected:
  absl::StatusOr<Choice> Resume(const std::string& from, const std::string& directory = "") {
    job::JobSpec spec = spec_;
    spec.checkpoint = {.directory = directory.empty() ? folder_ : directory, .resume_from = from};
    return ChooseToResume(spec, std::filesystem::path(folder_).parent_path().string(), {});
  }
  // What is wrong with the path, each by its rule.
  std::vector<std::string> Rules(const std::string& from) {
    const auto choice = Resume(from);
    EXPECT_EQ(job::KindIn(choice.status()), job::FailureKind::kCheckpointInvalid);
    std::vector<std::string> rules;
    for (const Violation& violation : ViolationsOf(choice.status())) {
      EXPECT_EQ(violation.field, "spec.checkpoint.resume_from");
      EXPECT_EQ(violation.value, from);
      rules.push_back(violation.rule);
    }
    return rules;
  }
};

TEST_F(ResumeTest, Latest_IsTheNewestThatIsSound) {
  const std::string good = Write(50);
  FlipBit(PartPath(Write(100), 1), 5000);
  const auto choice = Resume("latest");
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->checkpoint->path, good);
  EXPECT_THAT(choice->passed_over, SizeIs(1));
}

TEST_F(ResumeTest, Latest_WithoutAny_BeginsAnew) {
  for (const std::string& directory : {folder_, std::string("none")}) {
    const auto choice = Resume("latest", directory);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_FALSE(choice->checkpoint.has_value());
  }
}

TEST_F(ResumeTest, Latest_WithBadOnesAlone_IsRefusedWithEach) {
  FlipBit(PartPath(Write(50), 1), 5000);
  std::filesystem::remove(Write(100) + "/manifest.json");
  EXPECT_THAT(Rules("latest"),
              ElementsAre("step-00000100.epoch-3: has no manifest.json",
                          StartsWith("step-00000050.epoch-3: rank-00001.safetensors: ")));
}

TEST_F(ResumeTest, Latest_OfWhatCannotBeRead_DoesNotBeginAnew) {
  support::WriteFile(folder_ + "/file", "");
  std::filesystem::create_symlink(folder_ + "/loop", folder_ + "/loop");
  std::filesystem::create_symlink(folder_ + "/nothing", folder_ + "/nowhere");
  for (const std::string name : {"/file", "/loop", "/nowhere"}) {
    const auto choice = Resume("latest", folder_ + name);
    EXPECT_EQ(job::KindIn(choice.status()), job::FailureKind::kCheckpointUnavailable);
    EXPECT_THAT(std::string(choice.status().message()),
                StartsWith(absl::StrCat("spec.checkpoint.directory: ", folder_, name, ": ")));
  }
}

TEST_F(ResumeTest, Path_IsThatCheckpoint_FromTheJobsFolderOn) {
  const std::string path = Write(50);
  Write(100);
  const std::string relative = std::filesystem::path(folder_).filename().string();
  for (const std::string& from : {path, absl::StrCat(relative, "/step-00000050.epoch-3")}) {
    const auto choice = Resume(from);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->checkpoint->manifest.step, 50);
    EXPECT_THAT(choice->checkpoint->path, StartsWith("/"));
  }
}

TEST_F(ResumeTest, Path_ThatIsDamagedOrOfAnotherModel_IsRefusedByEveryRule) {
  const std::string damaged = Write(50);
  FlipBit(PartPath(damaged, 1), 5000);
  std::filesystem::remove(PartPath(damaged, 3));
  EXPECT_THAT(Rules(damaged), ElementsAre(StartsWith("rank-00001.safetensors: "),
                                          StartsWith("rank-00003.safetensors: cannot be opened")));
  const std::string lies = Write(100);
  FlipBit(lies + "/manifest.json", 50);
  EXPECT_THAT(Rules(lies), ElementsAre(StartsWith("manifest.json: ")));
  const std::string later = Write(150);
  job::JobSpec shorter = spec_;
  shorter.steps = 149;
  shorter.modules[1].architecture.vocabulary = 256;
  shorter.checkpoint = {.directory = folder_, .resume_from = later};
  EXPECT_THAT(ViolationsOf(ChooseToResume(shorter, "/", {}).status()), SizeIs(2));
}

TEST_F(ResumeTest, Path_ThatIsNotThere_MayComeBack) {
  for (const std::string& from : {folder_ + "/none", folder_}) {
    const auto choice = Resume(from);
    EXPECT_EQ(job::KindIn(choice.status()), job::FailureKind::kCheckpointUnavailable);
    EXPECT_THAT(std::string(choice.status().message()),
                AllOf(HasSubstr("spec.checkpoint.resume_from: "), HasSubstr(from)));
  }
}

TEST_F(CheckpointsTest, Choose_NoFolder_HasNone) {
  const auto choice = ChooseCheckpoint(folder_ + "/none", spec_, {});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_FALSE(choice->checkpoint.has_value());
  EXPECT_THAT(choice->passed_over, IsEmpty());
}

}  // namespace
}  // namespace phalanx::checkpoint
