// Write-ahead logs that a machine's end has cut, and those that are damaged.
#include "coordinator/store/wal_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/store/store_check.h"
#include "tests/support/files.h"
#include "tests/unit/coordinator/store/entries.h"

namespace phalanx::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr size_t kHeader = 32, kFrame = 24 + 4096;

class WalCheckTest : public ::testing::Test {
 protected:
  // A store as kill -9 leaves it, with three commits in its log.
  void SetUp() override {
    const std::string made = support::MakeFolder("made") + "/journal.db";
    auto backend = *SqliteBackend::Open(made);
    for (uint64_t number = 1; number <= 3; ++number) {
      Batch batch;
      batch.records.push_back(
          {.number = number, .job = JobId{1}, .bytes = absl::StrCat("record ", number)});
      ASSERT_TRUE(backend->Commit(batch).ok());
      ends_.push_back(support::ReadFile(made + "-wal").size());
    }
    log_ = support::ReadFile(made + "-wal");
    support::WriteFile(path_, support::ReadFile(made));
    ASSERT_GT(ends_[0], kHeader);
    ASSERT_LT(ends_[1], ends_[2]);
  }
  absl::Status Check(const std::string& log) {
    support::WriteFile(path_ + "-wal", log);
    return CheckWriteAheadLog(path_ + "-wal");
  }
  std::string Flipped(size_t at) const {
    std::string log = log_;
    log[at] = static_cast<char>(log[at] ^ 0x10);
    return log;
  }

  const std::string path_ = support::MakeFolder("store") + "/journal.db";
  std::string log_;
  std::vector<size_t> ends_;  // of the log behind each commit
};

TEST_F(WalCheckTest, LogThatIsWholeOrNotThere_IsSound) {
  EXPECT_EQ(CheckWriteAheadLog(path_ + "-wal"), absl::OkStatus());
  EXPECT_EQ(Check(log_), absl::OkStatus());
  EXPECT_EQ(Check(""), absl::OkStatus());
  EXPECT_EQ(Check(std::string(kHeader + 2 * kFrame, '\0')), absl::OkStatus());
}

TEST_F(WalCheckTest, LogThatIsCutAnywhere_IsSound) {
  for (size_t bytes = 0; bytes < log_.size(); bytes += 97)
    EXPECT_EQ(Check(log_.substr(0, bytes)), absl::OkStatus()) << bytes;
}

TEST_F(WalCheckTest, LastCommitInPart_IsSound_InWhateverOrderItsPagesCame) {
  for (size_t at = ends_[1]; at < ends_[2]; at += kFrame) {
    std::string log = log_;
    log.replace(at, kFrame, std::string(kFrame, '\0'));
    EXPECT_EQ(Check(log), absl::OkStatus()) << at;
  }
  for (size_t at = ends_[1]; at < ends_[2]; at += 101)
    EXPECT_EQ(Check(Flipped(at)), absl::OkStatus()) << at;
}

TEST_F(WalCheckTest, FramesOfALogBefore_BehindTheEnd_AreNone) {
  std::string log = log_;
  for (size_t at = ends_[0]; at < ends_[2]; at += kFrame) log[at + 8] ^= 1;  // their salts
  EXPECT_EQ(Check(log), absl::OkStatus());
}

// Such as a longer one that could not be synced.
TEST_F(WalCheckTest, FramesOfACommitThatFailed_BehindTheEnd_AreNone) {
  std::string log = log_.substr(0, ends_[0]);
  log += log_.substr(ends_[1], kFrame) + log_.substr(ends_[1]) + log_.substr(ends_[0], kFrame);
  EXPECT_EQ(Check(log), absl::OkStatus());
}

TEST_F(WalCheckTest, DamageBeforeTheLastCommit_IsRefused_AtStartAndByACheck) {
  for (const size_t at : {size_t{4}, size_t{18}, kHeader + 1, kHeader + 30, kHeader + 2000,
                          ends_[0] + 9, ends_[0] + 100, ends_[1] - 1}) {
    const absl::Status status = Check(Flipped(at));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << at << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("put a backup of the store")) << at;
  }
  ASSERT_FALSE(Check(Flipped(ends_[0] + 100)).ok());
  const auto report = CheckStore(path_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->problems, Contains(HasSubstr("journal.db-wal: frame ")));
  EXPECT_EQ(SqliteBackend::Open(path_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(support::ReadFile(path_ + "-wal"), Flipped(ends_[0] + 100)) << "it is left as it is";
}

}  // namespace
}  // namespace phalanx::coordinator
