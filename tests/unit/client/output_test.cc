#include "client/output.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <ostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::client {
namespace {

// More than the buffer holds, so that a write fails long before somebody looks.
const std::string kLong(1 << 18, 'x');

TEST(FdBufferTest, WriteThatFails_KeepsItsReason) {
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  FdBuffer buffer(full.get());
  std::ostream out(&buffer);
  out << kLong << std::flush;
  errno = 0;
  out << "more" << std::flush;
  EXPECT_FALSE(out);
  EXPECT_EQ(buffer.error(), ENOSPC);
}

TEST(FdBufferTest, Text_ArrivesWholeAndInOrder) {
  const std::string path = support::MakeFolder("output") + "/text";
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  FdBuffer buffer(file.get());
  std::ostream out(&buffer);
  out << "a" << kLong << 7 << std::flush;
  EXPECT_EQ(buffer.error(), 0);
  EXPECT_EQ(support::ReadFile(path), "a" + kLong + "7");
}

TEST(OutputFileTest, FileThatCannotBeWritten_IsNamedWithTheReason) {
  OutputFile full("/dev/full"), nowhere("/nowhere/a");
  full.Write("x");
  nowhere.Write("x");
  EXPECT_EQ(full.Close().message(), "cannot write /dev/full: No space left on device");
  EXPECT_EQ(nowhere.Close().message(), "cannot write /nowhere/a: No such file or directory");
}

TEST(WriteOutputTest, DiskThatIsFull_LeavesTheOldFileWhole) {
  const std::string folder = support::MakeFolder("write-output"), path = folder + "/a.svg";
  support::WriteFile(path, "before");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{.rlim_cur = 10, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const absl::Status status = WriteOutput("--svg", path, kLong);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status, absl::UnavailableError("--svg: cannot write " + path + ": File too large"));
  EXPECT_EQ(support::ReadFile(path), "before");
  const auto entries = std::filesystem::directory_iterator(folder);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "a draft was left";
}

TEST(WriteOutputTest, LinkAndPermissions_Stay) {
  const std::string folder = support::MakeFolder("write-output-link");
  const std::string path = folder + "/a.svg", link = folder + "/link.svg";
  support::WriteFile(path, "before");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  std::filesystem::create_symlink("a.svg", link);
  EXPECT_TRUE(WriteOutput("--svg", link, "after").ok());
  EXPECT_EQ(support::ReadFile(path), "after");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(WriteOutputTest, WhatIsNoRegularFile_IsWrittenInPlace) {
  const std::string folder = support::MakeFolder("write-output-pipe"), pipe = folder + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const UniqueFd reader(open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_TRUE(WriteOutput("--dot", pipe, "text").ok());
  char text[8];
  EXPECT_EQ(read(reader.get(), text, sizeof(text)), 4);
  EXPECT_EQ(WriteOutput("--dot", "/dev/full", "x").message(),
            "--dot: cannot write /dev/full: No space left on device");
  EXPECT_EQ(WriteOutput("--dot", folder, "x").message(),
            "--dot: cannot write " + folder + ": Is a directory");
}

}  // namespace
}  // namespace phalanx::client
