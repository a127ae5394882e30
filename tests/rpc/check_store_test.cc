// phalanx-coordinator, --check-store and its start, on stores of every condition.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "coordinator/store/archive.h"
#include "coordinator/store/sqlite.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/wire/record_codec.h"
#include "coordinator/wire/seal.h"
#include "core/base/host_port.h"
#include "core/posix/socket.h"
#include "nlohmann/json.hpp"
#include "tests/rpc/fixture.h"
#include "tests/rpc/plain_http.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CheckStoreTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_ + "/journal.db"; }
  // A store with `jobs` queued jobs.
  void Make(int64_t jobs) {
    auto backend = *SqliteBackend::Open(path());
    Batch batch;
    for (int64_t job = 1; job <= jobs; ++job) {
      const JournalRecord record{
          .time = absl::FromUnixSeconds(1'700'000'000),
          .job = JobId{job},
          .body =
              JobSubmitted{std::make_shared<const JobRequest>(JobRequest{
                               .document = {.text = job == 1 ? text_ : "text", .directory = "/d"},
                               .name = absl::StrCat("job-of-", job),
                               .steps = 1}),
                           ""}};
      const auto number = static_cast<uint64_t>(job);
      batch.records.push_back(
          {.number = number, .job = JobId{job}, .bytes = EncodeRecord(record, number)});
    }
    ASSERT_TRUE(backend->Commit(batch).ok());
  }
  // A store with `jobs` jobs, which have ended.
  void MakeEnded(int64_t jobs = 1) {
    Make(jobs);
    auto backend = *SqliteBackend::Open(path());
    Batch phases, entries;
    for (int64_t job = 1; job <= jobs; ++job) {
      // Lately, or a coordinator that starts deletes it.
      const JournalRecord ended{.time = absl::Now(),
                                .job = JobId{job},
                                .body = PhaseChanged{job::JobPhase::kCancelled, "", std::nullopt}};
      const auto number = static_cast<uint64_t>(jobs + job);
      phases.records.push_back(
          {.number = number, .job = JobId{job}, .bytes = EncodeRecord(ended, number)});
    }
    ASSERT_TRUE(backend->Commit(phases).ok());
    for (int64_t job = 1; job <= jobs; ++job) {
      entries.ended.push_back(**MakeEndedJob(JobId{job}, *backend->RecordsOf(JobId{job})));
    }
    ASSERT_TRUE(backend->Commit(entries).ok());
  }
  void Execute(const std::string& sql) {
    ASSERT_TRUE(sqlite::Connection::Open(path(), SQLITE_OPEN_READWRITE)->Execute(sql).ok());
  }
  support::Finished Check() const {
    return support::RunToEnd(
        {support::Program("phalanx-coordinator"), "--store", folder_, "--check-store"});
  }

  // A coordinator on the store, once it serves.
  std::unique_ptr<support::Process> Serve() {
    const std::string ready = folder_ + "/ready.json";
    std::filesystem::remove(ready);
    auto process = std::make_unique<support::Process>(
        std::vector<std::string>{support::Program("phalanx-coordinator"), "--store", folder_,
                                 "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file",
                                 ready},
        mark_, talk(), talk());
    support::AwaitFile(ready, *process);
    return process;
  }
  // Of the coordinator that serves.
  std::string Metrics() const {
    const std::string address =
        nlohmann::json::parse(support::ReadFile(folder_ + "/ready.json"))["http"];
    return Get(ParseHostPort(address, 1)->port, "/metrics");
  }
  std::string talk() const { return folder_ + "/talk"; }
  // Until the coordinator has said it.
  void AwaitTalk(const std::string& text, const support::Process& coordinator) const {
    support::AwaitText(talk(), text, coordinator);
  }

  const std::string folder_ = support::MakeFolder("check-store");
  const std::string mark_ = support::NewMark();
  std::string text_ = "text";  // of job-1's document
};

TEST_F(CheckStoreTest, Sound_IsWholeAndEndsWithZero) {
  Make(2);
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 0) << check.talk;
  EXPECT_THAT(check.out, AllOf(HasSubstr("2 records, 0 ended jobs"), HasSubstr("is whole")));
}

