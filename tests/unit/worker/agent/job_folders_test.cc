// Where jobs of a node may read and write.
#include "worker/agent/job_folders.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/violation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobFoldersTest : public ::testing::Test {
 protected:
  JobFoldersTest() : root_(fs::canonical(support::MakeFolder("folders"))) {
    for (const char* folder : {"/data", "/runs", "/other", "/data-old"})
      fs::create_directory(root_ + folder);
  }

  // Violations of a job of the folder `data`, as people read them, with @ for the root.
  std::vector<std::string> Faults(const std::string& shards, const std::string& output,
                                  const std::string& checkpoint = "{directory: ../runs/c}") {
    const std::string text = absl::StrCat(
        R"(apiVersion: phalanx/v1
kind: TrainingJob
metadata: {name: a}
spec:
  steps: 1
  modules:
    - name: language
      architecture: {family: llama, hidden_size: 32, layers: 2, heads: 4, kv_heads: 2,
                     mlp_size: 64, vocabulary: 64, context: 32}
      parallel: {ranks: 1}
  batch: {global: 8, micro: 2}
  data: {format: webdataset, shards: )",
        shards, ", tokenizer: set.model}\n  output: ", output, "\n  checkpoint: ", checkpoint,
        "\n");
    std::vector<std::string> faults;
    const absl::Status status = CheckJobPaths(
        {.read = {root_ + "/data"}, .write = {root_ + "/runs"}}, text, root_ + "/data");
    for (const Violation& violation : ViolationsOf(status))
      faults.push_back(absl::StrReplaceAll(ToString(violation), {{root_, "@"}}));
    EXPECT_EQ(status.ok(), faults.empty()) << status;
    return faults;
  }

  const std::string root_;
};

TEST_F(JobFoldersTest, PathsInside_AreTaken) {
  EXPECT_THAT(Faults("set.tar", "../runs/out"), IsEmpty());
  EXPECT_THAT(Faults(root_ + "/data/./x/../set.tar", root_ + "/runs"), IsEmpty());
  EXPECT_THAT(Faults(root_ + "/runs/made.tar", root_ + "/runs/a/b"), IsEmpty())
      << "what may be written may be read";
}

TEST_F(JobFoldersTest, PathsOutside_AreNamedWithWhereTheyLead) {
  EXPECT_THAT(Faults("../other/set.tar", "out"),
              ElementsAre("spec.data.shards: ../other/set.tar: leads to @/other/set.tar; jobs of "
                          "this node read only in @/data, @/runs",
                          "spec.output: out: leads to @/data/out; jobs of this node write only in "
                          "@/runs"));
  EXPECT_THAT(Faults("set.tar", "../runs/../runs-old/out"),
              ElementsAre("spec.output: ../runs/../runs-old/out: leads to @/runs-old/out; jobs of "
                          "this node write only in @/runs"));
  EXPECT_THAT(Faults(root_ + "/data-old/set.tar", "../runs/out").size(), 1u)
      << "a name that begins like a folder is none of it";
  EXPECT_THAT(Faults("set.tar", "../runs/out", "{directory: c, resume_from: /etc}"),
              ElementsAre("spec.checkpoint.directory: c: leads to @/data/c; jobs of this node "
                          "write only in @/runs",
                          "spec.checkpoint.resume_from: /etc: leads to /etc; jobs of this node "
                          "read only in @/data, @/runs"));
  EXPECT_THAT(Faults("\"../other/{000..099}.tar\"", "../runs/out").size(), 4u) << "the first few";
}

