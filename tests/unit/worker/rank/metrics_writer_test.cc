#include "worker/rank/metrics_writer.h"

#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/job/failure.h"
#include "core/posix/held_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/event_file.h"
#include "tests/support/files.h"
#include "tests/support/full_disk.h"

namespace phalanx::rank {
namespace {

using ::testing::HasSubstr;

struct MetricsWriterTest : public ::testing::Test {
  absl::StatusOr<std::unique_ptr<MetricsWriter>> Open(const std::string& owner,
                                                      int64_t first_step = 1,
                                                      const std::string& predecessor = "") {
    MetricsOptions options;
    options.owner = owner;
    options.predecessor = predecessor;
    options.first_step = first_step;
    options.epoch = epoch;
    options.fence = fence;
    options.patience = patience;
    options.folders = folders;
    options.on_wait = [this](const absl::Status&) {
      ++waits;
      if (on_wait) on_wait();
    };
    return MetricsWriter::Open(folder, std::move(options));
  }
  // Steps `from` to `to` of a run.
  void Run(const std::string& owner, int64_t from, int64_t to,
           const std::string& predecessor = "") {
    auto writer = Open(owner, from, predecessor);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (int64_t step = from; step <= to; ++step) {
      ASSERT_TRUE((*writer)->Write({.step = step, .loss = 1}, 1).ok());
    }
  }
  std::string Text(const std::string& name = "metrics.jsonl") const {
    return support::ReadFile(folder + "/" + name);
  }
  static int Lines(const std::string& text) {
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

  const std::string folder = support::MakeFolder("metrics") + "/out";
  // What follows is of this epoch, planned at that time.
  void Enter(int64_t number, int64_t planned) {
    epoch = number;
    fence = planned;
  }

  absl::Duration patience = absl::Milliseconds(250);
  std::vector<std::string> folders;
  int64_t epoch = 0, fence = 0;
  int waits = 0;
  std::function<void()> on_wait;
};

TEST_F(MetricsWriterTest, AnotherJobInTheSameFolder_LeavesTheEarlierRecordsAlone) {
  Run("s/job-1", 1, 3);
  const std::string first = Text();
  Run("s/job-2", 1, 2);
  Run("t/job-1", 1, 1);  // a job of another store, with the number of the first
  EXPECT_EQ(Text("metrics.1.jsonl"), first);
  EXPECT_EQ(Lines(Text("metrics.2.jsonl")), 2);
  EXPECT_EQ(Lines(Text()), 1);
}

TEST_F(MetricsWriterTest, EventFile_HasTheFiguresOfTheLines) {
  ASSERT_EQ(support::Crc32c("123456789"), 0xE3069283u) << "the check value of CRC-32C";
  auto writer = Open("s/job-1");
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (int64_t step = 1; step <= 300; ++step) {  // from 128 on a step takes two bytes
    ASSERT_TRUE((*writer)
                    ->Write({.step = step,
                             .loss = 1.0 / static_cast<double>(step),
                             .gradient_norm = 0.5,
                             .learning_rate = 1e-3,
                             .tokens = 100 * step,
                             .seconds = 0.25},
                            1)
                    .ok());
  }
  std::string file = support::ReadFile(support::EventFileOf(folder));
  const auto events = support::ReadEvents(file);
  ASSERT_TRUE(events.ok()) << events.status();
  ASSERT_EQ(events->size(), 302u);
  EXPECT_EQ((*events)[0].file_version, "brain.Event:2");
  EXPECT_TRUE((*events)[1].starts);
  EXPECT_EQ((*events)[1].step, 1);
  for (int64_t step = 1; step <= 300; ++step) {
    const support::TensorBoardEvent& event = (*events)[static_cast<size_t>(step) + 1];
    EXPECT_EQ(event.step, step);
    EXPECT_GT(event.wall_time, 0);
    EXPECT_THAT(
        event.values,
        ::testing::ElementsAre(
            ::testing::Pair("train/gradient_norm", 0.5F),
            ::testing::Pair("train/learning_rate", 1e-3F),
            ::testing::Pair("train/loss", static_cast<float>(1.0 / static_cast<double>(step))),
            ::testing::Pair("train/tokens_per_second", static_cast<float>(400 * step))));
  }
  file[file.size() / 2] ^= 1;
  EXPECT_FALSE(support::ReadEvents(file).ok()) << "a bit is not as it was";
}

TEST_F(MetricsWriterTest, IncidentsOfAnotherJob_ArePutAside) {
  Run("s/job-1", 1, 3);
  std::filesystem::create_directories(folder + "/incidents/1");
  Run("s/job-1", 1, 3);
  EXPECT_TRUE(std::filesystem::exists(folder + "/incidents/1")) << "they are its own";
  Run("s/job-2", 4, 5, "s/job-1");
  EXPECT_FALSE(std::filesystem::exists(folder + "/incidents"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/incidents.1/1"));
}

TEST_F(MetricsWriterTest, FolderOfAWriterThatLives_IsRefusedNamingItsOwner) {
  auto first = Open("s/job-1");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->Write({.step = 1, .loss = 1}, 1).ok());
  patience = absl::ZeroDuration();
  const absl::Status second = Open("s/job-2").status();
  EXPECT_EQ(job::KindOf(second), job::FailureKind::kOutputUnavailable);
  EXPECT_THAT(std::string(second.message()),
              ::testing::HasSubstr("is in use by job-1 (store s): "));
  EXPECT_EQ(waits, 0);
  ASSERT_TRUE((*first)->Write({.step = 2, .loss = 1}, 1).ok());
  EXPECT_EQ(Lines(Text()), 2);
  first->reset();
  EXPECT_TRUE(Open("s/job-2").ok()) << "it is let go with its writer";
}

TEST_F(MetricsWriterTest, FolderThatIsHeld_IsSaidBeforeItIsWaitedFor) {
  auto first = Open("s/job-1");
  ASSERT_TRUE(first.ok()) << first.status();
  on_wait = [&] { first->reset(); };  // the first job ends meanwhile
  EXPECT_TRUE(Open("s/job-2").ok());
  EXPECT_EQ(waits, 1);
}

// Its node is cut off, or it has been stopped.
TEST_F(MetricsWriterTest, EarlierEpochThatStillHoldsTheFolder_WritesNoMore) {
  auto first = Open("s/job-1");
  ASSERT_TRUE(first.ok()) << first.status();
  for (int64_t step = 1; step <= 3; ++step)
    ASSERT_TRUE((*first)->Write({.step = step, .loss = 1}, 1).ok());
  auto next = Open("s/job-1", 3);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(waits, 0);
  ASSERT_TRUE((*next)->Write({.step = 3, .loss = 2}, 2).ok());
  patience = absl::ZeroDuration();
  EXPECT_FALSE((*first)->Write({.step = 4, .loss = 1}, 1).ok());
  ASSERT_TRUE((*next)->Write({.step = 4, .loss = 2}, 2).ok());
  EXPECT_EQ(Lines(Text()), 4);
}

// Its daemon does not run, so nobody could stop it.
TEST_F(MetricsWriterTest, EpochThatIsOver_IsRefusedAndChangesNothing) {
  Enter(1, 10);
  Run("s/job-1", 1, 3);
  Enter(3, 30);
  Run("s/job-1", 4, 5);  // and its writer dies
  const std::string before = Text();
  Enter(2, 20);
  const absl::Status over = Open("s/job-1", 4).status();
  EXPECT_EQ(over.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(over.message(), HasSubstr("epoch 2 of job-1 may not write to the output folder " +
                                        folder + " any more: epoch 3, which was planned after it"));
  EXPECT_EQ(Open("s/job-1").status().code(), absl::StatusCode::kAborted)
      << "nor from the beginning";
  EXPECT_EQ(Text(), before);
  EXPECT_FALSE(std::filesystem::exists(folder + "/metrics.1.jsonl"));
  Enter(4, 40);
  Run("s/job-1", 6, 6);
  EXPECT_EQ(Lines(Text()), 6);
}

TEST_F(MetricsWriterTest, EpochThatIsOver_IsRefusedBeforeTheFirstStepOfTheLaterOne) {
  Enter(3, 30);
  EXPECT_TRUE(Open("s/job-1", 39).ok());
  Enter(2, 20);
  EXPECT_EQ(Open("s/job-1", 39).status().code(), absl::StatusCode::kAborted);
}

TEST_F(MetricsWriterTest, EpochThatIsOver_TakesNothingFromALaterWriter) {
  Enter(1, 10);
  Run("s/job-1", 1, 3);
  Enter(3, 30);
  auto later = Open("s/job-1", 4);
  ASSERT_TRUE(later.ok()) << later.status();
  ASSERT_TRUE((*later)->Write({.step = 4, .loss = 1}, 3).ok());
  Enter(2, 20);
  EXPECT_EQ(Open("s/job-1", 4).status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE((*later)->Write({.step = 5, .loss = 1}, 3).ok());
  EXPECT_EQ(Lines(Text()), 5);
}

// It stood still before it renamed: now it finds nothing to rename.
TEST_F(MetricsWriterTest, WhatAnEarlierEpochHasWrittenAside_IsTakenAway) {
  Enter(1, 10);
  Run("s/job-1", 1, 3);
  const std::string earlier[] = {"/metrics.epoch.new.s-job-1.20", "/metrics.jsonl.new.s-job-1.20"};
  const std::string others[] = {"/metrics.jsonl.new.s-job-1.40", "/metrics.jsonl.new.s-job-2.20"};
  for (const std::string& name : earlier) support::WriteFile(folder + name, "of epoch 2\n");
  for (const std::string& name : others) support::WriteFile(folder + name, "of a later one\n");
  Enter(3, 30);
  Run("s/job-1", 4, 4);
  EXPECT_EQ(Lines(Text()), 4);
  for (const std::string& name : earlier)
    EXPECT_FALSE(std::filesystem::exists(folder + name)) << name;
  for (const std::string& name : others)
    EXPECT_TRUE(std::filesystem::exists(folder + name)) << name;
}

TEST_F(MetricsWriterTest, FileThatAnEarlierEpochHasOpen_IsAnotherOneNow) {
  Enter(1, 10);
  EXPECT_TRUE(Open("s/job-1").ok());
  absl::StatusOr<RecordFile> earlier = RecordFile::Open(*HeldFolder::Open(folder), "metrics.jsonl");
  ASSERT_TRUE(earlier.ok()) << earlier.status();
  Enter(2, 20);
  auto later = Open("s/job-1");
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_FALSE(earlier->Append("of epoch 1\n").ok());
  ASSERT_TRUE((*later)->Write({.step = 1, .loss = 1}, 2).ok());
  EXPECT_EQ(Lines(Text()), 1);
}

TEST_F(MetricsWriterTest, EpochsOfAStoreThatWasPutBack_AreRefusedNothing) {
  for (int64_t number = 1; number <= 9; ++number) {
    Enter(number, 10 * number);
    Run("s/job-1", number, number);
  }
  Enter(2, 1000);
  Run("s/job-1", 4, 5);
  EXPECT_EQ(Lines(Text()), 5);
  Enter(10, 100);  // of before
  EXPECT_EQ(Open("s/job-1", 4).status().code(), absl::StatusCode::kAborted);
}

TEST_F(MetricsWriterTest, EpochsOfAnotherJob_RefuseNobody) {
  Enter(5, 50);
  Run("s/job-1", 1, 3);
  Enter(1, 40);  // the clock of another coordinator
  Run("t/job-1", 1, 2);
  EXPECT_EQ(Text("metrics.epoch"), "t/job-1 40 1\ns/job-1 50 5\n");
  Enter(4, 45);
  EXPECT_EQ(Open("s/job-1", 3).status().code(), absl::StatusCode::kAborted) << "it is kept in mind";
  Enter(6, 60);
  Run("s/job-1", 1, 1);
  EXPECT_EQ(Text("metrics.epoch"), "s/job-1 60 6\nt/job-1 40 1\n");
}

TEST_F(MetricsWriterTest, EpochsOfManyJobs_AreForgottenInTime) {
  for (int64_t job = 1; job <= 40; ++job) {
    Enter(1, job);
    Run("s/job-" + std::to_string(job), 1, 1);
  }
  EXPECT_EQ(Lines(Text("metrics.epoch")), 32);
}

// A coordinator of an earlier version says no fence.
TEST_F(MetricsWriterTest, EpochOfWhichNoFenceIsKnown_IsRefusedNothing) {
  Enter(3, 30);
  Run("s/job-1", 1, 3);
  Enter(4, 0);
  Run("s/job-1", 4, 4);
  EXPECT_EQ(Text("metrics.epoch"), "s/job-1 30 3\n");
}

TEST_F(MetricsWriterTest, LinesThatNameNoEpoch_AreDropped) {
  Enter(3, 30);
  Run("s/job-1", 1, 3);
  support::WriteFile(folder + "/metrics.epoch", "\ns/job-1\ns/job-1 x 4\ns/job-1 40 4 4\n");
  Run("s/job-1", 4, 4);
  EXPECT_EQ(Text("metrics.epoch"), "s/job-1 30 3\n");
}

TEST_F(MetricsWriterTest, SameJobGoingOn_KeepsTheStepsBefore) {
  Run("s/job-1", 1, 5);
  Run("s/job-1", 4, 6);
  EXPECT_EQ(Lines(Text()), 6);
  EXPECT_FALSE(std::filesystem::exists(folder + "/metrics.1.jsonl"));
}

// A rank that begins to write metrics tells of the step that the epoch goes on behind if it has not
// known of it, and its predecessor has.
TEST_F(MetricsWriterTest, StepThatHasItsLine_GetsNoOther) {
  Run("s/job-1", 1, 5);
  auto writer = Open("s/job-1", 6);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ((*writer)->last_step(), 5);
  ASSERT_TRUE((*writer)->Write({.step = 5, .loss = 1}, 2).ok());
  ASSERT_TRUE((*writer)->Write({.step = 6, .loss = 1}, 2).ok());
  EXPECT_EQ(Lines(Text()), 6);
}

TEST_F(MetricsWriterTest, LineThatWasCutOff_IsDropped) {
  Run("s/job-1", 1, 2);
  support::WriteFile(folder + "/metrics.jsonl", Text() + "{\"step\": 3, \"lo");
  Run("s/job-1", 3, 3);
  EXPECT_EQ(Lines(Text()), 3);
}

TEST_F(MetricsWriterTest, LinesThatAreNoSteps_AreDropped) {
  Run("s/job-1", 1, 2);
  support::WriteFile(folder + "/metrics.jsonl",
                     Text() + "{\"step\": \"x\"}\n{\"step\": 1.5}\n[1]\n7\n{}\n");
  Run("s/job-1", 3, 3);
  EXPECT_EQ(Lines(Text()), 3);
}

TEST_F(MetricsWriterTest, FolderThatCannotBeMade_IsOutputUnavailableAndNamed) {
  support::WriteFile(std::filesystem::path(folder).parent_path().string() + "/out", "a file");
  const absl::Status status = Open("s/job-1").status();
  EXPECT_EQ(job::KindOf(status), job::FailureKind::kOutputUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(folder));
}

TEST_F(MetricsWriterTest, FolderThatLeadsOutOfThoseOfTheNodeByNow_IsRefused) {
  namespace fs = std::filesystem;
  const std::string mine = fs::canonical(fs::path(folder).parent_path());
  const std::string other = fs::canonical(support::MakeFolder("elsewhere"));
  folders = {mine};
  Run("s/job-1", 1, 2);
  EXPECT_EQ(Lines(Text()), 2);
  fs::rename(folder, mine + "/moved");
  fs::create_directory_symlink(other, folder);
  const absl::Status refused = Open("s/job-1", 3).status();
  EXPECT_EQ(job::KindOf(refused), job::FailureKind::kOutputUnavailable);
  EXPECT_EQ(refused.message(), absl::StrCat("cannot make the output folder ", folder, ": leads to ",
                                            other, "; must lead below ", mine));
  EXPECT_TRUE(fs::is_empty(other));
  fs::remove(folder);
  fs::create_directory_symlink(mine + "/moved", folder);
  Run("s/job-1", 3, 4);
  EXPECT_EQ(Lines(Text()), 4) << "a link of one's own is followed";
}

TEST_F(MetricsWriterTest, FilesThatLeadOutOfTheFoldersOfTheNode_AreNeitherReadNorMade) {
  namespace fs = std::filesystem;
  const std::string mine = fs::canonical(fs::path(folder).parent_path());
  const std::string other = fs::canonical(support::MakeFolder("elsewhere"));
  folders = {mine};
  Enter(1, 10);
  for (const char* name : {"metrics.owner", "metrics.epoch", "metrics.jsonl"}) {
    const std::string path = absl::StrCat(folder, "/", name);
    for (const bool there : {false, true}) {
      fs::remove_all(folder);
      Run("s/job-1", 1, 1);
      fs::remove(path);
      const std::string led = absl::StrCat(other, "/", name);
      if (there) support::WriteFile(led, "mine\n");
      fs::create_symlink(led, path);
      const absl::Status refused = Open("s/job-1").status();
      EXPECT_EQ(job::KindOf(refused), job::FailureKind::kOutputUnavailable);
      EXPECT_THAT(refused.message(),
                  HasSubstr(absl::StrCat("cannot open ", path, ": leads to ", other, "; ")));
      EXPECT_EQ(fs::exists(led), there) << name;
      if (there) {
        EXPECT_EQ(support::ReadFile(led), "mine\n");
      }
      fs::remove(led);
    }
  }
}

// Reading or opening them would take all memory, or wait for ever.
TEST_F(MetricsWriterTest, WhatIsNoRegularFile_IsOutputUnavailableAtOnce) {
  Enter(1, 10);
  for (const std::string name : {"metrics.owner", "metrics.epoch", "metrics.jsonl"}) {
    const std::string path = folder + "/" + name;
    const auto make = std::map<std::string, std::function<void()>>{
        {"pipe", [&] { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); }},
        {"zeros", [&] { std::filesystem::create_symlink("/dev/zero", path); }},
        {"folder", [&] { std::filesystem::create_directory(path); }}};
    for (const auto& [what, made] : make) {
      std::filesystem::remove_all(folder);
      Run("s/job-1", 1, 1);
      std::filesystem::remove(path);
      made();
      const absl::Status status = Open("s/job-1").status();
      EXPECT_EQ(job::KindOf(status), job::FailureKind::kOutputUnavailable) << name << " " << what;
      EXPECT_THAT(status.message(), HasSubstr(path + ": it is not a regular file")) << what;
    }
  }
  EXPECT_EQ(waits, 0);
}

TEST_F(MetricsWriterTest, JobThatGoesOnFromAnother_KeepsItsLines) {
  Run("s/job-1", 1, 6);
  Run("s/job-2", 5, 5, "s/job-1");  // ended before a checkpoint of its own
  Run("s/job-3", 5, 8, "s/job-1");
  EXPECT_EQ(Lines(Text()), 8);
  EXPECT_FALSE(std::filesystem::exists(folder + "/metrics.1.jsonl"));
  EXPECT_EQ(Text("metrics.owner"), "s/job-3\ns/job-2\ns/job-1\n");
  Run("s/job-3", 7, 9);
  EXPECT_EQ(Lines(Text()), 9);
  Run("s/job-4", 3, 4, "s/job-9");  // from one that has nothing here
  EXPECT_EQ(Lines(Text()), 2);
  EXPECT_EQ(Lines(Text("metrics.1.jsonl")), 9);
  EXPECT_EQ(Text("metrics.owner"), "s/job-4\n");
  Run("s/job-5", 1, 1, "s/job-4");  // whoever begins anew begins a file
  EXPECT_EQ(Lines(Text("metrics.2.jsonl")), 2);
}

TEST_F(MetricsWriterTest, OwnerThatIsNoName_IsAnotherJob) {
  Run("s/job-1", 1, 2);
  support::WriteFile(folder + "/metrics.owner", std::string(3 << 20, 'x'));
  Run("s/job-1", 1, 1);
  EXPECT_EQ(Lines(Text("metrics.1.jsonl")), 2);
  EXPECT_EQ(Text("metrics.owner"), "s/job-1\n");
}

TEST_F(MetricsWriterTest, FullDisk_IsWaitedForAndThenSaid_AndLeavesWholeLines) {
  auto writer = Open("s/job-1");
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write({.step = 1}, 1).ok());
  const std::string before = Text();
  absl::Status status;
  {
    const support::FullDisk full(before.size() + 20);
    status = (*writer)->Write({.step = 2}, 1);
  }
  EXPECT_EQ(job::KindOf(status), job::FailureKind::kOutputUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("metrics.jsonl"));
  EXPECT_EQ(waits, 1);
  EXPECT_EQ(Text(), before) << "no half line";
}

// Else the job trains to its end and its records are nowhere.
TEST_F(MetricsWriterTest, FileThatIsRemoved_IsSaidAtTheNextRecord) {
  auto writer = Open("s/job-1");
  ASSERT_TRUE((*writer)->Write({.step = 1}, 1).ok());
  std::filesystem::rename(folder + "/metrics.jsonl", folder + "/elsewhere");
  const absl::Status gone = (*writer)->Write({.step = 2}, 1);
  EXPECT_EQ(job::KindOf(gone), job::FailureKind::kOutputUnavailable);
  EXPECT_THAT(gone.message(), HasSubstr("metrics.jsonl: No such file"));
  std::filesystem::rename(folder + "/elsewhere", folder + "/metrics.jsonl");
  EXPECT_TRUE((*writer)->Write({.step = 2}, 1).ok());
  EXPECT_EQ(Lines(Text()), 2);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(job::KindOf((*writer)->Write({.step = 3}, 1)), job::FailureKind::kOutputUnavailable);
}

TEST_F(MetricsWriterTest, FileThatIsEmptied_IsGoneOnWithAndOneThatIsCutIsSaid) {
  auto writer = Open("s/job-1");
  ASSERT_TRUE((*writer)->Write({.step = 1}, 1).ok());
  std::filesystem::resize_file(folder + "/metrics.jsonl", 0);
  ASSERT_TRUE((*writer)->Write({.step = 2}, 1).ok());
  EXPECT_EQ(Lines(Text()), 1);
  EXPECT_EQ(Text().front(), '{');
  std::filesystem::resize_file(folder + "/metrics.jsonl", 5);
  const absl::Status cut = (*writer)->Write({.step = 3}, 1);
  EXPECT_EQ(job::KindOf(cut), job::FailureKind::kOutputUnavailable);
  EXPECT_THAT(cut.message(), HasSubstr("it has been cut off, at 5 of"));
}

TEST_F(MetricsWriterTest, DiskThatIsFullForAWhile_LosesNothing) {
  patience = absl::Minutes(1);
  std::optional<support::FullDisk> full;
  MetricsOptions options;
  options.owner = "s/job-1";
  options.patience = patience;
  options.on_wait = [&full](const absl::Status&) { full.reset(); };  // somebody makes room
  auto writer = MetricsWriter::Open(folder, std::move(options));
  ASSERT_TRUE(writer.ok()) << writer.status();
  full.emplace(1);
  ASSERT_TRUE((*writer)->Write({.step = 1}, 1).ok());
  EXPECT_EQ(Lines(Text()), 1);
}

// A loss or a return meets it like a step.
TEST_F(MetricsWriterTest, DiskThatIsFullWhenTheNextEpochOpensTheFolder_IsWaitedFor) {
  Run("s/job-1", 1, 3);
  std::optional<support::FullDisk> full;
  MetricsOptions options;
  options.owner = "s/job-1";
  options.first_step = 4;
  options.epoch = options.fence = 2;
  options.patience = absl::Minutes(1);
  options.on_wait = [&](const absl::Status& status) {
    ++waits;
    EXPECT_EQ(job::KindOf(status), job::FailureKind::kOutputUnavailable);
    full.reset();
  };
  full.emplace(1);
  const auto writer = MetricsWriter::Open(folder, std::move(options));
  full.reset();
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ(waits, 1);
  EXPECT_EQ((*writer)->last_step(), 3);
}

// Moved away while ranks are lost: made anew it would begin in the middle of the run.
TEST_F(MetricsWriterTest, FolderThatIsMovedAwayBetweenEpochs_IsNotMadeAnew) {
  Run("s/job-1", 1, 3);
  MetricsOptions options;
  options.owner = "s/job-1";
  options.first_step = 4;
  options.epoch = options.fence = 2;
  options.has_lines = true;
  options.patience = patience;
  const auto reopen = [&](absl::string_view said) {
    const auto gone = MetricsWriter::Open(folder, options);
    EXPECT_EQ(job::KindOf(gone.status()), job::FailureKind::kOutputUnavailable);
    EXPECT_THAT(gone.status().message(), HasSubstr(said));
  };
  for (const std::string& moved : {folder, folder + "/metrics.jsonl", folder + "/metrics.owner"}) {
    std::filesystem::rename(moved, folder + ".elsewhere");
    reopen(moved);
    EXPECT_FALSE(std::filesystem::exists(moved));
    std::filesystem::rename(folder + ".elsewhere", moved);
  }
  // Of another job, which has begun there since.
  std::filesystem::rename(folder, folder + ".elsewhere");
  Run("s/job-2", 1, 2);
  reopen("it is of job-2 (store s)");
  options.patience = absl::Minutes(1);
  options.on_wait = [&](const absl::Status&) {
    ++waits;
    std::filesystem::remove_all(folder);
    std::filesystem::rename(folder + ".elsewhere", folder);
  };
  const auto writer = MetricsWriter::Open(folder, options);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ(waits, 1) << "it is waited for";
  EXPECT_EQ((*writer)->last_step(), 3);
}

}  // namespace
}  // namespace phalanx::rank
