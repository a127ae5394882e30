// Stores of before, and stores that are damaged.
#include "coordinator/store/store_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/archive.h"
#include "coordinator/store/sqlite.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/wire/ended_codec.h"
#include "coordinator/wire/record_codec.h"
#include "coordinator/wire/seal.h"
#include "tests/support/files.h"
#include "tests/unit/coordinator/store/entries.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const Instant kTime = absl::FromUnixSeconds(1'700'000'000);

JournalRecord Submitted(int64_t job, const std::string& name) {
  return {.time = kTime,
          .job = JobId{job},
          .body = JobSubmitted{
              std::make_shared<const JobRequest>(JobRequest{
                  .document = {.text = "text", .directory = "/d"}, .name = name, .steps = 1}),
              absl::StrCat("request ", job)}};
}
JournalRecord Cancelled(int64_t job) {
  return {.time = kTime,
          .job = JobId{job},
          .body = PhaseChanged{job::JobPhase::kCancelled, "cancelled on request", std::nullopt}};
}

class StoreTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_ + "/journal.db"; }
  sqlite::Connection Connect() {
    return *sqlite::Connection::Open(path(), SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  }
  void Execute(const std::string& sql) {
    const absl::Status status = Connect().Execute(sql);
    ASSERT_TRUE(status.ok()) << status;
  }

  // Two live jobs and one that has ended.
  void MakeStore() {
    auto backend = *SqliteBackend::Open(path());
    Batch batch;
    uint64_t number = 0;
    for (const JournalRecord& record :
         {Submitted(1, "a"), Submitted(2, "b"), Cancelled(2), Submitted(3, "c")}) {
      batch.records.push_back(
          {.number = ++number, .job = record.job, .bytes = EncodeRecord(record, number)});
    }
    ASSERT_TRUE(backend->Commit(batch).ok());
    const auto ended = *MakeEndedJob(JobId{2}, *backend->RecordsOf(JobId{2}));
    ASSERT_TRUE(backend->Commit({.ended = {*ended}}).ok());
  }
  // The same jobs as version 1 of the store kept them.
  void MakeStoreOfVersion1() {
    sqlite::Connection connection = Connect();
    ASSERT_TRUE(connection
                    .Execute("PRAGMA journal_mode=WAL; CREATE TABLE journal(number INTEGER PRIMARY "
                             "KEY, record BLOB NOT NULL); PRAGMA application_id=0x50484C58; PRAGMA "
                             "user_version=1")
                    .ok());
    sqlite::Statement insert = *connection.Prepare("INSERT INTO journal VALUES(?, ?)");
    int64_t number = 0;
    for (const JournalRecord& record :
         {Submitted(1, "a"), Submitted(2, "b"), Cancelled(2), Submitted(3, "c")}) {
      const std::string sealed = EncodeRecord(record, 1);
      const std::string bytes(*Unseal(sealed, 1));
      ASSERT_TRUE(insert.Bind(++number).BindBlob(bytes).Run().ok());
    }
  }

  const std::string folder_ = support::MakeFolder("store");
};

TEST_F(StoreTest, WholeStore_HasNoProblems) {
  MakeStore();
  const StoreReport report = *CheckStore(path());
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_EQ(report.records, 2);
  EXPECT_EQ(report.ended_jobs, 1);
  EXPECT_THAT(Lines(report), ElementsAre("schema 3, 2 records, 1 ended jobs: the store is whole"));
}

