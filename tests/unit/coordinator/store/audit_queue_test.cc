#include "coordinator/store/audit_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/posix/unique_fd.h"
#include "tests/support/files.h"
#include "tests/unit/coordinator/store/audit_time.h"

namespace phalanx::coordinator {
namespace {

// A pipe in the place of a file, which is full: whoever writes waits until somebody reads.
class HangingFile {
 public:
  explicit HangingFile(const std::string& path) {
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    pipe_ = UniqueFd(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    const std::string fill(4096, kFill);
    while (write(pipe_.get(), fill.data(), fill.size()) > 0) {
    }
    EXPECT_EQ(fcntl(pipe_.get(), F_SETFL, 0), 0);
  }
  // The next line that somebody has written. Waits for it.
  std::string ReadLine() {
    std::string line;
    for (char next = 0; read(pipe_.get(), &next, 1) == 1 && next != '\n';) {
      if (next != kFill) line.push_back(next);
    }
    return line;
  }

 private:
  static constexpr char kFill = '*';
  UniqueFd pipe_;
};

class AuditQueueTest : public ::testing::Test {
 protected:
  const std::string folder_ = support::MakeFolder("audit"), path_ = folder_ + "/audit.log";
  AuditFile file_{path_, {}, [](const absl::Status&) {}};
};

TEST_F(AuditQueueTest, LinesThatWait_AreWrittenInTheirOrder_WithTheTimesAtWhichTheyCame) {
  constexpr int kLines = 100;
  {
    AuditQueue queue(file_, {}, [] { FAIL(); });
    for (int line = 0; line < kLines; ++line)
      ASSERT_TRUE(
          queue.Put(absl::StrCat("audit ", line), kAuditTime + absl::Milliseconds(line)).ok());
  }
  std::string expected;
  for (int line = 0; line < kLines; ++line) {
    absl::StrAppend(&expected,
                    absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", kAuditTime + absl::Milliseconds(line),
                                     absl::UTCTimeZone()),
                    " audit ", line, "\n");
  }
  EXPECT_EQ(support::ReadFile(path_), expected);
}

TEST_F(AuditQueueTest, DiskThatHangs_HoldsNobodyUp_AndLinesSayHowManyAreMissing) {
  constexpr int kLines = 50;
  HangingFile hanging(path_);
  int full = 0, refused = 0;
  AuditQueue queue(file_, {.lines_max = 3}, [&full] { ++full; });
  for (int line = 0; line < kLines; ++line) {
    const absl::Status status = queue.Put(absl::StrCat("audit ", line), kAuditTime);
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    refused += status.ok() ? 0 : 1;
  }
  // Three wait, and at most three are with the thread.
  EXPECT_GE(refused, kLines - 6);
  EXPECT_GE(full, 1);
  EXPECT_LE(full, 2);

  int written = 0, missing = 0;
  while (written + missing < kLines) {
    const std::vector<std::string> words = absl::StrSplit(hanging.ReadLine(), ' ');
    ASSERT_GE(words.size(), 3u);
    int count = 0;
    if (absl::StartsWith(words[2], "missing=")) {
      ASSERT_TRUE(absl::SimpleAtoi(words[2].substr(8), &count));
      missing += count;
    } else {
      ++written;
    }
  }
  EXPECT_EQ(missing, refused);
  EXPECT_EQ(queue.not_written(), 0);
}

TEST_F(AuditQueueTest, LinesThatCannotBeWritten_AreCounted) {
  std::filesystem::remove(folder_);
  AuditQueue queue(file_, {}, [] { FAIL(); });
  for (const char* line : {"audit a", "audit b"}) EXPECT_TRUE(queue.Put(line, kAuditTime).ok());
  while (queue.not_written() < 2) std::this_thread::yield();
  std::filesystem::create_directory(folder_);
  EXPECT_TRUE(queue.Put("audit c", kAuditTime).ok());
  while (!std::filesystem::exists(path_)) std::this_thread::yield();
  EXPECT_EQ(queue.not_written(), 2);
}

}  // namespace
}  // namespace phalanx::coordinator