TEST_F(CheckStoreTest, WithoutARecord_IsWhole) {
  Make(0);
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 0) << check.talk;
  EXPECT_THAT(check.out, AllOf(HasSubstr("0 records"), HasSubstr("is whole")));
}

TEST_F(CheckStoreTest, DamagedRecord_IsNamedAndEndsWithOne) {
  Make(2);
  Execute(
      "UPDATE journal SET record = substr(record, 1, 20) || x'FF' || substr(record, 22) "
      "WHERE number = 2");
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.out, AllOf(HasSubstr("record 2 of job-2"), HasSubstr("checksum"),
                               HasSubstr("the store is damaged")));
  EXPECT_THAT(check.talk, HasSubstr("the store is damaged"));
}

TEST_F(CheckStoreTest, DamagedJoinTokens_AreNamedAndEndWithOne) {
  Make(1);
  support::WriteFile(folder_ + "/join-tokens", "no tokens");
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.out, AllOf(HasSubstr("the join tokens: " + folder_ + "/join-tokens"),
                               HasSubstr("move it away: jobs stay as they are"),
                               Not(HasSubstr("its jobs are then unknown")),
                               HasSubstr("the store is damaged")));
}

TEST_F(CheckStoreTest, StoreOfANewerVersion_IsNotCalledDamaged) {
  Make(1);
  Execute("PRAGMA user_version=4");
  support::WriteFile(folder_ + "/join-tokens", Seal("new", 0, kStoreSchema + 1));
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  constexpr char kNewer[] =
      "has schema version 4; this coordinator knows 3: a newer coordinator wrote it, start that "
      "one\n";
  EXPECT_THAT(check.out, StartsWith(absl::StrCat("the database ", path(), " ", kNewer)));
  EXPECT_THAT(check.out, EndsWith("\nthis coordinator cannot read the store\n"));
  EXPECT_THAT(check.talk, HasSubstr(absl::StrCat("the database ", path(), " ", kNewer)));
  EXPECT_THAT(check.out + check.talk, Not(HasSubstr("damaged")));
  const support::Finished start = support::RunToEnd(
      {support::Program("phalanx-coordinator"), "--store", folder_, "--listen", "127.0.0.1:0"});
  EXPECT_EQ(start.exit_code, 1);
  EXPECT_THAT(start.talk, HasSubstr(absl::StrCat(path(), ": ", kNewer)));
}

TEST_F(CheckStoreTest, JoinTokensOfANewerVersion_AreNotCalledDamaged) {
  Make(1);
  support::WriteFile(folder_ + "/join-tokens", Seal("new", 0, kStoreSchema + 1));
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.out, StartsWith(absl::StrCat("the join tokens: ", folder_,
                                                 "/join-tokens: has schema version 4; ")));
  EXPECT_THAT(check.out, EndsWith("1 records, 0 ended jobs: this coordinator cannot read the "
                                  "store\n"));
  EXPECT_THAT(check.out + check.talk, Not(HasSubstr("damaged")));
}

TEST_F(CheckStoreTest, FileThatIsNoDatabase_EndsWithOne) {
  std::ofstream(path()) << std::string(10'000, 'x');
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.out + check.talk, HasSubstr("not a database"));
}

// SQLite would begin a new database and remove the log.
TEST_F(CheckStoreTest, LogWhoseDatabaseIsGone_IsRefusedAtStartAndKept) {
  Make(2);
  const std::string log = path() + "-wal";
  const auto refused = [this] {
    return support::RunToEnd({support::Program("phalanx-coordinator"), "--store", folder_,
                              "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"});
  };
  for (const bool empty : {false, true}) {
    std::filesystem::remove(path());
    if (empty) std::ofstream{path()};
    support::WriteFile(log, "the newest commits");
    const support::Finished start = refused();
    EXPECT_EQ(start.exit_code, 1);
    EXPECT_THAT(start.talk,
                AllOf(HasSubstr("journal.db is gone or empty"), HasSubstr("journal.db-wal is left"),
                      Not(HasSubstr("new store"))));
    EXPECT_EQ(support::ReadFile(log), "the newest commits");
  }
}

