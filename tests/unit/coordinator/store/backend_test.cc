// Both backends keep one contract; what only SQLite can do wrong comes after it.
#include "coordinator/store/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/store/memory_backend.h"
#include "coordinator/store/sqlite_backend.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
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
  SqliteDiskFixture() {
    std::string pattern = (std::filesystem::temp_directory_path() / "journal-XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~SqliteDiskFixture() override { std::filesystem::remove_all(folder); }
  absl::StatusOr<std::unique_ptr<Backend>> Open() override {
    absl::StatusOr<std::unique_ptr<SqliteBackend>> backend = SqliteBackend::Open(path());
    if (!backend.ok()) return backend.status();
    return *std::move(backend);
  }
  std::string path() const { return folder + "/journal.db"; }
  std::string folder;
};

StoredRecord Of(uint64_t number, std::string bytes) { return {number, std::move(bytes)}; }

class BackendTest : public ::testing::TestWithParam<std::function<std::unique_ptr<Disk>()>> {
 protected:
  const std::unique_ptr<Disk> disk_ = GetParam()();
};

TEST_P(BackendTest, NewStore_IsEmpty) { EXPECT_THAT(*(*disk_->Open())->Load(), IsEmpty()); }

TEST_P(BackendTest, Committed_IsThereAfterReopening) {
  const std::string binary("\0\xFF zero", 7);
  {
    auto backend = *disk_->Open();
    ASSERT_TRUE(backend->Commit({Of(1, "one"), Of(2, binary)}).ok());
    ASSERT_TRUE(backend->Commit({Of(3, "")}).ok());
  }
  const auto records = *(*disk_->Open())->Load();
  EXPECT_THAT(records,
              ElementsAre(Field(&StoredRecord::bytes, "one"), Field(&StoredRecord::bytes, binary),
                          Field(&StoredRecord::bytes, "")));
  EXPECT_EQ(records.back().number, 3u);
}

TEST_P(BackendTest, Numbering_GoesOnAfterReopening) {
  ASSERT_TRUE((*disk_->Open())->Commit({Of(1, "one")}).ok());
  auto backend = *disk_->Open();
  EXPECT_TRUE(backend->Commit({Of(2, "two")}).ok());
}

TEST_P(BackendTest, Gap_IsRefusedAndNothingOfItsBatchStays) {
  {
    auto backend = *disk_->Open();
    ASSERT_TRUE(backend->Commit({Of(1, "one")}).ok());
    EXPECT_EQ(backend->Commit({Of(2, "two"), Of(4, "four")}).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(*(*disk_->Open())->Load(), SizeIs(1));
}

INSTANTIATE_TEST_SUITE_P(Memory, BackendTest,
                         ::testing::Values([] { return std::make_unique<MemoryDiskFixture>(); }));
INSTANTIATE_TEST_SUITE_P(Sqlite, BackendTest,
                         ::testing::Values([] { return std::make_unique<SqliteDiskFixture>(); }));

TEST(SqliteBackendTest, SecondOpener_IsRefused) {
  SqliteDiskFixture disk;
  auto first = *disk.Open();
  EXPECT_EQ(disk.Open().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SqliteBackendTest, AnotherProgramsFile_IsRefused) {
  SqliteDiskFixture disk;
  std::ofstream(disk.path()) << std::string(8192, 'x');
  EXPECT_EQ(disk.Open().status().code(), absl::StatusCode::kDataLoss);
}

TEST(SqliteBackendTest, FolderThatIsNotThere_IsUnavailable) {
  EXPECT_EQ(SqliteBackend::Open("/nonexistent/journal.db").status().code(),
            absl::StatusCode::kUnavailable);
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
      if (!backend->Commit({Of(number, absl::StrCat("record ", number))}).ok()) _exit(1);
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
  const auto records = *(*disk.Open())->Load();
  ASSERT_GE(records.size(), acknowledged);
  EXPECT_EQ(records[acknowledged - 1].bytes, absl::StrCat("record ", acknowledged));
}

// The tail of the log is torn: whole batches before it stay, nothing of it is half there.
TEST(SqliteBackendTest, TornLog_KeepsABeginningOfTheJournal) {
  SqliteDiskFixture disk;
  {
    auto backend = *disk.Open();
    for (uint64_t number = 1; number <= 20; ++number) {
      ASSERT_TRUE(backend->Commit({Of(number, std::string(300, 'r'))}).ok());
    }
    // As a crash leaves it: copied while it is open, so that no clean close rewrites the log.
    std::filesystem::copy_file(disk.path(), disk.folder + "/torn.db");
    std::filesystem::copy_file(disk.path() + "-wal", disk.folder + "/torn.db-wal");
  }
  const std::string log = disk.folder + "/torn.db-wal";
  std::filesystem::resize_file(log, std::filesystem::file_size(log) - 5000);
  const auto records = *(*SqliteBackend::Open(disk.folder + "/torn.db"))->Load();
  EXPECT_LT(records.size(), 20u);
  EXPECT_GT(records.size(), 0u);
  for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].bytes.size(), 300u);
}

}  // namespace
}  // namespace phalanx::coordinator