TEST_F(StoreTest, StoreThatIsNotThere_IsNotFound) {
  EXPECT_EQ(CheckStore(path()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StoreTest, CheckOfAnOpenStore_Works) {
  MakeStore();
  const auto backend = *SqliteBackend::Open(path());
  EXPECT_THAT(CheckStore(path())->problems, IsEmpty());
}

TEST_F(StoreTest, DamagedRecord_IsNamedWithWhatToDo) {
  MakeStore();
  Execute("UPDATE journal SET record = zeroblob(40) WHERE job = 3");
  EXPECT_THAT(CheckStore(path())->problems,
              ElementsAre(AllOf(HasSubstr("record 4 of job-3 has the checksum"),
                                HasSubstr("put a backup of the store in its place"))));
}

TEST_F(StoreTest, RecordThatWasMovedToAnotherNumber_IsNamed) {
  MakeStore();
  Execute("UPDATE journal SET number = 9 WHERE job = 3");
  EXPECT_THAT(CheckStore(path())->problems, ElementsAre(HasSubstr("record 9 of job-3")));
}

TEST_F(StoreTest, DamagedEndedJob_IsNamed) {
  MakeStore();
  Execute("UPDATE ended SET details = substr(details, 1, 20)");
  EXPECT_THAT(CheckStore(path())->problems, ElementsAre(HasSubstr("the details of job-2")));
}

TEST_F(StoreTest, DamagedEntry_IsFoundOnceAndToldForEachOfItsParts) {
  MakeStore();
  Execute("UPDATE ended SET summary = substr(summary, 1, 20), details = substr(details, 1, 20)");
  const auto backend = *SqliteBackend::Open(path());
  int found = 0;
  std::vector<std::string> lines;
  CheckEnded(
      *backend->ended_jobs(), false, [&] { ++found; },
      [&](const std::string& line) { lines.push_back(line); });
  EXPECT_EQ(found, 1);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("the summary of job-2"), HasSubstr("the details of")));
}

TEST_F(StoreTest, RecordOfANewerSchema_IsNamed) {
  MakeStore();
  {
    sqlite::Connection connection = Connect();
    const std::string newer = Seal("new", 4, kStoreSchema + 1);
    sqlite::Statement update =
        *connection.Prepare("UPDATE journal SET record = ? WHERE number = 4");
    ASSERT_TRUE(update.BindBlob(newer).Run().ok());
  }
  EXPECT_THAT(CheckStore(path())->problems,
              ElementsAre(HasSubstr("record 4 of job-3 has schema version 4")));
}

TEST_F(StoreTest, DatabaseOfANewerSchema_IsRefusedByName) {
  MakeStore();
  Execute("PRAGMA user_version=4");
  const absl::Status status = SqliteBackend::Open(path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("has schema version 4; this coordinator knows 3"));
  EXPECT_THAT(CheckStore(path())->problems, Contains(HasSubstr("has schema version 4")));
}

TEST_F(StoreTest, DamagedPages_AreFound) {
  MakeStore();
  {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(2 * 4096);
    file << std::string(3 * 4096, 'x');
  }
  EXPECT_THAT(CheckStore(path())->problems, Not(IsEmpty()));
}

TEST_F(StoreTest, StoreOfVersion1_IsUpgradedWhenItIsOpened) {
  MakeStoreOfVersion1();
  EXPECT_THAT(CheckStore(path())->problems, IsEmpty());
  auto backend = *SqliteBackend::Open(path());
  const std::vector<StoredRecord> records = All(*backend);
  ASSERT_THAT(records, SizeIs(4));
  for (const StoredRecord& record : records) {
    const absl::StatusOr<JournalRecord> decoded = DecodeRecord(record.bytes, record.number);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->job, record.job);
  }
  EXPECT_TRUE(backend->Commit({.records = {{.number = 5, .job = JobId{4}}}}).ok());
}

TEST_F(StoreTest, Identity_IsDrawnOnceAndGoesWithTheDatabase) {
  MakeStore();
  const uint64_t identity = (*SqliteBackend::Open(path()))->identity();
  EXPECT_NE(identity, 0u);
  const std::string copy = support::MakeFolder("copy") + "/journal.db";
  std::filesystem::copy_file(path(), copy);
  EXPECT_EQ((*SqliteBackend::Open(copy))->identity(), identity);
  const std::string other = support::MakeFolder("other") + "/journal.db";
  EXPECT_NE((*SqliteBackend::Open(other))->identity(), identity);
}

TEST_F(StoreTest, IdentityOfAStoreOfVersion2_IsTakenFromItsFile) {
  MakeStore();
  Execute("DELETE FROM marks WHERE name='identity'; PRAGMA user_version=2");
  std::ofstream(folder_ + "/identity") << "fedcba9876543210\n";
  EXPECT_EQ((*SqliteBackend::Open(path()))->identity(), 0xFEDCBA9876543210u);
  std::filesystem::remove(folder_ + "/identity");
  auto backend = *SqliteBackend::Open(path());
  EXPECT_EQ(backend->identity(), 0xFEDCBA9876543210u);
  EXPECT_THAT(All(*backend), SizeIs(2));
}