// SQLite would drop the commit and all that lie behind it.
TEST_F(CheckStoreTest, LogWithADamagedCommit_IsRefusedInTheSameWordsAndKept) {
  {
    const auto backend = *SqliteBackend::Open(path());
    for (uint64_t number = 1; number <= 3; ++number) {
      const StoredRecord record{.number = number, .job = JobId{1}, .bytes = "record"};
      ASSERT_TRUE(backend->Commit({.records = {record}}).ok());
    }
    for (const char* part : {"", "-wal"}) {
      std::filesystem::copy_file(path() + part, folder_ + "/copy" + part);
    }
  }
  for (const char* part : {"", "-wal"}) {
    std::filesystem::rename(folder_ + "/copy" + part, path() + part);
  }
  std::string log = support::ReadFile(path() + "-wal");
  log[32 + 24 + 100] ^= 1;
  support::WriteFile(path() + "-wal", log);
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  const std::string problem = path() + "-wal: frame 1 (at byte 32) is damaged";
  EXPECT_THAT(check.out, AllOf(HasSubstr("the log " + problem), HasSubstr("move the log away"),
                               HasSubstr("the store is damaged")));
  const support::Finished start =
      support::RunToEnd({support::Program("phalanx-coordinator"), "--store", folder_, "--listen",
                         "127.0.0.1:0", "--http", "127.0.0.1:0"});
  EXPECT_EQ(start.exit_code, 1);
  EXPECT_THAT(start.talk, AllOf(HasSubstr(problem), HasSubstr("move the log away")));
  EXPECT_EQ(support::ReadFile(path() + "-wal"), log);
}

TEST_F(CheckStoreTest, DamagedRecord_IsRefusedAtStartInTheSameWords) {
  Make(2);
  Execute("UPDATE journal SET record = x'FF' WHERE number = 2");
  const std::string checked = Check().out;
  const std::string problem = checked.substr(0, checked.find('\n'));
  EXPECT_THAT(problem, HasSubstr("record 2 of job-2"));
  const support::Finished start = support::RunToEnd(
      {support::Program("phalanx-coordinator"), "--store", folder_, "--listen", "127.0.0.1:0"});
  EXPECT_EQ(start.exit_code, 1);
  EXPECT_THAT(start.talk, AllOf(HasSubstr(problem), HasSubstr("the store is damaged")));
}

TEST_F(CheckStoreTest, FileThatIsNoDatabase_IsRefusedAtStartInOneSentence) {
  std::ofstream(path()) << std::string(10'000, 'x');
  const support::Finished start = support::RunToEnd(
      {support::Program("phalanx-coordinator"), "--store", folder_, "--listen", "127.0.0.1:0"});
  EXPECT_EQ(start.exit_code, 1);
  EXPECT_THAT(start.talk, HasSubstr(path() + ": file is not a database: it is damaged"));
  EXPECT_THAT(start.talk, Not(HasSubstr("PRAGMA")));
}

// Too many to be read at start.
TEST_F(CheckStoreTest, DamagedEntry_IsToldAfterTheStart) {
  MakeEnded();
  Execute("UPDATE ended SET summary = x'0102030405060708FF' WHERE job = 1");
  EXPECT_THAT(Check().out, HasSubstr("the summary of job-1 has the checksum"));
  const auto coordinator = Serve();
  AwaitTalk("the summary of job-1 has the checksum", *coordinator);
  EXPECT_THAT(Metrics(), HasSubstr("\nphalanx_store_damaged_entries_total 1\n"));
}

TEST_F(CheckStoreTest, EmptyFile_IsNoStoreAndTheStartSaysSo) {
  std::ofstream(path()).close();
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.talk, HasSubstr(path() + " is empty (0 bytes)"));
  const auto coordinator = Serve();
  AwaitTalk(path() + " was empty (0 bytes)", *coordinator);
}

// Without certificates nobody reads them.
TEST_F(CheckStoreTest, DamagedTokens_AreToldByAStartThatDoesWithoutThem) {
  Make(1);
  support::WriteFile(folder_ + "/join-tokens", "no tokens");
  EXPECT_THAT(Check().out, HasSubstr("the join tokens: "));
  const auto coordinator = Serve();
  AwaitTalk("the join tokens cannot be read reason=", *coordinator);
}

