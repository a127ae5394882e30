// Which checkpoint a job goes on from, as its resume_from says.
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/violation.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/checkpoint_io/lock.h"
#include "core/job/failure.h"
#include "gmock/gmock.h"
#include "tests/unit/core/checkpoint_io/written.h"

namespace phalanx::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

class ResumeTest : public WrittenTest {
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

TEST_F(ResumeTest, Latest_OfManyBadOnes_CountsThoseThatItDoesNotName) {
  for (int64_t step = 51; step <= 350; ++step)
    std::filesystem::create_directory(folder_ + "/" + ToString({.step = step, .epoch = 3}));
  const std::vector<std::string> refused = Rules("latest");
  EXPECT_THAT(refused.at(14), StartsWith("step-00000336.epoch-3: "));
  EXPECT_EQ(refused.at(15), "and 285 more");
  Write(50);
  EXPECT_EQ(Resume("latest")->passed_over, refused);
}

TEST_F(ResumeTest, Latest_OfWhatCannotBeRead_DoesNotBeginAnew) {
  support::WriteFile(folder_ + "/file", "");
  std::filesystem::create_symlink(folder_ + "/loop", folder_ + "/loop");
  std::filesystem::create_symlink(folder_ + "/nothing", folder_ + "/nowhere");
  const std::pair<std::string, std::string> cases[] = {
      {"/file", "/file: Not a directory"},
      {"/loop", absl::StrCat("/loop: is a link to ", folder_, "/loop: Too many levels")},
      {"/nowhere",
       absl::StrCat("/nowhere: is a link to ", folder_, "/nothing, which is not there")},
      {"/nowhere/checkpoints", "/nowhere: is a link to "}};
  for (const auto& [name, said] : cases) {
    const auto choice = Resume("latest", folder_ + name);
    EXPECT_EQ(job::KindIn(choice.status()), job::FailureKind::kCheckpointUnavailable);
    EXPECT_THAT(std::string(choice.status().message()),
                StartsWith(absl::StrCat("spec.checkpoint.directory: ", folder_, said)));
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

TEST_F(ResumeTest, WhatLeadsOutOfTheFoldersByNow_IsRefusedByItsField) {
  namespace fs = std::filesystem;
  const std::string mine = fs::canonical(folder_);
  const std::string other = fs::canonical(support::MakeFolder("elsewhere"));
  const std::string path = Write(50), part = PartPath(path, 1);
  job::JobSpec spec = spec_;
  spec.checkpoint = {.directory = folder_, .resume_from = path};
  const VerifyOptions within{.folders = {mine}};
  ASSERT_TRUE(ChooseToResume(spec, "/", within).ok());
  const auto expect_refused = [&](const std::string& file, const std::string& led) {
    const absl::Status refused = ChooseToResume(spec, "/", within).status();
    EXPECT_EQ(job::KindIn(refused), job::FailureKind::kCheckpointInvalid);
    EXPECT_EQ(refused.message(), absl::StrCat("spec.checkpoint.resume_from: ", path, ": ", file,
                                              ": leads to ", led, "; must lead below ", mine));
  };
  fs::rename(part, other + "/part");
  fs::create_symlink(other + "/part", part);
  expect_refused(PartFileName(1), other + "/part");
  fs::rename(path, other + "/moved");
  fs::create_directory_symlink(other + "/moved", path);
  expect_refused("manifest.json", other + "/moved/manifest.json");
  EXPECT_TRUE(ChooseToResume(spec, "/", {}).ok()) << "nobody named a folder";
  fs::create_directory_symlink(other, folder_ + "/link");
  spec.checkpoint = {.directory = folder_ + "/link", .resume_from = "latest"};
  const absl::Status refused = ChooseToResume(spec, "/", within).status();
  EXPECT_EQ(job::KindIn(refused), job::FailureKind::kCheckpointUnavailable);
  EXPECT_EQ(refused.message(), absl::StrCat("spec.checkpoint.directory: ", folder_,
                                            "/link: leads to ", other, "; must lead below ", mine));
}

// Such a job has nothing left to do.
TEST_F(ResumeTest, CheckpointOfTheJobsLastStep_IsTaken_AndNoneOfALaterOne) {
  const std::string path = Write(50);
  job::JobSpec spec = spec_;
  spec.checkpoint = {.directory = folder_, .resume_from = path};
  spec.steps = 50;
  EXPECT_TRUE(ChooseToResume(spec, "/", {}).ok());
  spec.steps = 49;
  const absl::Status later = ChooseToResume(spec, "/", {}).status();
  EXPECT_EQ(job::KindIn(later), job::FailureKind::kCheckpointInvalid);
  EXPECT_THAT(job::TraitsOf(job::FailureKind::kCheckpointInvalid).meaning,
              HasSubstr("of a step behind the job's last"));
}

TEST_F(ResumeTest, WhatIsBeingDeleted_IsOutOfReach) {
  const std::string path = Write(50);
  const std::optional<CheckpointLock> deleting = CheckpointLock::ToDelete(path);
  for (const std::string& from : {path, std::string("latest")}) {
    const auto choice = Resume(from);
    EXPECT_EQ(job::KindIn(choice.status()), job::FailureKind::kCheckpointUnavailable);
    EXPECT_THAT(std::string(choice.status().message()),
                AllOf(HasSubstr(path), HasSubstr("is being deleted")));
  }
}

TEST_F(ResumeTest, Path_ThatIsNotThere_MayComeBack) {
  for (const std::string& from : {folder_ + "/none", folder_}) {
    const auto choice = Resume(from);
    EXPECT_EQ(job::KindIn(choice.status()), job::FailureKind::kCheckpointUnavailable);
    EXPECT_THAT(std::string(choice.status().message()),
                AllOf(HasSubstr("spec.checkpoint.resume_from: "), HasSubstr(from)));
  }
}

}  // namespace
}  // namespace phalanx::checkpoint
