#include "core/posix/file.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx {
namespace {

using ::testing::HasSubstr;

TEST(FileTest, Read_GivesExactlyWhatWasAskedFor) {
  const std::string path = support::MakeFolder("file") + "/a";
  support::WriteFile(path, "0123456789");
  const auto file = File::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->stamp().bytes, 10);
  std::string bytes;
  ASSERT_TRUE(file->Read(3, 4, bytes).ok());
  EXPECT_EQ(bytes, "3456");
  EXPECT_EQ(file->Read(8, 4, bytes).message(), "ends at byte 10, before 12");
}

TEST(FileTest, WhatIsNoFile_IsRefusedWithoutWaiting) {
  const std::string folder = support::MakeFolder("file");
  ASSERT_EQ(mkfifo((folder + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(File::Open(folder + "/pipe").status().message(), "is not a regular file");
  EXPECT_EQ(File::Open(folder).status().message(), "is not a regular file");
  EXPECT_THAT(std::string(File::Open(folder + "/none").status().message()),
              HasSubstr("cannot be opened: No such file"));
}

TEST(FileTest, WhatLeadsOutOfTheFolders_IsRefused_WhereverItLedBefore) {
  namespace fs = std::filesystem;
  const std::string root = fs::canonical(support::MakeFolder("file"));
  fs::create_directory(root + "/nowhere");
  for (const char* folder : {"/data", "/data-old", "/other"}) {
    fs::create_directory(root + folder);
    support::WriteFile(absl::StrCat(root, folder, "/a"), folder);
  }
  fs::create_directory_symlink(root + "/data", root + "/set");
  const std::vector<std::string> below = {root + "/nowhere", root + "/set"};
  const std::string link = root + "/data/link";
  fs::create_symlink("a", link);
  EXPECT_EQ(ReadWholeFile(link, 100, below).value(), "/data") << "it leads to what lies below";
  fs::remove(link);
  for (const char* folder : {"/data-old", "/other"}) {
    fs::create_symlink(absl::StrCat(root, folder, "/a"), link);
    EXPECT_EQ(File::Open(link, below).status().message(),
              absl::StrCat("leads to ", root, folder, "/a; must lead below ", root, "/nowhere, ",
                           root, "/set"));
    EXPECT_TRUE(File::Open(link).ok()) << "nobody named a folder";
    fs::remove(link);
  }
  fs::create_directory_symlink(root + "/other", root + "/data/folder");
  EXPECT_FALSE(File::Open(root + "/data/folder/a", below).ok()) << "a folder on the way";
  EXPECT_FALSE(File::Open(root + "/data/../other/a", below).ok());
  EXPECT_TRUE(File::Open(root + "/other/a", {"/"}).ok());
}

TEST(FileTest, FolderThatIsNotFound_IsNamed_UnlessTheFileLiesBelowAnother) {
  const std::string root = std::filesystem::canonical(support::MakeFolder("file"));
  std::filesystem::create_directory(root + "/data");
  support::WriteFile(root + "/data/a", "data");
  EXPECT_EQ(File::Open(root + "/data/a", {root + "/moved"}).status().message(),
            absl::StrCat("leads to ", root, "/data/a; the folder ", root,
                         "/moved cannot be found: No such file or directory"));
  EXPECT_TRUE(File::Open(root + "/data/a", {root + "/moved", root + "/data"}).ok());
}

TEST(ReadWholeFileTest, LongerThanAllowed_IsRefused) {
  const std::string path = support::MakeFolder("file") + "/a";
  support::WriteFile(path, "0123456789");
  EXPECT_EQ(ReadWholeFile(path, 10).value(), "0123456789");
  EXPECT_EQ(ReadWholeFile(path, 9).status().message(), "has 10 bytes; must have at most 9");
}

}  // namespace
}  // namespace phalanx
