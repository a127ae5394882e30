// A store that is copied from SQLite to etcd and back, and copies that are cut.
#include "coordinator/store/store_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/store/archive.h"
#include "coordinator/store/etcd_ended_jobs.h"
#include "coordinator/store/etcd_tokens.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/store/token_file.h"
#include "tests/support/files.h"
#include "tests/support/tools.h"
#include "tests/unit/coordinator/store/entries.h"
#include "tests/unit/coordinator/store/etcd_disk.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;

class StoreCopyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
    disk_.emplace();
    store_ = *SqliteBackend::Open(folder_ + "/journal.db");
    ASSERT_TRUE(store_->Commit({.records = SomeRecords(std::string(600'000, 'x'))}).ok());
    Batch batch{.ended = {**MakeEndedJob(JobId{2}, *store_->RecordsOf(JobId{2}))}};
    // Entries beyond one page, and one with a summary that lies apart on etcd.
    for (int64_t job = 10; job < 300; ++job) batch.ended.push_back(Ended(job));
    batch.ended.back().summary = std::string(100'000, 's');
    ASSERT_TRUE(store_->Commit(batch).ok());
    ASSERT_TRUE(store_->Commit({.deleted = {JobId{12}}}).ok());
    v1::JoinRecord token;
    token.mutable_about()->set_id("0123456789abcdef");
    ASSERT_TRUE(tokens_.Write(token, {}).ok());
  }

  // To etcd, by a process that dies before transaction `moments`; whether it did.
  bool CutCopy(int moments) {
    bool died = false;
    int left = moments * 2;  // each is asked for before it and behind it
    const auto client = disk_->NewClient([&]() -> absl::Status {
      died = died || left-- == 0;
      return died ? absl::InternalError("the process died here") : absl::OkStatus();
    });
    const std::shared_ptr<Leadership> leadership = disk_->LeadBlindly();
    auto to = EtcdBackend::BeginCopy(client, disk_->place.prefix, leadership, store_->identity());
    if (!to.ok()) return true;
    EtcdTokens tokens(client, disk_->place.prefix, leadership);
    const auto report = CopyStore({*store_, tokens_}, {**to, tokens});
    const bool ended = report.ok() && (*to)->EndCopy(report->marks).ok();
    EXPECT_NE(ended, died) << report.status();
    return died;
  }
  void CopyToEtcd() { ASSERT_FALSE(CutCopy(1'000'000)); }
  std::shared_ptr<EtcdClient> Client() const { return disk_->NewClient(); }

  const std::string folder_ = support::MakeFolder("copied");
  std::unique_ptr<SqliteBackend> store_;
  TokenFile tokens_{folder_ + "/join-tokens"};
  std::optional<EtcdDisk> disk_;
};

TEST_F(StoreCopyTest, CopyOnEtcd_IsTheSameStore) {
  CopyToEtcd();
  auto copy = *disk_->Open();
  EXPECT_EQ(copy->identity(), store_->identity());
  const std::vector<StoredRecord> records = All(*copy), before = All(*store_);
  ASSERT_EQ(records.size(), before.size());
  for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].bytes, before[i].bytes);
  EXPECT_EQ(copy->ended_jobs()->Count(), store_->ended_jobs()->Count());
  EXPECT_EQ(*copy->ended_jobs()->Details(JobId{2}), *store_->ended_jobs()->Details(JobId{2}));
  EXPECT_EQ(copy->ended_jobs()->Find(JobId{299})->summary, std::string(100'000, 's'));
  EXPECT_EQ(copy->ended_jobs()->Request("request 2", kNow)->job, JobId{2});
  const auto none = [](const StoredRecord&) { return absl::OkStatus(); };
  EXPECT_EQ(copy->Load(none)->last_record, store_->Load(none)->last_record);
  EXPECT_EQ(copy->Load(none)->last_job, store_->Load(none)->last_job);
  EXPECT_TRUE(copy->Commit({.records = {Of(1000, "next", 400)}}).ok());
}

TEST_F(StoreCopyTest, CopyBackToSqlite_IsTheSameStore) {
  CopyToEtcd();
  const auto client = Client();
  const std::shared_ptr<Leadership> leadership = *disk_->Lead(client);
  auto from = *EtcdBackend::Open(client, disk_->place.prefix, leadership);
  EtcdTokens from_tokens(client, disk_->place.prefix, leadership);
  const std::string back = support::MakeFolder("back");
  auto to = *SqliteBackend::Open(back + "/journal.db");
  ASSERT_TRUE(to->BeginCopy(from->identity()).ok());
  TokenFile to_tokens(back + "/join-tokens");
  const auto report = CopyStore({*from, from_tokens}, {*to, to_tokens});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_TRUE(to->EndCopy(report->marks).ok());
  EXPECT_EQ(report->tokens, 1);
  EXPECT_EQ(report->requests, 1);
  EXPECT_EQ(to->identity(), store_->identity());
  EXPECT_EQ(to->ended_jobs()->Count(), store_->ended_jobs()->Count());
  EXPECT_EQ(All(*to).front().bytes, All(*store_).front().bytes);
  EXPECT_EQ(to->Commit({.records = {Of(3, "given before", 400)}}).code(),
            absl::StatusCode::kInvalidArgument);
}

// At each of its first transactions: nobody takes what is there for a store, and it is made anew.
TEST_F(StoreCopyTest, CopyThatIsCut_IsNoStore_AndIsMadeAgain) {
  for (int moments = 1; moments < 12; ++moments) {
    ASSERT_TRUE(CutCopy(moments));
    const absl::Status status = disk_->Open().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << moments;
    EXPECT_THAT(status.message(), HasSubstr("a copy of a store is not finished"));
  }
  CopyToEtcd();
  EXPECT_EQ((*disk_->Open())->ended_jobs()->Count(), store_->ended_jobs()->Count());
}

// etcd takes its time for each key that goes.
TEST_F(StoreCopyTest, LargeCopyThatWasCut_IsRemovedPageByPage) {
  ASSERT_TRUE(CutCopy(1));
  const std::string requests = disk_->place.prefix + "request/";
  const auto client = Client();
  for (int i = 0; i < 25; ++i) {
    etcdserverpb::TxnRequest request;
    for (int j = 0; j < 100; ++j) {
      request.add_success()->mutable_request_put()->set_key(absl::StrCat(requests, i, "-", j));
    }
    ASSERT_TRUE(client->Write(request).ok());
  }
  int calls = 0;
  const auto counted = disk_->NewClient([&calls]() -> absl::Status {
    ++calls;
    return absl::OkStatus();
  });
  const std::shared_ptr<Leadership> leadership = disk_->LeadBlindly();
  ASSERT_TRUE(
      EtcdBackend::BeginCopy(counted, disk_->place.prefix, leadership, store_->identity()).ok());
  // Two for each transaction: one that begins, and three of 1,000 keys at most.
  EXPECT_EQ(calls, 2 * (1 + 3));
  EXPECT_TRUE(EtcdPage(*client, requests, EtcdKeys::Behind(requests), 1)->kvs().empty());
}

TEST_F(StoreCopyTest, PlaceThatIsNotEmpty_IsRefused) {
  {
    auto there = *disk_->Open();
    ASSERT_TRUE(there->Commit({.records = {Of(1, "one")}}).ok());
  }
  const auto client = Client();
  const std::shared_ptr<Leadership> leadership = *disk_->Lead(client);
  const absl::Status status =
      EtcdBackend::BeginCopy(client, disk_->place.prefix, leadership, store_->identity()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("there is a store already"));
}

TEST_F(StoreCopyTest, PartOfACopyOfAnotherStore_IsRefused) {
  ASSERT_TRUE(CutCopy(4));
  const auto client = Client();
  const std::shared_ptr<Leadership> leadership = *disk_->Lead(client);
  const absl::Status status =
      EtcdBackend::BeginCopy(client, disk_->place.prefix, leadership, store_->identity() + 1)
          .status();
  EXPECT_THAT(status.message(), HasSubstr("a part of a copy of another store"));
}

TEST_F(StoreCopyTest, KeysOfSomethingElse_AreRefused) {
  const auto client = Client();
  etcdserverpb::TxnRequest request;
  request.add_success()->mutable_request_put()->set_key(disk_->place.prefix + "anything");
  ASSERT_TRUE(client->Write(request).ok());
  const std::shared_ptr<Leadership> leadership = *disk_->Lead(client);
  const absl::Status status =
      EtcdBackend::BeginCopy(client, disk_->place.prefix, leadership, store_->identity()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("anything"));
}

}  // namespace
}  // namespace phalanx::coordinator
