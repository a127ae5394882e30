#include "worker/agent/log_spool.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/posix/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/full_disk.h"
#include "worker/agent/log_upload.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;

constexpr JobId kJob{7};

std::unique_ptr<LogSpool> OpenSpool(const std::string& state, int64_t epoch, int64_t bytes_max) {
  auto spool = LogSpool::Open(state, kJob, Epoch{epoch}, 3, bytes_max);
  EXPECT_TRUE(spool.ok()) << spool.status();
  return *std::move(spool);
}

std::string ReadAll(LogReader& reader, bool final) {
  std::string text;
  for (std::string part; !(part = reader.Next(final)).empty();) text += part;
  return text;
}

TEST(LogSpoolTest, DiskThatIsFull_IsSaid_AndWhatComesWhenItHasRoomIsKept) {
  const std::string state = support::MakeFolder("spool");
  const auto spool = OpenSpool(state, 1, 1000);
  {
    const support::FullDisk full(4);
    const LogSpool::Lost lost = spool->Append("0123456789");
    EXPECT_EQ(lost.bytes, 6);
    EXPECT_EQ(lost.error, EFBIG);
  }
  EXPECT_EQ(spool->Append("abc").bytes, 0);
  LogReader reader(state, kJob, 3, 0);
  EXPECT_EQ(ReadAll(reader, true), "0123abc");
}

TEST(LogSpoolTest, Text_BeyondTheCap_LosesTheOldest) {
  const std::string state = support::MakeFolder("spool");
  const auto spool = OpenSpool(state, 1, 20);
  spool->Append("0123456789");
  spool->Append("abcdefghij");
  spool->Append("ABC");
  LogReader reader(state, kJob, 3, 0);
  EXPECT_EQ(ReadAll(reader, true), "abcdefghijABC");
}

TEST(LogSpoolTest, OneAppend_LargerThanTheCap_KeepsItsEnd) {
  const std::string state = support::MakeFolder("spool");
  OpenSpool(state, 1, 10)->Append("0123456789abcdefghijABC");
  LogReader reader(state, kJob, 3, 0);
  EXPECT_EQ(ReadAll(reader, true), "fghijABC");
}

TEST(LogSpoolTest, OpenedAgain_GoesOnWhereItWas) {
  const std::string state = support::MakeFolder("spool");
  OpenSpool(state, 1, 10)->Append("0123");
  OpenSpool(state, 1, 10)->Append("456");
  LogReader reader(state, kJob, 3, 0);
  EXPECT_EQ(ReadAll(reader, true), "0123456");
}

TEST(LogSpoolTest, Tail_GivesWholeLines_AcrossRotation) {
  const std::string state = support::MakeFolder("spool");
  const auto spool = OpenSpool(state, 1, 20);
  spool->Append("one\ntwo\nt");
  spool->Append("hree\nfour\n");
  EXPECT_EQ(spool->Tail(100), "one\ntwo\nthree\nfour\n");
  EXPECT_EQ(spool->Tail(11), "three\nfour\n");
  EXPECT_EQ(spool->Tail(10), "four\n");
  EXPECT_EQ(spool->Tail(3), "ur\n");
}

TEST(LogReaderTest, Reader_HoldsBackALineUntilItEnds) {
  const std::string state = support::MakeFolder("spool");
  const auto spool = OpenSpool(state, 1, 1000);
  LogReader reader(state, kJob, 3, 0);
  EXPECT_EQ(reader.Next(false), "");
  spool->Append("one\ntw");
  EXPECT_EQ(ReadAll(reader, false), "one\n");
  spool->Append("o\n");
  EXPECT_EQ(ReadAll(reader, false), "two\n");
  spool->Append("three");
  EXPECT_EQ(ReadAll(reader, true), "three");
}

TEST(LogReaderTest, Reader_FollowsRotationAndNewEpochs) {
  const std::string state = support::MakeFolder("spool");
  const auto spool = OpenSpool(state, 1, 20);
  LogReader reader(state, kJob, 3, 0);
  spool->Append("111111111\n");
  EXPECT_EQ(ReadAll(reader, false), "111111111\n");
  spool->Append("222222222\n");
  spool->Append("333\n");
  EXPECT_EQ(ReadAll(reader, false), "222222222\n333\n");
  OpenSpool(state, 2, 20)->Append("444\n");
  EXPECT_EQ(ReadAll(reader, false), "444\n");
}

