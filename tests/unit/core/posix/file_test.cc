#include "core/posix/file.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>

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

TEST(ReadWholeFileTest, LongerThanAllowed_IsRefused) {
  const std::string path = support::MakeFolder("file") + "/a";
  support::WriteFile(path, "0123456789");
  EXPECT_EQ(ReadWholeFile(path, 10).value(), "0123456789");
  EXPECT_EQ(ReadWholeFile(path, 9).status().message(), "has 10 bytes; must have at most 9");
}

}  // namespace
}  // namespace phalanx
