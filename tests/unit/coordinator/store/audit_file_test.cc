#include "coordinator/store/audit_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "tests/support/files.h"
#include "tests/support/full_disk.h"
#include "tests/unit/coordinator/store/audit_time.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr size_t kLineBytes = 34;  // of a line "audit 10"

class AuditFileTest : public ::testing::Test {
 protected:
  AuditFile Open(AuditFileOptions options = {}) {
    return {path_, options,
            [this](const absl::Status& status) { changes_.push_back(status.ok()); }};
  }
  static std::vector<std::string> LinesOf(const std::string& path) {
    return absl::StrSplit(support::ReadFile(path), '\n', absl::SkipEmpty());
  }
  static void AppendThirty(AuditFile& file) {
    for (int line = 10; line < 40; ++line)
      ASSERT_TRUE(file.Append(absl::StrCat("audit ", line), kAuditTime).ok());
  }
  // Of those thirty, three in each file.
  void ExpectNewestNine(const std::vector<std::string>& ends) {
    int line = 31;
    for (const std::string& end : ends) {
      EXPECT_EQ(support::ReadFile(path_ + end).size(), 3 * kLineBytes) << end;
      for (const std::string& found : LinesOf(path_ + end))
        EXPECT_EQ(found, absl::StrCat(kAuditTimeText, "audit ", line++));
    }
    EXPECT_EQ(line, 40);
  }

  const std::string folder_ = support::MakeFolder("audit"), path_ = folder_ + "/audit.log";
  std::vector<bool> changes_;
};

TEST_F(AuditFileTest, Lines_AreThereWithTheirTimes_ForTheOwnerAlone) {
  AuditFile file = Open();
  ASSERT_TRUE(file.Append("audit a", kAuditTime).ok());
  ASSERT_TRUE(file.Append("audit b", kAuditTime + absl::Seconds(1)).ok());
  EXPECT_EQ(support::ReadFile(path_),
            absl::StrCat(kAuditTimeText, "audit a\n2023-11-14T22:13:21.123Z audit b\n"));
  struct stat found {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  EXPECT_THAT(changes_, IsEmpty());
}

// Who writes to a pipe waits for who reads it, and that would be every change.
TEST_F(AuditFileTest, PipeInItsPlace_IsRefused) {
  EXPECT_EQ(CheckAuditPlace(path_), absl::OkStatus());
  support::WriteFile(path_, "");
  EXPECT_EQ(CheckAuditPlace(path_), absl::OkStatus());
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(CheckAuditPlace(path_), absl::FailedPreconditionError(absl::StrCat(
                                        path_,
                                        ": must be a regular file: the audit is written there, and "
                                        "whatever else is there may hold it up; move it away")));
}

TEST_F(AuditFileTest, FileThatIsThere_GoesOn_BehindALineThatWasCut) {
  support::WriteFile(path_, "whole\ncu");
  AuditFile file = Open();
  ASSERT_TRUE(file.Append("audit a", kAuditTime).ok());
  EXPECT_THAT(LinesOf(path_), ElementsAre("whole", "cu", absl::StrCat(kAuditTimeText, "audit a")));
}

TEST_F(AuditFileTest, FilesAreBounded_AndTheNewestLinesStay) {
  AuditFile file = Open({.bytes_max = 3 * int64_t{kLineBytes}, .count_max = 3});
  AppendThirty(file);
  EXPECT_EQ(file.put_aside(), 9);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".3"));
  ExpectNewestNine({".2", ".1", ""});
}

TEST_F(AuditFileTest, FoldersInTheWay_CostTheirNumbersAlone) {
  for (const char* end : {".1", ".3"}) std::filesystem::create_directories(path_ + end + "/kept");
  AuditFile file = Open({.bytes_max = 3 * int64_t{kLineBytes}, .count_max = 5});
  AppendThirty(file);
  EXPECT_THAT(changes_, IsEmpty());
  ExpectNewestNine({".4", ".2", ""});
  for (const char* end : {".1", ".3"})
    EXPECT_TRUE(std::filesystem::is_directory(path_ + end + "/kept"));
}