TEST(LogReaderTest, Reader_WhoseFileWasRotatedAway_GoesOnWithTheOldestLeft) {
  const std::string state = support::MakeFolder("spool");
  const auto spool = OpenSpool(state, 1, 8);
  spool->Append("one\n");
  LogReader reader(state, kJob, 3, 0);
  EXPECT_EQ(ReadAll(reader, false), "one\n");
  for (const char* text : {"two\n", "thr\n", "fou\n"}) spool->Append(text);
  EXPECT_EQ(ReadAll(reader, false), "thr\nfou\n");
}

// Its inode may be the newest file's by then.
TEST(LogReaderTest, Place_InAFileThatWasRotatedAway_GoesOnWithTheOldestLeft) {
  const std::string state = support::MakeFolder("spool");
  const UniqueFd folder(open(state.c_str(), O_RDONLY | O_CLOEXEC));
  long generation = 0;
  if (ioctl(folder.get(), FS_IOC_GETVERSION, &generation) != 0)
    GTEST_SKIP() << "the file system knows no generations";
  const auto spool = OpenSpool(state, 1, 8);
  spool->Append("one\n");
  std::string place;
  {
    LogReader reader(state, kJob, 3, 0);
    EXPECT_EQ(reader.Next(false), "one\n");
    place = reader.place();
  }
  for (const char* text : {"two\n", "thr\n"}) spool->Append(text);
  LogReader next(state, kJob, 3, 0, place);
  EXPECT_EQ(ReadAll(next, false), "two\nthr\n");
}

// Once it lost what was written between its look at the end of a file and at the file behind.
// A thread writes lines while another one reads them. Both sleep where they can only wait for each
// other, so that a machine that is busy with something else has little to give them.
class Race {
 public:
  static constexpr int kLines = 20'000;

  Race(LogSpool& spool, std::function<bool(int line, int read)> may_write)
      : writer_([&spool, this, may_write = std::move(may_write)] {
          for (int line = 0; line < kLines; ++line) {
            for (int read = read_; !may_write(line, read); read = read_) {
              if (over_) return;
              read_.wait(read);
            }
            if (over_) return;
            spool.Append(absl::StrFormat("%07d\n", line));
            written_ = line + 1;
            written_.notify_one();
          }
        }) {}
  ~Race() {
    over_ = true;
    read_ = kLines + 1;  // whatever it waits behind
    read_.notify_one();
  }

  // With what `next` gives, time and again: the lines in their order. How many it has given before
  // it gave something else, or nothing for a minute though there was something.
  int Read(const std::function<std::string()>& next) {
    using std::chrono::steady_clock;
    steady_clock::time_point give_up = steady_clock::now() + std::chrono::minutes(1);
    while (read_ < kLines && steady_clock::now() < give_up) {
      const int written = written_;
      const std::string text = next();
      int line = read_;
      std::string wanted;
      for (size_t i = 0; i < text.size() / 8; ++i) absl::StrAppendFormat(&wanted, "%07d\n", line++);
      if (text != wanted) {
        ADD_FAILURE() << "behind line " << read_ - 1 << " comes " << text.substr(0, 7);
        break;
      }
      if (!text.empty()) {
        read_ = line;
        read_.notify_one();
      } else if (read_ == written) {
        written_.wait(written);
      } else {
        continue;
      }
      give_up = steady_clock::now() + std::chrono::minutes(1);
    }
    return read_;
  }

 private:
  std::atomic<int> read_ = 0, written_ = 0;  // lines
  std::atomic<bool> over_ = false;
  std::jthread writer_;
};

TEST(LogReaderTest, Reader_OfAFileThatIsRotatedMeanwhile_LosesNothingThatIsKept) {
  constexpr int kLinesOfFile = 2;
  const std::string state = support::MakeFolder("spool");
  const auto spool = OpenSpool(state, 1, 2 * kLinesOfFile * 8);
  // What is rotated away has been read.
  Race race(*spool,
            [](int line, int read) { return read >= (line / kLinesOfFile - 1) * kLinesOfFile; });
  LogReader reader(state, kJob, 3, 0);
  EXPECT_EQ(race.Read([&] { return reader.Next(false); }), Race::kLines);
}

