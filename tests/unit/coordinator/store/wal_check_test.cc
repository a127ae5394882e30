// Logs that a machine's end has cut, and logs that are damaged.
#include "coordinator/store/wal_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/store/store_check.h"
#include "tests/support/files.h"
#include "tests/unit/coordinator/store/entries.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr size_t kHeader = 32, kFrameHeader = 24, kFrame = kFrameHeader + 4096;

class WalCheckTest : public ::testing::Test {
 protected:
  // A store as it is while it is open, with the commits of four records in its log; the last two
  // are of several frames.
  void SetUp() override {
    const std::string made = support::MakeFolder("made") + "/journal.db";
    auto backend = *SqliteBackend::Open(made);
    for (uint64_t number = 1; number <= 4; ++number) {
      const std::string bytes(number < 3 ? 10 : 5'000, static_cast<char>('a' + number));
      ASSERT_TRUE(backend->Commit({.records = {Of(number, bytes)}}).ok());
      ends_.push_back(support::ReadFile(made + "-wal").size());
    }
    whole_ = support::ReadFile(made + "-wal");
    std::filesystem::copy_file(made, path());
    ASSERT_EQ(ends_[1], ends_[0] + kFrame);
    ASSERT_GT(ends_[2], ends_[1] + kFrame);
    ASSERT_GT(ends_[3], ends_[2] + kFrame);
    ASSERT_EQ(ends_[3], whole_.size());
  }

  std::string path() const { return folder_ + "/journal.db"; }
  std::string log() const { return path() + "-wal"; }
  absl::Status Check(const std::string& bytes) const {
    support::WriteFile(log(), bytes);
    return CheckLog(log());
  }
  std::string Flipped(size_t at, int bits = 0xFF) const {
    std::string bytes = whole_;
    bytes[at] = static_cast<char>(bytes[at] ^ bits);
    return bytes;
  }
  // Each byte of the headers in [from, to), and some of each page.
  std::vector<size_t> Places(size_t from, size_t to) const {
    std::vector<size_t> places;
    for (size_t frame = from; frame < to; frame += kFrame) {
      for (size_t at = 0; at < kFrameHeader; ++at) places.push_back(frame + at);
      for (const size_t at : {kFrameHeader, size_t{1000}, kFrame - 1}) places.push_back(frame + at);
    }
    return places;
  }

  const std::string folder_ = support::MakeFolder("wal-check");
  std::string whole_;
  std::vector<size_t> ends_;  // of the log, after each commit
};

TEST_F(WalCheckTest, WholeLog_IsOk) { EXPECT_EQ(Check(whole_), absl::OkStatus()); }

TEST_F(WalCheckTest, NoLogOrAnEmptyOne_IsOk) {
  EXPECT_EQ(CheckLog(log()), absl::OkStatus());
  EXPECT_EQ(Check(""), absl::OkStatus());
  EXPECT_EQ(Check(std::string(kHeader + 3 * kFrame, '\0')), absl::OkStatus());
}

TEST_F(WalCheckTest, LogThatIsCutInItsLastCommit_IsOk) {
  support::WriteFile(log(), whole_);
  for (size_t bytes = whole_.size(); bytes-- > ends_[2];) {
    std::filesystem::resize_file(log(), bytes);
    ASSERT_EQ(CheckLog(log()), absl::OkStatus()) << bytes;
  }
}

// Its blocks reach the disk in whatever order.
TEST_F(WalCheckTest, LastCommitWithoutOneOfItsBlocks_IsOk) {
  for (size_t block = (ends_[2] + 511) / 512 * 512; block < whole_.size(); block += 512) {
    std::string bytes = whole_;
    for (size_t at = block; at < std::min(block + 512, bytes.size()); ++at) bytes[at] = '\0';
    ASSERT_EQ(Check(bytes), absl::OkStatus()) << block;
  }
}

TEST_F(WalCheckTest, ByteOfTheLastCommit_IsOk) {
  for (const size_t at : Places(ends_[2], ends_[3])) {
    EXPECT_EQ(Check(Flipped(at)), absl::OkStatus()) << at - ends_[2];
  }
}

TEST_F(WalCheckTest, ByteOfACommitBefore_IsRefusedWithTheFrame) {
  for (const size_t at : Places(kHeader, ends_[2])) {
    const absl::Status status = Check(Flipped(at));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << at;
    const size_t frame = (at - kHeader) / kFrame;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr(absl::StrCat(log(), ": frame ", frame + 1, " (at byte ",
                                     kHeader + frame * kFrame, ") is damaged")),
              HasSubstr("put a backup of the store in its place"), HasSubstr("move the log away")))
        << at;
  }
}