TEST_F(StoreTest, IdentityOfAStoreOfVersion1_IsTakenFromItsFile) {
  MakeStoreOfVersion1();
  std::ofstream(folder_ + "/identity") << "00000000000000ff\n";
  EXPECT_EQ((*SqliteBackend::Open(path()))->identity(), 255u);
}

TEST_F(StoreTest, FileWithoutAnIdentity_IsDataLossAndTheStoreStaysAsItIs) {
  MakeStoreOfVersion1();
  std::ofstream(folder_ + "/identity") << "who knows\n";
  const absl::Status status = SqliteBackend::Open(path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("holds no identity"));
  EXPECT_EQ(CheckStore(path())->schema, 1);
}

TEST_F(StoreTest, FileBesideANewStore_IsNotItsIdentity) {
  std::ofstream(folder_ + "/identity") << "00000000000000ff\n";
  EXPECT_NE((*SqliteBackend::Open(path()))->identity(), 255u);
}

TEST_F(StoreTest, StoreWithoutItsIdentity_IsDamaged) {
  MakeStore();
  Execute("DELETE FROM marks WHERE name='identity'");
  EXPECT_EQ(SqliteBackend::Open(path()).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(CheckStore(path())->problems, ElementsAre(HasSubstr("has no identity")));
}

TEST_F(StoreTest, Check_LeavesTheLogOfACoordinatorThatDied) {
  // As a process that is killed leaves them.
  const std::string copy = support::MakeFolder("copy") + "/journal.db";
  {
    auto backend = *SqliteBackend::Open(path());
    ASSERT_TRUE(backend->Commit({.records = {{.number = 1, .job = JobId{1}, .bytes = "x"}}}).ok());
    for (const char* suffix : {"", "-wal"}) {
      std::filesystem::copy_file(path() + suffix, copy + suffix);
    }
  }
  const std::string database = support::ReadFile(copy), log = support::ReadFile(copy + "-wal");
  ASSERT_FALSE(log.empty());
  EXPECT_EQ(CheckStore(copy)->records, 1);
  EXPECT_EQ(support::ReadFile(copy), database);
  ASSERT_TRUE(std::filesystem::exists(copy + "-wal"));
  EXPECT_EQ(support::ReadFile(copy + "-wal"), log);
}

// As an upgrade leaves it that was killed, or had no space, before its last step.
TEST_F(StoreTest, DatabaseThatGivesNoPagesBack_IsPrunedToAnEnd) {
  MakeStore();
  Execute("PRAGMA auto_vacuum=NONE; VACUUM");
  ASSERT_EQ(*Connect().Number("PRAGMA auto_vacuum"), 0);
  Execute("CREATE TABLE junk(bytes); INSERT INTO junk VALUES(zeroblob(16000000)); DROP TABLE junk");
  auto backend = *SqliteBackend::Open(path());
  ASSERT_GT(*Connect().Number("PRAGMA freelist_count"), 3000);
  EXPECT_EQ(*backend->Prune({}, kTime), false);
}

TEST_F(StoreTest, FreePages_AreGivenBackBitByBit) {
  MakeStore();
  Execute("CREATE TABLE junk(bytes); INSERT INTO junk VALUES(zeroblob(16000000)); DROP TABLE junk");
  auto backend = *SqliteBackend::Open(path());
  int calls = 0;
  while (*backend->Prune({}, kTime)) ASSERT_LT(++calls, 10);
  EXPECT_GE(calls, 2);
  EXPECT_LE(*Connect().Number("PRAGMA freelist_count"), 1000);
}

TEST_F(StoreTest, StoreOfVersion1ThatIsDamaged_IsRefusedAndStaysAsItIs) {
  MakeStoreOfVersion1();
  Execute("UPDATE journal SET record = x'FFFF' WHERE number = 3");
  const absl::Status status = SqliteBackend::Open(path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("record 3"));
  EXPECT_EQ(CheckStore(path())->schema, 1);
}

}  // namespace
}  // namespace phalanx::coordinator