TEST_F(CheckStoreTest, StoreBehindALink_IsWhole_AndSaysThatNoneStartsOnIt) {
  Make(1);
  std::filesystem::rename(path(), folder_ + "/elsewhere");
  std::filesystem::create_symlink(folder_ + "/elsewhere", path());
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 0) << check.talk;
  const std::string reason = path() + " is a link, and another coordinator may have";
  EXPECT_THAT(check.out, AllOf(HasSubstr("a coordinator does not start on it here: " + reason),
                               HasSubstr("the store is whole")));
  const support::Finished start = support::RunToEnd(
      {support::Program("phalanx-coordinator"), "--store", folder_, "--listen", "127.0.0.1:0"});
  EXPECT_EQ(start.exit_code, 1);
  EXPECT_THAT(start.talk, HasSubstr(reason));
}

TEST_F(CheckStoreTest, Folder_IsNamedAsOne) {
  std::filesystem::create_directory(path());
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.talk, HasSubstr(path() + " is a folder"));
}

TEST_F(CheckStoreTest, StoreThatIsRemovedWhileItServes_IsTold) {
  Make(1);
  const auto coordinator = Serve();
  std::filesystem::rename(path(), folder_ + "/elsewhere");
  AwaitTalk(path() +
                " is gone: No such file or directory; put it back: a coordinator that is started "
                "without it makes an empty store",
            *coordinator);
  std::filesystem::rename(folder_ + "/elsewhere", path());
  AwaitTalk("the store works again", *coordinator);
}

// The root page of a table or of an index.
TEST_F(CheckStoreTest, DamagedPageThatCommitsRestUpon_IsRefusedAtStartInTheSameWords) {
  MakeEnded();
  for (const char* name :
       {"journal", "requests", "requests_by_expiry", "marks", "ended_by_name", "ended_by_time"}) {
    const int64_t page =
        *sqlite::Connection::Open(path(), SQLITE_OPEN_READWRITE)
             ->Number(absl::StrCat("SELECT rootpage FROM sqlite_master WHERE name='", name, "'"));
    ASSERT_GT(page, 1) << name;
    const std::string whole = support::ReadFile(path());
    std::string damaged = whole;
    const auto size = static_cast<size_t>(
        *sqlite::Connection::Open(path(), SQLITE_OPEN_READWRITE)->Number("PRAGMA page_size"));
    damaged.replace(static_cast<size_t>(page - 1) * size, size, size, '\0');
    std::ofstream(path(), std::ios::binary) << damaged;
    const std::string checked = Check().out;
    EXPECT_THAT(checked, HasSubstr("the store is damaged")) << name;
    const support::Finished start =
        support::RunToEnd({support::Program("phalanx-coordinator"), "--store", folder_, "--listen",
                           "127.0.0.1:0", "--http", "127.0.0.1:0"});
    EXPECT_EQ(start.exit_code, 1) << name;
    EXPECT_THAT(start.talk, HasSubstr(checked.substr(0, checked.find('\n')))) << name;
    std::filesystem::remove(path() + "-wal");
    std::filesystem::remove(path() + "-shm");
    std::ofstream(path(), std::ios::binary) << whole;
  }
}

