// All backends keep one contract; what only SQLite can do wrong comes after it (of etcd:
// etcd_backend_test.cc).
#include "coordinator/store/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/store/memory_backend.h"
#include "coordinator/store/sqlite.h"
#include "coordinator/store/sqlite_backend.h"
#include "tests/support/etcd.h"
#include "tests/support/files.h"
#include "tests/support/tools.h"
#include "tests/unit/coordinator/store/entries.h"
#include "tests/unit/coordinator/store/etcd_disk.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A place for a store, and a way to open it; opening it again is what a restart does.
struct Disk {
  virtual ~Disk() = default;
  virtual absl::StatusOr<std::unique_ptr<Backend>> Open() = 0;
};

struct MemoryDiskFixture final : Disk {
  absl::StatusOr<std::unique_ptr<Backend>> Open() override {
    return std::make_unique<MemoryBackend>(disk);
  }
  std::shared_ptr<MemoryDisk> disk = std::make_shared<MemoryDisk>();
};

struct SqliteDiskFixture final : Disk {
  absl::StatusOr<std::unique_ptr<Backend>> Open() override {
    absl::StatusOr<std::unique_ptr<SqliteBackend>> backend = SqliteBackend::Open(path());
    if (!backend.ok()) return backend.status();
    return *std::move(backend);
  }
  std::string path() const { return folder + "/journal.db"; }
  const std::string folder = support::MakeFolder("journal");
};

struct EtcdDiskFixture final : Disk {
  absl::StatusOr<std::unique_ptr<Backend>> Open() override { return disk.Open(); }
  EtcdDisk disk;
};

StoreMarks MarksOf(Backend& backend) {
  return *backend.Load([](const StoredRecord&) { return absl::OkStatus(); });
}

// Null where what it lies on is not installed.
using MakeDisk = std::function<std::unique_ptr<Disk>()>;
class BackendTest : public ::testing::TestWithParam<MakeDisk> {
 protected:
  void SetUp() override {
    PHALANX_SKIP_WITHOUT_TOOL(disk_ == nullptr ? support::EtcdMissing() : "");
  }
  const std::unique_ptr<Disk> disk_ = GetParam()();
};

TEST_P(BackendTest, NewStore_IsEmpty) { EXPECT_THAT(All(**disk_->Open()), IsEmpty()); }

TEST_P(BackendTest, Committed_IsThereAfterReopening) {
  const std::string binary("\0\xFF zero", 7);
  {
    auto backend = *disk_->Open();
    ASSERT_TRUE(backend->Commit({.records = {Of(1, "one"), Of(2, binary)}}).ok());
    ASSERT_TRUE(backend->Commit({.records = {Of(3, "")}}).ok());
  }
  const auto records = All(**disk_->Open());
  EXPECT_THAT(records,
              ElementsAre(Field(&StoredRecord::bytes, "one"), Field(&StoredRecord::bytes, binary),
                          Field(&StoredRecord::bytes, "")));
  EXPECT_EQ(records.back().number, 3u);
}

TEST_P(BackendTest, Numbering_GoesOnAfterReopening) {
  ASSERT_TRUE((*disk_->Open())->Commit({.records = {Of(1, "one")}}).ok());
  auto backend = *disk_->Open();
  EXPECT_TRUE(backend->Commit({.records = {Of(2, "two")}}).ok());
}