// Once the rest of a file was passed over that was rotated between a look at its name and its
// opening.
TEST(LogReaderTest, ReadersThatGoOnFromAPlaceInAFileThatIsRotatedMeanwhile_LoseNothing) {
  constexpr int kLinesOfFile = 4;
  const std::string state = support::MakeFolder("spool");
  const auto spool = OpenSpool(state, 1, 2 * kLinesOfFile * 8);
  // The file with the last place is there.
  Race race(*spool, [](int line, int read) {
    return line / kLinesOfFile <= (read - 1) / kLinesOfFile + 1;
  });
  std::string place;
  const auto next = [&] {
    LogReader reader(state, kJob, 3, 0, place);
    std::string text = reader.Next(false);
    if (!text.empty()) place = reader.place();
    return text;
  };
  EXPECT_EQ(race.Read(next), Race::kLines);
}

TEST(LogReaderTest, Place_IsWhereAnotherReaderGoesOn_AlsoInTheMiddleOfAFile) {
  const std::string state = support::MakeFolder("spool");
  const auto spool = OpenSpool(state, 1, 20);
  spool->Append("one\ntwo\nt");
  std::string place;
  {
    LogReader reader(state, kJob, 3, 0);
    EXPECT_EQ(reader.place(), "");
    EXPECT_EQ(ReadAll(reader, false), "one\ntwo\n");
    place = reader.place();
  }
  spool->Append("hree\nfour\n");  // the line that is cut goes on in the next file
  LogReader next(state, kJob, 3, /*tail=*/1, place);
  EXPECT_EQ(next.place(), place);
  EXPECT_EQ(ReadAll(next, false), "three\nfour\n");
  OpenSpool(state, 2, 20)->Append("five\n");
  LogReader last(state, kJob, 3, 0, next.place());
  EXPECT_EQ(ReadAll(last, false), "five\n");
}

TEST(LogReaderTest, Place_ThatIsNoLongerKept_GoesOnWithTheOldestLeftOfLaterText) {
  const std::string state = support::MakeFolder("spool");
  OpenSpool(state, 1, 8)->Append("old\n");
  const auto spool = OpenSpool(state, 2, 8);
  spool->Append("one\n");
  LogReader reader(state, kJob, 3, 0);
  EXPECT_EQ(ReadAll(reader, false), "old\none\n");
  for (const char* text : {"two\n", "thr\n", "fou\n"}) spool->Append(text);
  LogReader next(state, kJob, 3, 0, reader.place());
  EXPECT_EQ(ReadAll(next, false), "thr\nfou\n");
}

TEST(LogReaderTest, Place_ThatIsNone_StartsAtTheOldestKept) {
  const std::string state = support::MakeFolder("spool");
  OpenSpool(state, 1, 20)->Append("one\n");
  for (const char* place : {"x", "1:2", "1:x:0", "1:2:3:4"}) {
    LogReader reader(state, kJob, 3, 0, place);
    EXPECT_EQ(ReadAll(reader, false), "one\n") << place;
  }
}

TEST(LogReaderTest, Text_IsOfOneEpochAtATime_AlsoWhereOneEndedWithinALine) {
  const std::string state = support::MakeFolder("spool");
  OpenSpool(state, 1, 1000)->Append("one\ncut");
  OpenSpool(state, 4, 1000)->Append("four\n");
  LogReader reader(state, kJob, 3, 0);
  EXPECT_EQ(reader.Next(false), "one\ncut");
  EXPECT_EQ(reader.epoch(), Epoch{1});
  EXPECT_EQ(reader.Next(false), "four\n");
  EXPECT_EQ(reader.epoch(), Epoch{4});
  EXPECT_EQ(reader.Next(false), "");
}

TEST(LogReaderTest, Tail_CountsLinesOverFilesAndEpochs) {
  const std::string state = support::MakeFolder("spool");
  const auto spool = OpenSpool(state, 1, 8);
  for (const char* text : {"one\n", "two\n"}) spool->Append(text);
  OpenSpool(state, 2, 8)->Append("thr\nx");
  const auto tail = [&](int32_t lines) {
    LogReader reader(state, kJob, 3, lines);
    return ReadAll(reader, true);
  };
  EXPECT_EQ(tail(1), "x");
  EXPECT_EQ(tail(2), "thr\nx");
  EXPECT_EQ(tail(3), "two\nthr\nx");
  EXPECT_EQ(tail(100), "one\ntwo\nthr\nx");
}

