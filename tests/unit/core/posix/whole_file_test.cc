#include "core/posix/whole_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace phalanx {
namespace {

using ::testing::HasSubstr;

std::string FreshFolder() {
  std::string folder = ::testing::TempDir() + "/whole-file-XXXXXX";
  return mkdtemp(folder.data()) == nullptr ? "" : folder;
}

std::string Text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(WholeFileTest, Text_TakesThePlaceOfWhatWasThere) {
  const std::string folder = FreshFolder(), path = folder + "/a";
  ASSERT_TRUE(WriteWholeFile(path, "first").ok());
  ASSERT_TRUE(WriteWholeFile(path, "").ok());
  EXPECT_EQ(Text(path), "");
  const std::string long_text(1 << 20, 'x');
  ASSERT_TRUE(WriteWholeFile(path, long_text).ok());
  EXPECT_EQ(Text(path), long_text);
}

TEST(WholeFileTest, DiskThatIsFull_IsNamedAndLeavesWhatWasThere) {
  const std::string folder = FreshFolder(), path = folder + "/a";
  ASSERT_TRUE(WriteWholeFile(path, "before").ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{.rlim_cur = 10, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const absl::Status status = WriteWholeFile(path, std::string(100, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot write " + path + ": "));
  EXPECT_EQ(Text(path), "before");
  const auto entries = std::filesystem::directory_iterator(folder);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "a draft was left";
}

TEST(WholeFileTest, FolderThatIsNotThere_IsNamed) {
  const absl::Status status = WriteWholeFile("/nonexistent/a", "x");
  EXPECT_EQ(std::string(status.message()),
            "cannot write /nonexistent/a: No such file or directory");
}

}  // namespace
}  // namespace phalanx
