// phalanx-coordinator --copy-store-to: a store with jobs goes to etcd, and back to a folder.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/store/archive.h"
#include "coordinator/store/sqlite.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/store/token_file.h"
#include "coordinator/wire/record_codec.h"
#include "nlohmann/json.hpp"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "tests/support/etcd.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tests/support/tools.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CopyStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
    etcd_ = support::SharedEtcd().NewPlace();
    Make();
  }
  // Three jobs that wait, one that was cancelled lately, and a join token.
  void Make() {
    std::filesystem::create_directory(folder_);
    auto backend = *SqliteBackend::Open(folder_ + "/journal.db");
    std::vector<StoredRecord> records;
    const auto add = [&records](JournalRecord record) {
      const uint64_t number = records.size() + 1;
      records.push_back(
          {.number = number, .job = record.job, .bytes = EncodeRecord(record, number)});
    };
    for (int64_t job = 1; job <= 4; ++job) {
      add({.time = absl::Now(),
           .job = JobId{job},
           .body = JobSubmitted{std::make_shared<const JobRequest>(
                                    JobRequest{.document = {.text = "text", .directory = "/d"},
                                               .name = absl::StrCat("job-of-", job),
                                               .steps = 1,
                                               .world = 1,
                                               .devices = 1}),
                                absl::StrCat("request ", job)}});
    }
    add({.time = absl::Now(),
         .job = JobId{2},
         .body = PhaseChanged{job::JobPhase::kCancelled, "on request", std::nullopt}});
    ASSERT_TRUE(backend->Commit({.records = records}).ok());
    const auto ended = *MakeEndedJob(JobId{2}, *backend->RecordsOf(JobId{2}));
    ASSERT_TRUE(backend->Commit({.ended = {*ended}}).ok());
    v1::JoinRecord token;
    token.mutable_about()->set_id("0123456789abcdef");
    ASSERT_TRUE(TokenFile(folder_ + "/join-tokens").Write(token, {}).ok());
  }
  support::Finished Run(const std::string& store, const std::vector<std::string>& more) {
    std::vector<std::string> argv = {support::Program("phalanx-coordinator"), "--store", store};
    argv.insert(argv.end(), more.begin(), more.end());
    return support::RunToEnd(argv);
  }
  std::unique_ptr<support::Process> Serve(const std::string& store, std::string& address) {
    const std::string ready = absl::StrCat(work_, "/ready-", ++starts_, ".json");
    auto process = std::make_unique<support::Process>(
        std::vector<std::string>{support::Program("phalanx-coordinator"), "--store", store,
                                 "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file",
                                 ready},
        mark_, work_ + "/talk", work_ + "/talk");
    // Among others it stands by first, while the lease of the one before holds.
    if (store == etcd_) support::AwaitText(ready, "\"standby\":false", *process);
    support::AwaitFile(ready, *process);
    address = nlohmann::json::parse(support::ReadFile(ready))["grpc"];
    return process;
  }
  // The jobs that a coordinator over the store shows, a line each; it has ended then.
  std::string Jobs(const std::string& store) {
    std::string address, jobs;
    const std::unique_ptr<support::Process> coordinator = Serve(store, address);
    const auto stub =
        v1::JobService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + support::kPatience));
    context.set_wait_for_ready(true);
    v1::ListJobsRequest request;
    v1::ListJobsResponse response;
    EXPECT_TRUE(stub->ListJobs(&context, request, &response).ok());
    for (const v1::JobStatus& job : response.jobs()) {
      absl::StrAppend(&jobs, job.id(), " ", job.name(), " ", v1::JobPhase_Name(job.phase()), "\n");
    }
    coordinator->Signal(SIGTERM);
    EXPECT_EQ(coordinator->WaitExitCode(), 0);
    return jobs;
  }

  const std::string work_ = support::MakeFolder("copy-store"), folder_ = work_ + "/store";
  const std::string mark_ = support::NewMark();
  std::string etcd_;
  int starts_ = 0;
};

TEST_F(CopyStoreTest, StoreInAFolder_GoesToEtcdAndBack_WithTheSameJobs) {
  const std::string before = Jobs(folder_);
  EXPECT_THAT(before, AllOf(HasSubstr("1 job-of-1 JOB_PHASE_QUEUED"),
                            HasSubstr("2 job-of-2 JOB_PHASE_CANCELLED")));
  const support::Finished copy = Run(folder_, {"--copy-store-to", etcd_});
  EXPECT_EQ(copy.exit_code, 0) << copy.talk;
  EXPECT_THAT(copy.out, AllOf(HasSubstr("1 ended jobs, 1 request ids and 1 join tokens"),
                              HasSubstr("the store is at " + etcd_)));
  const support::Finished check = Run(etcd_, {"--check-store"});
  EXPECT_EQ(check.exit_code, 0) << check.talk;
  EXPECT_THAT(check.out, HasSubstr("1 ended jobs: the store is whole"));
  EXPECT_EQ(Jobs(etcd_), before);

  const std::string back = work_ + "/back";
  const support::Finished again = Run(etcd_, {"--copy-store-to", back});
  EXPECT_EQ(again.exit_code, 0) << again.talk;
  EXPECT_EQ(Jobs(back), before);
  EXPECT_TRUE(std::filesystem::exists(back + "/join-tokens"));
  EXPECT_FALSE(std::filesystem::exists(back + "/journal.db.copy"));
}

