#include "core/posix/held_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/posix/whole_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

// A folder that is allowed, and one beside it that is not.
struct HeldFolderTest : public ::testing::Test {
  HeldFolderTest() {
    for (const std::string& folder : {mine, other}) fs::create_directory(folder);
  }
  std::string LeadsTo(const std::string& path) const {
    return absl::StrCat("leads to ", path, "; must lead below ", mine);
  }

  const std::string root = fs::canonical(support::MakeFolder("held"));
  const std::string mine = root + "/mine", other = root + "/other";
  const std::vector<std::string> below = {mine};
};

TEST_F(HeldFolderTest, WhatIsDoneInIt_IsDoneThere_WhereverItsPathLeadsByThen) {
  const std::string path = mine + "/out";
  fs::create_directory(path);
  const auto folder = HeldFolder::Open(path, below);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(folder->IsAtItsPath());
  fs::rename(path, mine + "/moved");
  fs::create_directory_symlink(other, path);
  EXPECT_FALSE(folder->IsAtItsPath());
  const auto file = folder->OpenFile("a", O_WRONLY | O_CREAT);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(mkdirat(folder->descriptor(), "b", 0777), 0);
  EXPECT_EQ(renameat(folder->descriptor(), "a", folder->descriptor(), "c"), 0);
  EXPECT_THAT(*folder->Names(), ElementsAre("b", "c"));
  EXPECT_TRUE(folder->Sync().ok());
  EXPECT_TRUE(fs::exists(mine + "/moved/c"));
  EXPECT_TRUE(fs::is_empty(other));
  EXPECT_EQ(folder->PathOf("c"), path + "/c");
}

TEST_F(HeldFolderTest, WhatLeadsOutWhenItIsOpened_IsRefused) {
  fs::create_directory_symlink(other, mine + "/out");
  for (const auto& opened : {HeldFolder::Open(mine + "/out", below).status(),
                             HeldFolder::Make(mine + "/out", below).status(),
                             HeldFolder::Make(mine + "/out/a/b", below).status(),
                             HeldFolder::Open(mine + "/../other", below).status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(opened)) << opened;
    EXPECT_EQ(opened.message(), LeadsTo(other));
  }
  EXPECT_TRUE(fs::is_empty(other));
  EXPECT_TRUE(HeldFolder::Open(mine + "/out").ok()) << "nobody named a folder";
}

TEST_F(HeldFolderTest, LinksThatStayWithin_AreFollowed) {
  fs::create_directories(mine + "/deep/er");
  fs::create_directory_symlink("deep", mine + "/near");
  fs::create_directory_symlink(mine + "/near/er", mine + "/far");
  const auto folder = HeldFolder::Make(mine + "/far/a/b", below);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(fs::is_directory(mine + "/deep/er/a/b"));
  EXPECT_TRUE(HeldFolder::Open(mine, below).ok()) << "the folder itself";
  EXPECT_TRUE(HeldFolder::Open(other, {"/"}).ok());
}

TEST_F(HeldFolderTest, FolderThatWasNamedAndIsNotThere_IsMade) {
  const std::string named = root + "/not/there";
  const auto folder = HeldFolder::Make(named + "/out", {mine, named});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(fs::is_directory(named + "/out"));
  EXPECT_FALSE(HeldFolder::Make(root + "/beside", {mine, named}).ok());
  EXPECT_FALSE(fs::exists(root + "/beside"));
}

TEST_F(HeldFolderTest, FolderThatWasNamedAndIsNotThere_IsMade_HoweverThePathLeadsThere) {
  const std::string named = root + "/not/there";
  fs::create_directory_symlink("not/there", root + "/link");
  for (const std::string& path :
       {named + "/out", mine + "/../not/there/out", named + "/./out", root + "/link/out"}) {
    fs::remove_all(root + "/not");
    const auto folder = HeldFolder::Make(path, {mine, named + "/"});
    EXPECT_TRUE(folder.ok()) << path << ": " << folder.status();
    EXPECT_TRUE(fs::is_directory(named + "/out")) << path;
  }
}