TEST_F(AuditFileTest, FullFileThatCannotBePutAside_Stays) {
  std::filesystem::create_directory(path_ + ".1");
  AuditFile file = Open({.bytes_max = 3 * int64_t{kLineBytes}, .count_max = 2});
  for (int line = 10; line < 13; ++line)
    ASSERT_TRUE(file.Append(absl::StrCat("audit ", line), kAuditTime).ok());
  for (int line = 13; line < 16; ++line) {
    EXPECT_THAT(std::string(file.Append(absl::StrCat("audit ", line), kAuditTime).message()),
                StartsWith("cannot rename " + path_));
  }
  EXPECT_THAT(LinesOf(path_),
              ElementsAre(EndsWith("audit 10"), EndsWith("audit 11"), EndsWith("audit 12")));
  EXPECT_THAT(changes_, ElementsAre(false));
  EXPECT_EQ(file.put_aside(), 0);
  std::filesystem::remove(path_ + ".1");
  EXPECT_TRUE(file.Append("audit 16", kAuditTime).ok());
  EXPECT_THAT(LinesOf(path_), ElementsAre(HasSubstr("missing=3 "), EndsWith("audit 16")));
  EXPECT_THAT(LinesOf(path_ + ".1"), SizeIs(3));
}

TEST_F(AuditFileTest, FullFileOfBefore_IsNotWrittenFurther) {
  support::WriteFile(path_, std::string(99, 'x') + "\n");
  AuditFile file = Open({.bytes_max = 100, .count_max = 3});
  ASSERT_TRUE(file.Append("audit a", kAuditTime).ok());
  EXPECT_THAT(LinesOf(path_), SizeIs(1));
  EXPECT_EQ(support::ReadFile(path_ + ".1").size(), 100u);
}

TEST_F(AuditFileTest, DiskThatIsFull_LeavesNoPartOfALine_AndSaysLaterHowManyAreMissing) {
  AuditFile file = Open();
  ASSERT_TRUE(file.Append("audit a", kAuditTime).ok());
  {
    const support::FullDisk full(40);
    const absl::Status status = file.Append("audit b", kAuditTime);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), StartsWith("cannot write " + path_ + ": "));
    EXPECT_FALSE(file.Append("audit c", kAuditTime).ok());
    EXPECT_THAT(LinesOf(path_), ElementsAre(absl::StrCat(kAuditTimeText, "audit a")));
  }
  ASSERT_TRUE(file.Append("audit d", kAuditTime).ok());
  EXPECT_THAT(LinesOf(path_),
              ElementsAre(EndsWith("audit a"),
                          absl::StrCat(kAuditTimeText, "audit missing=2 reason=\"not written\""),
                          EndsWith("audit d")));
  EXPECT_THAT(changes_, ElementsAre(false, true));
}

TEST_F(AuditFileTest, FolderThatIsNotThereForAWhile_IsToldOfOnce) {
  std::filesystem::remove(folder_);
  AuditFile file = Open();
  EXPECT_THAT(std::string(file.Append("audit a", kAuditTime).message()),
              AllOf(HasSubstr(path_), HasSubstr("No such file or directory")));
  EXPECT_FALSE(file.Append("audit b", kAuditTime).ok());
  EXPECT_THAT(changes_, ElementsAre(false));
  std::filesystem::create_directory(folder_);
  EXPECT_TRUE(file.Append("audit c", kAuditTime).ok());
  EXPECT_THAT(changes_, ElementsAre(false, true));
}

TEST_F(AuditFileTest, LinesOfManyThreads_AreWholeAndThereOnce) {
  constexpr int kThreads = 8, kLines = 200;
  AuditFile file = Open({.bytes_max = 20'000, .count_max = 8});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&file, thread] {
      for (int line = 0; line < kLines; ++line)
        EXPECT_TRUE(file.Append(absl::StrCat("audit ", thread, "/", line), kAuditTime).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> lines;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    for (const std::string& line : LinesOf(entry.path())) lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(lines, SizeIs(kThreads * kLines));
  EXPECT_EQ(std::adjacent_find(lines.begin(), lines.end()), lines.end());
  EXPECT_THAT(lines, Each(StartsWith(absl::StrCat(kAuditTimeText, "audit "))));
}

}  // namespace
}  // namespace phalanx::coordinator