TEST_F(CheckStoreTest, DamagedPageOfEndedJobs_IsToldAndKeepsNoOtherJobFromTheList) {
  constexpr int kJobs = 200;
  MakeEnded(kJobs);
  const int64_t root = *sqlite::Connection::Open(path(), SQLITE_OPEN_READWRITE)
                            ->Number("SELECT rootpage FROM sqlite_master WHERE name='ended'");
  std::string bytes = support::ReadFile(path());
  const auto number = [&bytes](size_t at) {
    return size_t{static_cast<uint8_t>(bytes[at])} << 8 | static_cast<uint8_t>(bytes[at + 1]);
  };
  // The first page that the root leads to: of its number the lower half is enough here.
  const size_t begin = static_cast<size_t>(root - 1) * 4096;
  ASSERT_EQ(bytes[begin], 5) << "a page that leads to others";
  const size_t leaf = number(begin + number(begin + 12) + 2);
  bytes.replace((leaf - 1) * 4096, 4096, 4096, '\0');
  support::WriteFile(path(), bytes);
  const auto coordinator = Serve();
  AwaitTalk("the entry of job-2: database disk image is malformed: it is damaged; put a backup",
            *coordinator);
  EXPECT_THAT(Metrics(), AllOf(HasSubstr("\nphalanx_store_damaged_entries_total "),
                               Not(HasSubstr("\nphalanx_store_damaged_entries_total 0\n"))));
  const auto jobs = v1::JobService::NewStub(
      grpc::CreateChannel(nlohmann::json::parse(support::ReadFile(folder_ + "/ready.json"))["grpc"],
                          grpc::InsecureChannelCredentials()));
  v1::SubmitJobRequest request;
  request.mutable_document()->set_text(JobText("live"));
  request.mutable_document()->set_directory("/tmp");
  v1::SubmitJobResponse submitted;
  grpc::ClientContext submit;
  const grpc::Status taken = jobs->SubmitJob(&submit, request, &submitted);
  ASSERT_TRUE(taken.ok()) << taken.error_message();
  v1::ListJobsRequest all;
  all.set_page_size(kJobs + 1);
  v1::ListJobsResponse listed;
  grpc::ClientContext list;
  const grpc::Status status = jobs->ListJobs(&list, all, &listed);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(listed.jobs_size(), kJobs + 1);
  EXPECT_EQ(listed.jobs(0).name(), "live");
  EXPECT_EQ(listed.jobs(1).name(), "job-of-200");
  EXPECT_THAT(listed.jobs(1).reason(), Not(HasSubstr("damaged")));
  for (const char* job : {"job-1", "job-of-1"}) {
    v1::DeleteJobRequest remove;
    remove.set_job(job);
    v1::DeleteJobResponse removed;
    grpc::ClientContext context;
    const grpc::Status refused = jobs->DeleteJob(&context, remove, &removed);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::DATA_LOSS);
    EXPECT_THAT(refused.error_message(),
                AllOf(AnyOf(StartsWith("the store: the entry of job-1: "),
                            StartsWith("the store: the entry of the job \"job-of-1\": ")),
                      HasSubstr("it is damaged; phalanx-coordinator --check-store lists all")));
  }
  EXPECT_EQ(listed.jobs(kJobs).name(), "job-of-1");
  EXPECT_THAT(listed.jobs(kJobs).reason(),
              AllOf(HasSubstr("the entry of job-1: "), HasSubstr("it is damaged"),
                    HasSubstr("--check-store"), Not(HasSubstr("delete"))));
}

// Of files that do not grow, as on a full disk.
TEST_F(CheckStoreTest, StartOnAFullDisk_SaysWhichFileAndHowMuchIsFree_AndLosesNothing) {
  MakeEnded(2);
  // What it says goes to a pipe, which may grow.
  const auto run = [this](const std::string& flags) {
    return support::RunToEnd(
        {"/bin/sh", "-c",
         "(ulimit -f 0; \"$0\" --store \"$1\" " + flags + " 2>&1; echo exit=$?) | cat",
         support::Program("phalanx-coordinator"), folder_});
  };
  const auto says = [this](const std::string& talk) {
    EXPECT_THAT(talk, HasSubstr("exit=1\n"));
    EXPECT_THAT(talk, ContainsRegex(path() + ": [^\n]*: [0-9]+ bytes are free there; "));
    EXPECT_THAT(talk, ContainsRegex("; (make room on it|see that the disk has room)"));
    EXPECT_THAT(talk, Not(HasSubstr("damaged")));
  };
  says(run("--listen 127.0.0.1:0 --http 127.0.0.1:0").out);
  says(run("--check-store").out);
  EXPECT_THAT(Check().out, AllOf(HasSubstr("2 ended jobs"), HasSubstr("the store is whole")));
  Serve();
}