TEST(LogFilesTest, OldJobs_LoseTheirLogs_ButNotThoseToKeep) {
  const std::string state = support::MakeFolder("spool");
  for (size_t job = 1; job <= kJobsMax + 2; ++job) {
    std::filesystem::create_directories(absl::StrCat(state, "/jobs/", job));
  }
  RemoveOldLogs(state, {JobId{1}});
  EXPECT_TRUE(std::filesystem::exists(state + "/jobs/1"));
  EXPECT_FALSE(std::filesystem::exists(state + "/jobs/2"));
  EXPECT_TRUE(std::filesystem::exists(state + "/jobs/3"));
}

TEST(LogFilesTest, OldEpochs_LoseTheirLogs_AndWhoReadsThemGoesOnWithTheNext) {
  const std::string state = support::MakeFolder("spool");
  OpenSpool(state, 1, 20)->Append("one\n");
  OpenSpool(state, 2, 20)->Append("two\n");
  LogReader reader(state, kJob, 3, 0);
  EXPECT_EQ(reader.Next(false), "one\n");
  const auto oldest = [&] { return LogFiles(state, kJob, 3).front().epoch; };
  for (int64_t epoch = 3; epoch <= static_cast<int64_t>(kEpochsMax); ++epoch)
    OpenSpool(state, epoch, 20);
  EXPECT_EQ(oldest(), Epoch{1});
  OpenSpool(state, static_cast<int64_t>(kEpochsMax) + 2, 20)->Append("last\n");
  EXPECT_EQ(oldest(), Epoch{2}) << "so many are kept, whatever their numbers";
  EXPECT_EQ(reader.Next(false), "two\n");
  EXPECT_EQ(ReadAll(reader, true), "last\n");
}

TEST(LogFilesTest, FarTooManyEpochs_LoseTheirLogsAFewAtATime) {
  const std::string state = support::MakeFolder("spool");
  const auto all = static_cast<int64_t>(kEpochsMax) + 20;
  for (int64_t epoch = 1; epoch <= all; ++epoch)
    std::filesystem::create_directories(absl::StrCat(state, "/jobs/", kJob.value, "/", epoch));
  const auto is_there = [&](int64_t epoch) {
    return std::filesystem::exists(absl::StrCat(state, "/jobs/", kJob.value, "/", epoch));
  };
  OpenSpool(state, all + 1, 20);
  EXPECT_FALSE(is_there(8));
  EXPECT_TRUE(is_there(9));
  OpenSpool(state, all + 1, 20);
  EXPECT_TRUE(is_there(9)) << "the epoch is not new";
  OpenSpool(state, all + 2, 20);
  OpenSpool(state, all + 3, 20);
  EXPECT_FALSE(is_there(23));
  EXPECT_TRUE(is_there(24)) << "so many are kept";
}

TEST(LogFilesTest, Stores_HaveLogsOfTheirOwn_AndOnlyThePresentOneKeepsThem) {
  const std::string state = support::MakeFolder("spool");
  const std::string before = StoreFolder(state, 5), present = StoreFolder(state, 0xABC);
  OpenSpool(before, 1, 20)->Append("theirs");
  OpenSpool(present, 1, 20)->Append("ours");
  LogReader reader(present, kJob, 3, 0);
  EXPECT_EQ(ReadAll(reader, true), "ours");
  RemoveOtherStores(state, 0xABC);
  EXPECT_FALSE(std::filesystem::exists(before));
  LogReader again(present, kJob, 3, 0);
  EXPECT_EQ(ReadAll(again, true), "ours");
}

TEST(LogFilesTest, LoggedRanks_AreListedOnce) {
  const std::string state = support::MakeFolder("spool");
  for (int64_t epoch = 1; epoch <= 2; ++epoch) OpenSpool(state, epoch, 20)->Append("x");
  ASSERT_TRUE(LogSpool::Open(state, kJob, Epoch{2}, 0, 20).ok());
  EXPECT_THAT(LoggedRanks(state, kJob), ElementsAre(0, 3));
}

}  // namespace
}  // namespace phalanx::agent
