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
using ::testing::Field;
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

  // Makes it zeros. Of a table that is larger than a page.
  void DamageFirstLeafOf(const std::string& table) {
    constexpr size_t kPage = 4096, kInteriorHeader = 12;
    const auto root = static_cast<size_t>(*Connect().Number(
        absl::StrCat("SELECT rootpage FROM sqlite_master WHERE name='", table, "'")));
    std::string bytes = support::ReadFile(path());
    const auto number = [&bytes](size_t at, size_t count) {
      size_t value = 0;
      for (size_t i = 0; i < count; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
      return value;
    };
    const size_t begin = (root - 1) * kPage;
    ASSERT_EQ(bytes[begin], 5) << "a page that leads to others";
    const size_t leaf = number(begin + number(begin + kInteriorHeader, 2), 4);
    bytes.replace((leaf - 1) * kPage, kPage, kPage, '\0');
    support::WriteFile(path(), bytes);
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

TEST_F(StoreTest, StoreOfTwoNames_IsWhole_AndSaysThatNoneStartsOnIt) {
  MakeStore();
  const std::string link = folder_ + "/link.db";
  std::filesystem::create_symlink(path(), link);
  const StoreReport by_link = *CheckStore(link);
  EXPECT_TRUE(VerdictOn(by_link).ok());
  EXPECT_THAT(Lines(by_link),
              ElementsAre(HasSubstr("a coordinator does not start on it here: " + link + " is a"),
                          HasSubstr("the store is whole")));
  std::filesystem::create_hard_link(path(), folder_ + "/backup.db");
  EXPECT_THAT(Lines(*CheckStore(path())),
              ElementsAre(HasSubstr("has 2 names (hard links)"), HasSubstr("the store is whole")));
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

// What the indexes tell of the jobs on it is listed, and the jobs on other pages are whole.
TEST_F(StoreTest, DamagedPageOfEndedJobs_KeepsNobodyFromTheOthers) {
  constexpr int64_t kJobs = 500;
  {
    auto backend = *SqliteBackend::Open(path());
    Batch batch;
    for (int64_t job = 1; job <= kJobs; ++job) {
      EndedJob ended = Ended(job, absl::StrCat("name-", job), kTime + absl::Seconds(job));
      ended.summary = Seal("summary", static_cast<uint64_t>(job));
      ended.details = Seal("details", static_cast<uint64_t>(job));
      batch.ended.push_back(ended);
    }
    ASSERT_TRUE(backend->Commit(batch).ok());
  }
  DamageFirstLeafOf("ended");
  const auto backend = *SqliteBackend::Open(path());
  EndedJobs& ended = *backend->ended_jobs();
  const auto jobs = ended.List(JobId{kJobs + 1}, kJobs);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_THAT(*jobs, SizeIs(kJobs));
  int unreadable = 0;
  for (int64_t at = 0; at < kJobs; ++at) {
    const EndedJob& job = (*jobs)[static_cast<size_t>(at)];
    EXPECT_EQ(job.job, JobId{kJobs - at});
    EXPECT_EQ(job.name, absl::StrCat("name-", job.job.value));
    EXPECT_EQ(job.phase, job::JobPhase::kSucceeded);
    EXPECT_EQ(job.ended, kTime + absl::Seconds(job.job.value));
    if (job.summary.empty()) ++unreadable;
    EXPECT_EQ(EntryStatus(ended, job).code(),
              job.summary.empty() ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk);
  }
  EXPECT_GT(unreadable, 0);
  EXPECT_LT(unreadable, 200);
  const auto page = ended.List(JobId{10}, 3);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page, ElementsAre(Field(&EndedJob::job, JobId{9}), Field(&EndedJob::job, JobId{8}),
                                 Field(&EndedJob::job, JobId{7})));

  int found = 0;
  std::vector<std::string> lines;
  CheckEnded(
      ended, false, [&] { ++found; }, [&](const std::string& line) { lines.push_back(line); });
  EXPECT_EQ(found, unreadable);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines[0], AllOf(HasSubstr("the entry of job-"), HasSubstr("it is damaged"),
                              HasSubstr("put a backup of the store in its place")));
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
  const StoreReport report = *CheckStore(path());
  EXPECT_THAT(report.problems, ElementsAre(HasSubstr("record 4 of job-3 has schema version 4")));
  EXPECT_EQ(VerdictOn(report), absl::FailedPreconditionError(report.problems[0]));
  EXPECT_THAT(Lines(report).back(), HasSubstr(": this coordinator cannot read the store"));
  // Beside damage it is no excuse.
  Execute("UPDATE journal SET record = x'FF' WHERE number = 1");
  EXPECT_EQ(VerdictOn(*CheckStore(path())), absl::DataLossError("the store is damaged"));
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