// As a disk loses it, with the end of one commit and the beginning of the next.
TEST_F(WalCheckTest, BlocksOfACommitBefore_AreRefused) {
  for (const size_t at : {ends_[0] - 2000, ends_[1] - 2000}) {
    std::string bytes = whole_;
    bytes.replace(at, 4096, 4096, '\0');
    EXPECT_EQ(Check(bytes).code(), absl::StatusCode::kDataLoss) << at;
  }
}

TEST_F(WalCheckTest, ByteOfTheHeader_IsRefused) {
  for (size_t at = 0; at < kHeader; ++at) {
    for (const int bits : {0x01, 0xFF}) {
      EXPECT_EQ(Check(Flipped(at, bits)).code(), absl::StatusCode::kDataLoss) << at;
    }
  }
}

// SQLite begins a log anew in the same file.
TEST_F(WalCheckTest, FramesOfAnOlderLogBehindTheEnd_AreOk) {
  std::string older = whole_.substr(ends_[1]);
  for (size_t frame = 0; frame < older.size(); frame += kFrame) older[frame + 8] ^= 1;
  EXPECT_EQ(Check(whole_.substr(0, ends_[1]) + older), absl::OkStatus());
  EXPECT_EQ(Check(whole_.substr(0, ends_[1] + 100) + older), absl::OkStatus());
}

// A machine stopped when it had written part of the header of a new log.
// Longer ones of before, that could not be synced and were taken back, one shorter than the other.
TEST_F(WalCheckTest, FramesOfCommitsThatFailedBehindTheEnd_AreOk) {
  const std::string one = whole_.substr(ends_[1], ends_[2] - ends_[1]);
  const std::string other = whole_.substr(ends_[2], ends_[3] - ends_[2]);
  EXPECT_EQ(Check(whole_.substr(0, ends_[1]) + other + one), absl::OkStatus());
  EXPECT_EQ(Check(whole_.substr(0, ends_[0]) + other + other + one), absl::OkStatus());
}

TEST_F(WalCheckTest, HeaderOfANewLogInPart_IsOk) {
  std::string bytes = whole_;
  for (size_t at = 16; at < kHeader; ++at) bytes[at] = static_cast<char>(bytes[at] ^ 0x5A);
  EXPECT_EQ(Check(bytes), absl::OkStatus());
}

TEST_F(WalCheckTest, StoreWithADamagedLog_IsRefusedByStartAndCheck_AndStaysAsItIs) {
  const std::string bytes = Flipped(ends_[0] + 100), database = support::ReadFile(path());
  support::WriteFile(log(), bytes);
  const absl::Status opened = SqliteBackend::Open(path()).status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(opened.message()), HasSubstr(log() + ": frame "));
  const auto report = CheckStore(path());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->problems, Contains(HasSubstr(log() + ": frame ")));
  EXPECT_EQ(support::ReadFile(log()), bytes);
  EXPECT_EQ(support::ReadFile(path()), database);
}

TEST_F(WalCheckTest, StoreWithATornLog_HasTheCommitsBefore) {
  support::WriteFile(log(), whole_.substr(0, whole_.size() - 1));
  auto backend = SqliteBackend::Open(path());
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ(All(**backend).size(), 3u);
}

}  // namespace
}  // namespace phalanx::coordinator