TEST_F(CopyStoreTest, PlaceWhereSomethingIs_IsRefused) {
  EXPECT_EQ(Run(folder_, {"--copy-store-to", etcd_}).exit_code, 0);
  const support::Finished twice = Run(folder_, {"--copy-store-to", etcd_});
  EXPECT_EQ(twice.exit_code, 1);
  EXPECT_THAT(twice.talk, HasSubstr("there is a store already"));
  const support::Finished back = Run(etcd_, {"--copy-store-to", folder_});
  EXPECT_EQ(back.exit_code, 1);
  EXPECT_THAT(back.talk, HasSubstr("journal.db is there already"));
}

// SQLite would take it for the copy's own.
TEST_F(CopyStoreTest, FolderWhereALogIsLeft_IsRefused) {
  const std::string back = work_ + "/back", log = back + "/journal.db-wal";
  std::filesystem::create_directory(back);
  support::WriteFile(log, "of another store");
  for (const bool draft : {false, true}) {
    if (draft) support::WriteFile(back + "/journal.db.copy", "");
    const support::Finished copy = Run(etcd_, {"--copy-store-to", back});
    EXPECT_EQ(copy.exit_code, 1);
    EXPECT_THAT(copy.talk, HasSubstr("journal.db-wal is there already"));
  }
  EXPECT_EQ(support::ReadFile(log), "of another store");
}

// Between the two files.
TEST_F(CopyStoreTest, CopyToAFolderThatWasCut_IsMadeAnew) {
  EXPECT_EQ(Run(folder_, {"--copy-store-to", etcd_}).exit_code, 0);
  const std::string back = work_ + "/back";
  std::filesystem::create_directory(back);
  { const auto draft = *SqliteBackend::Open(back + "/journal.db.copy"); }
  support::WriteFile(back + "/join-tokens", "of the copy before");
  const support::Finished copy = Run(etcd_, {"--copy-store-to", back});
  EXPECT_EQ(copy.exit_code, 0) << copy.talk;
  EXPECT_EQ(support::ReadFile(back + "/join-tokens"), support::ReadFile(folder_ + "/join-tokens"));
}

TEST_F(CopyStoreTest, StoreThatACoordinatorHas_IsRefused) {
  std::string address;
  const std::unique_ptr<support::Process> coordinator = Serve(folder_, address);
  const support::Finished open = Run(folder_, {"--copy-store-to", etcd_});
  EXPECT_EQ(open.exit_code, 1);
  EXPECT_THAT(open.talk, HasSubstr("another process has it open"));
  const std::unique_ptr<support::Process> other = Serve(etcd_, address);
  const support::Finished led = Run(etcd_, {"--copy-store-to", work_ + "/back"});
  EXPECT_EQ(led.exit_code, 1);
  EXPECT_THAT(led.talk, HasSubstr(address + " leads"));
}

TEST_F(CopyStoreTest, DamagedStore_IsRefused) {
  EXPECT_TRUE(sqlite::Connection::Open(folder_ + "/journal.db", SQLITE_OPEN_READWRITE)
                  ->Execute("UPDATE journal SET record = substr(record, 1, 20) WHERE job = 3")
                  .ok());
  const support::Finished copy = Run(folder_, {"--copy-store-to", etcd_});
  EXPECT_EQ(copy.exit_code, 1);
  EXPECT_THAT(copy.talk, AllOf(HasSubstr("of job-3"), HasSubstr("nothing was copied")));
}

TEST_F(CopyStoreTest, DamagedJoinTokens_AreRefused_AndNothingIsBegun) {
  support::WriteFile(folder_ + "/join-tokens", "no tokens");
  const support::Finished copy = Run(folder_, {"--copy-store-to", etcd_});
  EXPECT_EQ(copy.exit_code, 1);
  EXPECT_THAT(copy.talk, AllOf(HasSubstr("the join tokens"), HasSubstr("nothing was copied")));
  EXPECT_THAT(Run(etcd_, {"--check-store"}).talk, HasSubstr("there is no store"));
}

TEST_F(CopyStoreTest, StoreOfANewerVersion_IsRefused_AndNotCalledDamaged) {
  EXPECT_TRUE(sqlite::Connection::Open(folder_ + "/journal.db", SQLITE_OPEN_READWRITE)
                  ->Execute("PRAGMA user_version=4")
                  .ok());
  const support::Finished copy = Run(folder_, {"--copy-store-to", etcd_});
  EXPECT_EQ(copy.exit_code, 1);
  EXPECT_THAT(copy.talk, AllOf(HasSubstr("nothing was copied: the database "),
                               HasSubstr("a newer coordinator wrote it, start that one\n"),
                               Not(HasSubstr("damaged"))));
}

TEST_F(CopyStoreTest, FoldersBothTimes_AreUsage) {
  const support::Finished copy = Run(folder_, {"--copy-store-to", work_ + "/other"});
  EXPECT_EQ(copy.exit_code, 2);
  EXPECT_THAT(copy.talk, HasSubstr("between folders the files are copied"));
}

}  // namespace
}  // namespace phalanx::coordinator