TEST_F(HeldFolderTest, FolderThatWasNamedAndCannotBeMade_IsToldWithWhatTheSystemSays) {
  fs::permissions(root, fs::perms(0555));
  constexpr uid_t kNobody = 65534;
  const uid_t before = geteuid();
  if (before == 0) {
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  const absl::Status told =
      HeldFolder::Make(root + "/not/there/out", {root + "/not/there"}).status();
  ASSERT_EQ(seteuid(before), 0);
  fs::permissions(root, fs::perms(0700));
  EXPECT_TRUE(absl::IsPermissionDenied(told)) << told;
  EXPECT_EQ(told.message(), "Permission denied");
}

TEST_F(HeldFolderTest, ErrorsSayWhatTheSystemSays) {
  support::WriteFile(mine + "/file", "");
  fs::create_directory_symlink("nothing", mine + "/dead");
  EXPECT_TRUE(absl::IsNotFound(HeldFolder::Open(mine + "/none", below).status()));
  EXPECT_TRUE(absl::IsNotFound(HeldFolder::Make(mine + "/dead", below).status()));
  const absl::Status file = HeldFolder::Make(mine + "/file/a", below).status();
  EXPECT_TRUE(absl::IsUnavailable(file));
  EXPECT_EQ(file.message(), "Not a directory");
}

TEST_F(HeldFolderTest, FolderOfAName_IsNoLink) {
  fs::create_directory(mine + "/a");
  fs::create_directory_symlink("a", mine + "/b");
  const auto folder = HeldFolder::Open(mine, below);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(folder->OpenFolder("a").ok());
  EXPECT_FALSE(folder->OpenFolder("b").ok());
  EXPECT_FALSE(folder->OpenFolder("..").ok());
}

TEST_F(HeldFolderTest, LinkToAFile_MakesItWithin_AndNothingElsewhere) {
  fs::create_directory(mine + "/out");
  const auto folder = HeldFolder::Open(mine + "/out", below);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string link = mine + "/out/a";
  const auto open_led = [&](const std::string& to, int flags) {
    fs::remove(link);
    fs::create_symlink(to, link);
    return folder->OpenFile("a", flags).status();
  };
  for (const std::string& to : {std::string("b"), std::string("../c"), mine + "/d"}) {
    const absl::Status opened = open_led(to, O_WRONLY | O_CREAT);
    EXPECT_TRUE(opened.ok()) << to << ": " << opened;
  }
  for (const char* made : {"/out/b", "/c", "/d"}) EXPECT_TRUE(fs::exists(mine + made)) << made;
  fs::create_directory_symlink(other, mine + "/way");
  support::WriteFile(root + "/secret", "not theirs");
  for (const std::string& to : {other + "/e", std::string("../../other/e"), mine + "/way/e"}) {
    const absl::Status refused = open_led(to, O_WRONLY | O_CREAT | O_TRUNC);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << to << ": " << refused;
    EXPECT_EQ(refused.message(), LeadsTo(other));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(open_led(root + "/secret", O_RDONLY)));
  EXPECT_FALSE(open_led("a", O_RDONLY).ok()) << "it leads to itself";
  EXPECT_TRUE(fs::is_empty(other));
}

TEST_F(HeldFolderTest, WholeFile_IsWrittenWithin_AndNothingElsewhere) {
  fs::create_directory(mine + "/out");
  const std::string path = mine + "/out/a";
  // Whoever knows the name of what is written first lays a link there.
  fs::create_symlink(other + "/b", absl::StrCat(path, ".", getpid(), ".new"));
  ASSERT_TRUE(WriteWholeFile(path, "text", 0666, below).ok());
  EXPECT_EQ(support::ReadFile(path), "text");
  fs::remove_all(mine + "/out");
  fs::create_directory_symlink(other, mine + "/out");
  const absl::Status refused = WriteWholeFile(path, "text", 0666, below);
  EXPECT_EQ(refused.message(), absl::StrCat("cannot write ", path, ": ", LeadsTo(other)));
  EXPECT_TRUE(fs::is_empty(other));
}

}  // namespace
}  // namespace phalanx