TEST_F(JobFoldersTest, Links_AreFollowed_AlsoToWhatIsNotThereYet) {
  fs::create_symlink(root_ + "/other", root_ + "/runs/there");
  fs::create_symlink("../other/new", root_ + "/runs/not-yet");
  fs::create_symlink("inside", root_ + "/runs/own");
  fs::create_symlink("circle", root_ + "/runs/circle");
  EXPECT_THAT(Faults("set.tar", "../runs/there/out"),
              ElementsAre("spec.output: ../runs/there/out: leads to @/other/out; jobs of this node "
                          "write only in @/runs"));
  EXPECT_THAT(Faults("set.tar", "../runs/not-yet"),
              ElementsAre("spec.output: ../runs/not-yet: leads to @/other/new; jobs of this node "
                          "write only in @/runs"));
  EXPECT_THAT(Faults("set.tar", "../runs/there/../runs/out"), IsEmpty())
      << "the folder above is that of where the link leads";
  EXPECT_THAT(Faults("set.tar", "../runs/own/out"), IsEmpty());
  EXPECT_THAT(Faults("set.tar", "../runs/circle/out"),
              ElementsAre("spec.output: ../runs/circle/out: cannot be followed: @/runs/circle: "
                          "more than 40 links"));
}

TEST_F(JobFoldersTest, FolderThatIsALinkItself_HoldsWhereItLeads) {
  fs::create_directory_symlink(root_ + "/runs", root_ + "/short");
  EXPECT_THAT(Faults("set.tar", root_ + "/short/out"), IsEmpty());
}

TEST_F(JobFoldersTest, ControlCharacters_AreRefused) {
  for (const char* output : {"\"../runs/a\\0/../../../etc\"", "\"../runs/a\\nb\""}) {
    const std::vector<std::string> faults = Faults("set.tar", output);
    ASSERT_EQ(faults.size(), 1u) << output;
    EXPECT_THAT(faults[0], ::testing::HasSubstr("control characters"));
  }
}

TEST(JobFoldersOwnerTest, EachOwnerHasFoldersOfTheirOwn) {
  const JobFolders folders = {
      .read = {"/data"}, .write = {"/srv/{owner}/runs", "/scratch"}, .secrets = "secrets/{owner}"};
  const absl::StatusOr<JobFolders> alices = FoldersOf(folders, "alice@lab.org");
  ASSERT_TRUE(alices.ok()) << alices.status();
  EXPECT_THAT(alices->read, ElementsAre("/data"));
  EXPECT_THAT(alices->write, ElementsAre("/srv/alice@lab.org/runs", "/scratch"));
  EXPECT_EQ(alices->secrets, "secrets/alice@lab.org");
  for (const std::string owner : {"", ".", "..", "a/b"}) {
    const absl::Status refused = FoldersOf(folders, owner).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << owner;
    EXPECT_THAT(refused.message(), HasSubstr("{owner}"));
  }
  EXPECT_TRUE(FoldersOf({.read = {"/data"}}, "").ok()) << "none is of an owner";
}

TEST(JobFoldersOwnerTest, WhatAllOwnersHave_IsLookedAt) {
  EXPECT_EQ(CommonPart("/srv/{owner}/runs"), "/srv");
  EXPECT_EQ(CommonPart("/srv/runs/"), "/srv/runs/");
  EXPECT_EQ(CommonPart("/{owner}"), "/");
}

TEST(JobFoldersOwnerTest, OwnerStandsAloneBetweenSlashes) {
  EXPECT_TRUE(CheckJobFolders({.write = {"/srv/{owner}"}, .secrets = "{owner}"}).ok());
  EXPECT_EQ(CheckJobFolders({.read = {"/srv/of-{owner}"}}).message(),
            "--read-folder is \"/srv/of-{owner}\"; {owner} must stand alone between two slashes");
  EXPECT_FALSE(CheckJobFolders({.secrets = "/s/{owner}x"}).ok());
}

TEST(JobFoldersFlagTest, FolderBesideTheWorkingFolder_IsRefused) {
  EXPECT_TRUE(CheckJobFolders({.read = {"/data"}, .write = {"/"}}).ok());
  EXPECT_EQ(CheckJobFolders({.write = {"runs"}}).message(),
            "--write-folder is \"runs\"; it must be an absolute path");
}

}  // namespace
}  // namespace phalanx::agent