TEST_P(BackendTest, NumberThatWasGivenBefore_IsRefusedAndNothingOfItsBatchStays) {
  {
    auto backend = *disk_->Open();
    ASSERT_TRUE(backend->Commit({.records = {Of(1, "one")}}).ok());
    EXPECT_EQ(backend->Commit({.records = {Of(2, "two"), Of(2, "again")}}).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(All(**disk_->Open()), SizeIs(1));
}

TEST_P(BackendTest, SupersededRecord_Vanishes) {
  auto backend = *disk_->Open();
  ASSERT_TRUE(backend->Commit({.records = {Of(1, "one"), Of(2, "step 1")}}).ok());
  StoredRecord next = Of(3, "step 2");
  next.supersedes = 2;
  ASSERT_TRUE(backend->Commit({.records = {next}}).ok());
  EXPECT_THAT(All(*backend), ElementsAre(Field(&StoredRecord::bytes, "one"),
                                         Field(&StoredRecord::bytes, "step 2")));
}

TEST_P(BackendTest, EndedJob_TakesThePlaceOfItsRecords) {
  {
    auto backend = *disk_->Open();
    ASSERT_TRUE(backend->Commit({.records = {Of(1, "a", 1), Of(2, "b", 2), Of(3, "c", 1)}}).ok());
    EXPECT_THAT(*backend->RecordsOf(JobId{1}), SizeIs(2));
    ASSERT_TRUE(backend->Commit({.ended = {Ended(1, "name")}}).ok());
  }
  auto backend = *disk_->Open();
  EXPECT_THAT(All(*backend), ElementsAre(Field(&StoredRecord::number, 2u)));
  const std::shared_ptr<EndedJobs> ended = backend->ended_jobs();
  EXPECT_EQ(ended->Find(JobId{1})->summary, "summary 1");
  EXPECT_EQ(ended->Find(JobId{1})->ended, kNow);
  EXPECT_EQ(*ended->Details(JobId{1}), "details 1");
  EXPECT_EQ(ended->FindNamed("name")->job, JobId{1});
  EXPECT_EQ(ended->Find(JobId{2}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ended->Count().at(job::JobPhase::kSucceeded), 1);
}

TEST_P(BackendTest, EndedJobs_AreListedNewestFirst) {
  auto backend = *disk_->Open();
  ASSERT_TRUE(backend->Commit({.ended = {Ended(1, "a"), Ended(3, "a"), Ended(7, "b")}}).ok());
  const auto ended = backend->ended_jobs();
  EXPECT_THAT(*ended->List(JobId{100}, 2),
              ElementsAre(Field(&EndedJob::job, JobId{7}), Field(&EndedJob::job, JobId{3})));
  EXPECT_THAT(*ended->List(JobId{3}, 2), ElementsAre(Field(&EndedJob::job, JobId{1})));
  EXPECT_EQ(ended->FindNamed("a")->job, JobId{3});
}

TEST_P(BackendTest, Marks_SurviveCompactionAndDeletion) {
  {
    auto backend = *disk_->Open();
    ASSERT_TRUE(backend->Commit({.records = {Of(1, "a", 1), Of(2, "b", 2)}}).ok());
    ASSERT_TRUE(backend->Commit({.ended = {Ended(1, "a"), Ended(2, "b")}}).ok());
    ASSERT_TRUE(backend->Commit({.deleted = {JobId{1}, JobId{2}}}).ok());
  }
  auto backend = *disk_->Open();
  EXPECT_EQ(MarksOf(*backend).last_record, 2u);
  EXPECT_EQ(MarksOf(*backend).last_job, JobId{2});
  EXPECT_EQ(backend->Commit({.records = {Of(2, "again", 3)}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(backend->Commit({.records = {Of(3, "c", 3)}}).ok());
}

TEST_P(BackendTest, RequestId_OutlivesItsJobUntilItExpires) {
  auto backend = *disk_->Open();
  EndedJob job = Ended(1, "a");
  job.request = StoredRequest{"r", JobId{1}, "digest", kNow + absl::Hours(24)};
  ASSERT_TRUE(backend->Commit({.ended = {job}}).ok());
  ASSERT_TRUE(backend->Commit({.deleted = {JobId{1}}}).ok());
  const auto ended = backend->ended_jobs();
  EXPECT_EQ(ended->Request("r", kNow)->job, JobId{1});
  EXPECT_EQ(ended->Request("r", kNow)->document_digest, "digest");
  EXPECT_EQ(ended->Request("r", kNow + absl::Hours(24)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ended->Request("s", kNow).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(BackendTest, Prune_KeepsTheNewestUpToNumberAndAge) {
  auto backend = *disk_->Open();
  Batch batch;
  for (int64_t job = 1; job <= 10; ++job) {
    batch.ended.push_back(Ended(job, "a", kNow + absl::Hours(job)));
  }
  ASSERT_TRUE(backend->Commit(batch).ok());
  const auto ended = backend->ended_jobs();
  const Instant now = kNow + absl::Hours(10);
  EXPECT_FALSE(*backend->Prune({.age_max = absl::Hours(100), .count_max = 7}, now));
  EXPECT_EQ(ended->Count().at(job::JobPhase::kSucceeded), 7);
  EXPECT_FALSE(ended->Find(JobId{3}).ok());
  EXPECT_FALSE(*backend->Prune({.age_max = absl::Hours(5), .count_max = 100}, now));
  EXPECT_FALSE(ended->Find(JobId{4}).ok());
  EXPECT_TRUE(ended->Find(JobId{5}).ok());
}

TEST_P(BackendTest, Reopened_GoesOnAtItsLastRecord) {
  auto backend = *disk_->Open();
  ASSERT_TRUE(backend->Commit({.records = {Of(1, "a"), Of(2, "b")}}).ok());
  EXPECT_EQ(*backend->Reopen(), 2u);
  EXPECT_TRUE(backend->Commit({.records = {Of(3, "c")}}).ok());
  EXPECT_THAT(All(*backend), SizeIs(3));
}

INSTANTIATE_TEST_SUITE_P(Memory, BackendTest,
                         ::testing::Values([] { return std::make_unique<MemoryDiskFixture>(); }));
INSTANTIATE_TEST_SUITE_P(Sqlite, BackendTest,
                         ::testing::Values([] { return std::make_unique<SqliteDiskFixture>(); }));
INSTANTIATE_TEST_SUITE_P(Etcd, BackendTest, ::testing::Values([]() -> std::unique_ptr<Disk> {
                           if (!support::EtcdMissing().empty()) return nullptr;
                           return std::make_unique<EtcdDiskFixture>();
                         }));

TEST(SqliteBackendTest, SecondOpener_IsRefused) {
  SqliteDiskFixture disk;
  auto first = *disk.Open();
  EXPECT_EQ(disk.Open().status().code(), absl::StatusCode::kFailedPrecondition);
}

// As `rm journal.db*` does while a coordinator serves.
TEST(SqliteBackendTest, SecondOpener_IsRefusedAlsoWhenTheFilesWereRemoved) {
  SqliteDiskFixture disk;
  auto first = *disk.Open();
  for (const char* suffix : {"", "-wal", "-shm", ".lock"}) {
    std::filesystem::remove(disk.path() + suffix);
  }
  EXPECT_EQ(disk.Open().status().code(), absl::StatusCode::kFailedPrecondition);
  first.reset();
  EXPECT_TRUE(disk.Open().ok());
}

TEST(SqliteBackendTest, AnotherProgramsFile_IsRefused) {
  SqliteDiskFixture disk;
  std::ofstream(disk.path()) << std::string(8192, 'x');
  EXPECT_EQ(disk.Open().status().code(), absl::StatusCode::kDataLoss);
}

// Each name of a file would have a lock of its own.
TEST(SqliteBackendTest, FileWithAnotherName_IsRefused) {
  SqliteDiskFixture disk, other;
  ASSERT_TRUE(disk.Open().ok());
  std::filesystem::create_symlink(disk.path(), other.path());
  absl::Status status = other.Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(other.path() + " is a link"));
  std::filesystem::remove(other.path());
  std::filesystem::create_hard_link(disk.path(), other.path());
  for (SqliteDiskFixture* one : {&disk, &other}) {
    status = one->Open().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(one->path() + " has 2 names"));
  }
  std::filesystem::remove(other.path());
  EXPECT_TRUE(disk.Open().ok());
}

TEST(SqliteBackendTest, FolderThatIsNotThere_IsUnavailable) {
  EXPECT_EQ(SqliteBackend::Open("/nonexistent/journal.db").status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(SqliteBackendTest, FolderThatTakesNoFiles_IsSaidWithWhatToDo) {
  const absl::Status status = SqliteBackend::Open("/proc/self/journal.db").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("/proc/self/journal.db.lock: cannot be written: "),
                    HasSubstr("; see that the user of phalanx-coordinator may write it, or give "
                              "another --store")));
}

TEST(SqliteBackendTest, DatabaseThatMayNotBeWritten_IsSaidWithWhatToDo) {
  const std::string path = support::MakeFolder("read-only") + "/journal.db";
  ASSERT_TRUE(SqliteBackend::Open(path).ok());
  auto connection = *sqlite::Connection::Open(path, SQLITE_OPEN_READONLY);
  const absl::Status status = connection.Execute("DELETE FROM journal");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(),
            "attempt to write a readonly database: see that the user of phalanx-coordinator may "
            "write it and in its folder");
}

TEST(SqliteBackendTest, Bytes_AreThoseOfTheFileAndItsLog) {
  SqliteDiskFixture disk;
  const auto backend = *disk.Open();
  const int64_t before = backend->bytes();
  EXPECT_GT(before, 0);
  ASSERT_TRUE(backend->Commit({.records = {Of(1, std::string(1 << 20, 'x'))}}).ok());
  EXPECT_GT(backend->bytes(), before + (1 << 20));
}

// Commits would go into a file that no start finds.
TEST(SqliteBackendTest, StoreThatIsMovedAway_FailsUntilItIsBack) {
  SqliteDiskFixture disk;
  auto backend = *disk.Open();
  ASSERT_TRUE(backend->Commit({.records = {Of(1, "a")}}).ok());
  EXPECT_TRUE(backend->CheckPlace().ok());
  std::filesystem::rename(disk.path(), disk.folder + "/elsewhere");
  EXPECT_THAT(std::string(backend->CheckPlace().message()), HasSubstr("is gone"));
  EXPECT_THAT(std::string(backend->Reopen().status().message()), HasSubstr(disk.path()));
  EXPECT_FALSE(std::filesystem::exists(disk.path())) << "a new store was made";
  std::filesystem::rename(disk.folder + "/elsewhere", disk.path());
  EXPECT_EQ(*backend->Reopen(), 1u);
  EXPECT_TRUE(backend->CheckPlace().ok());
  EXPECT_THAT(All(*backend), SizeIs(1));
}

// Neither another store nor a copy of this one is what was told of.
TEST(SqliteBackendTest, AnotherFileInItsPlace_IsRefused) {
  SqliteDiskFixture disk, other;
  ASSERT_TRUE((*other.Open())->Commit({.records = {Of(1, "b"), Of(2, "b")}}).ok());
  auto backend = *disk.Open();
  ASSERT_TRUE(backend->Commit({.records = {Of(1, "a")}}).ok());
  std::filesystem::rename(other.path(), disk.path());
  EXPECT_THAT(std::string(backend->CheckPlace().message()), HasSubstr("was replaced"));
  EXPECT_THAT(std::string(backend->Reopen().status().message()), HasSubstr("was replaced"));
}

// A process that is killed keeps what Commit had answered.
TEST(SqliteBackendTest, KilledProcess_LosesNothingThatWasCommitted) {
  SqliteDiskFixture disk;
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto backend = *disk.Open();
    for (uint64_t number = 1;; ++number) {
      if (!backend->Commit({.records = {Of(number, absl::StrCat("record ", number))}}).ok())
        _exit(1);
      if (write(pipe_ends[1], &number, sizeof(number)) != sizeof(number)) _exit(1);
    }
  }
  close(pipe_ends[1]);
  uint64_t acknowledged = 0;
  while (acknowledged < 20) {
    ASSERT_EQ(read(pipe_ends[0], &acknowledged, sizeof(acknowledged)),
              static_cast<ssize_t>(sizeof(acknowledged)));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  // What was in the pipe was acknowledged too.
  while (read(pipe_ends[0], &acknowledged, sizeof(acknowledged)) == sizeof(acknowledged)) continue;
  close(pipe_ends[0]);
  const auto records = All(**disk.Open());
  ASSERT_GE(records.size(), acknowledged);
  EXPECT_EQ(records[acknowledged - 1].bytes, absl::StrCat("record ", acknowledged));
}

// The tail of the log is torn: whole batches before it stay, nothing of it is half there.
TEST(SqliteBackendTest, TornLog_KeepsABeginningOfTheJournal) {
  SqliteDiskFixture disk;
  {
    auto backend = *disk.Open();
    for (uint64_t number = 1; number <= 20; ++number) {
      ASSERT_TRUE(backend->Commit({.records = {Of(number, std::string(300, 'r'))}}).ok());
    }
    // As a crash leaves it: copied while it is open, so that no clean close rewrites the log.
    std::filesystem::copy_file(disk.path(), disk.folder + "/torn.db");
    std::filesystem::copy_file(disk.path() + "-wal", disk.folder + "/torn.db-wal");
  }
  const std::string log = disk.folder + "/torn.db-wal";
  std::filesystem::resize_file(log, std::filesystem::file_size(log) - 5000);
  const auto records = All(**SqliteBackend::Open(disk.folder + "/torn.db"));
  EXPECT_LT(records.size(), 20u);
  EXPECT_GT(records.size(), 0u);
  for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].bytes.size(), 300u);
}

TEST(SqliteBackendTest, FilesOfANewStore_AreTheirOwnersAlone_WhereverTheFolderWas) {
  SqliteDiskFixture disk;
  const mode_t before = umask(0);
  auto backend = *disk.Open();
  const absl::Status committed = backend->Commit({.records = {Of(1, "one")}});
  umask(before);
  ASSERT_EQ(committed, absl::OkStatus());
  for (const char* part : {"", "-wal", "-shm", ".lock"}) {
    EXPECT_EQ(std::filesystem::status(disk.path() + part).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write)
        << part;
  }
}

}  // namespace
}  // namespace phalanx::coordinator