TEST_F(CheckStoreTest, JobsOnDamagedPages_AreNamed_AndTheOthersAreReadAndDeleted) {
  constexpr int kJobs = 3;
  std::string noise;
  for (uint64_t i = 0, word = 1; i < 40'000; ++i, word = word * 6364136223846793005 + 1)
    noise += static_cast<char>('!' + (word >> 33) % 90);
  text_ = noise;  // does not compress: its details take pages of their own
  MakeEnded(kJobs);
  // A page of job-1's details, by what is in the middle of them.
  std::string bytes = support::ReadFile(path());
  {
    auto connection = *sqlite::Connection::Open(path(), SQLITE_OPEN_READWRITE);
    auto details = *connection.Prepare("SELECT details FROM ended WHERE job=1");
    ASSERT_TRUE(*details.Step());
    // Also where a record held it, whose page is free by now.
    const std::string part = details.Bytes(0).substr(15'000, 64);
    size_t pages = 0;
    for (size_t at = bytes.find(part); at != std::string::npos; at = bytes.find(part), ++pages)
      bytes.replace(at / 4096 * 4096, 4096, 4096, '\0');
    ASSERT_GT(pages, 0u);
  }
  support::WriteFile(path(), bytes);
  const auto coordinator = Serve();
  const std::string address =
      nlohmann::json::parse(support::ReadFile(folder_ + "/ready.json"))["grpc"];
  const auto jobs =
      v1::JobService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  const auto get = [&](const std::string& job) {
    v1::GetJobRequest request;
    request.set_job(job);
    v1::GetJobResponse response;
    grpc::ClientContext context;
    return jobs->GetJob(&context, request, &response);
  };
  const auto remove = [&](const std::string& job) {
    v1::DeleteJobRequest request;
    request.set_job(job);
    v1::DeleteJobResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return jobs->DeleteJob(&context, request, &response);
  };
  for (const std::string job : {"job-1", "job-of-1"}) {
    for (const grpc::Status& status : {get(job), remove(job)}) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
      EXPECT_EQ(status.error_message(),
                "the store: the details of job-1: database disk image is malformed: it is damaged; "
                "phalanx-coordinator --check-store lists all damage and says what to do");
    }
  }
  EXPECT_TRUE(get("job-of-2").ok());
  EXPECT_TRUE(remove("job-2").ok());
  EXPECT_TRUE(get("job-3").ok());
}

TEST_F(CheckStoreTest, LimitOnFileSizes_IsAStoreThatFails) {
  const std::string ready = folder_ + "/ready.json";
  // In blocks of 512 bytes.
  support::Process coordinator(
      {"/bin/sh", "-c", "ulimit -f 200; exec \"$@\"", "sh", support::Program("phalanx-coordinator"),
       "--store", folder_, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file",
       ready},
      mark_, talk(), talk());
  support::AwaitFile(ready, coordinator);
  const std::string address = nlohmann::json::parse(support::ReadFile(ready))["grpc"];
  const auto jobs =
      v1::JobService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    v1::SubmitJobRequest request;
    request.mutable_document()->set_text(JobText(absl::StrCat("n", i)) + "#" +
                                         std::string(30'000, 'x'));
    request.mutable_document()->set_directory("/tmp");
    v1::SubmitJobResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    status = jobs->SubmitJob(&context, request, &response);
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("nothing is accepted until it works again"));
  EXPECT_THAT(support::ReadFile(talk()), HasSubstr("store failed"));
  const std::string http = nlohmann::json::parse(support::ReadFile(ready))["http"];
  EXPECT_THAT(Get(ParseHostPort(http, 1)->port, "/readyz"), HasSubstr("503"));
}

// Of etcd, which here takes the call and says nothing.
TEST_F(CheckStoreTest, CheckThatIsUnderWay_EndsWithASignal) {
  const UniqueFd etcd = *Listen("127.0.0.1", 0);
  support::Process check({support::Program("phalanx-coordinator"), "--store",
                          absl::StrCat("etcd://127.0.0.1:", PortOf(etcd.get()), "/phalanx"),
                          "--etcd-plaintext", "--check-store"},
                         mark_, talk(), talk());
  pollfd called{etcd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&called, 1, static_cast<int>(absl::ToInt64Milliseconds(support::kPatience))), 1);
  check.Signal(SIGTERM);
  const int status = check.Wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST_F(CheckStoreTest, NoStore_SaysSoAndMakesNone) {
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.talk, HasSubstr("there is no store at " + path()));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

}  // namespace
}  // namespace phalanx::coordinator
