// What a store on etcd does that no other does: leaders that follow one another, and batches that
// do not fit into one transaction.
#include "coordinator/store/etcd_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "tests/support/tools.h"
#include "tests/unit/coordinator/store/entries.h"
#include "tests/unit/coordinator/store/etcd_disk.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class EtcdBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
    disk_.emplace();
  }
  // Everything of the store that lies in etcd.
  std::vector<std::string> Keys(const std::string& below) const {
    std::vector<std::string> keys;
    EXPECT_TRUE(ForEachEtcdKey(*disk_->NewClient(), disk_->place.prefix + below, 1000, 0,
                               [&keys](const etcdserverpb::KeyValue& pair) {
                                 keys.push_back(pair.key());
                                 return absl::OkStatus();
                               })
                    .ok());
    return keys;
  }
  std::optional<EtcdDisk> disk_;
};

// More operations, and more bytes, than etcd takes at once.
Batch LargeBatch() {
  Batch batch;
  for (uint64_t number = 2; number <= 250; ++number) {
    batch.records.push_back(Of(number, absl::StrCat("record ", number)));
  }
  for (uint64_t number = 251; number <= 255; ++number) {
    batch.records.push_back(Of(number, std::string(700'000, 'x')));
  }
  batch.records.back().supersedes = 1;
  for (int64_t job = 2; job <= 10; ++job) batch.ended.push_back(Ended(job));
  return batch;
}

TEST_F(EtcdBackendTest, LargeBatch_IsCommittedAndLeavesNothingStaged) {
  auto backend = *disk_->Open();
  ASSERT_TRUE(backend->Commit({.records = {Of(1, "one")}}).ok());
  const Batch batch = LargeBatch();
  ASSERT_TRUE(backend->Commit(batch).ok());
  backend.reset();
  backend = *disk_->Open();
  const std::vector<StoredRecord> records = All(*backend);
  ASSERT_THAT(records, SizeIs(batch.records.size()));
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].number, batch.records[i].number);
    EXPECT_EQ(records[i].bytes, batch.records[i].bytes) << i;
  }
  EXPECT_EQ(backend->ended_jobs()->Count().at(job::JobPhase::kSucceeded), 9);
  EXPECT_THAT(*backend->ended_jobs()->List(JobId{100}, 100), SizeIs(9));
  EXPECT_THAT(Keys("staged/"), IsEmpty());
}

// etcd takes requests of 1.5 MiB.
TEST_F(EtcdBackendTest, LargeRecordAndLargeEntry_AreCutIntoParts) {
  std::string large(5'000'000, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i / 1000);
  EndedJob job = Ended(2);
  job.details = large;
  job.summary = large;
  {
    auto backend = *disk_->Open();
    ASSERT_TRUE(backend->Commit({.records = {Of(1, large), Of(2, "b")}, .ended = {job}}).ok());
  }
  auto backend = *disk_->Open();
  EXPECT_EQ(All(*backend).front().bytes, large);
  EXPECT_EQ(*backend->ended_jobs()->Details(JobId{2}), large);
  EXPECT_EQ(backend->ended_jobs()->Find(JobId{2})->summary, large);
  ASSERT_TRUE(backend->Commit({.ended = {Ended(1)}, .deleted = {JobId{2}}}).ok());
  EXPECT_THAT(Keys("journal/"), IsEmpty());
  EXPECT_THAT(Keys("summary/"), IsEmpty());
  EXPECT_THAT(Keys("details/"), SizeIs(1));
}

// At each moment of a batch that takes several transactions the coordinator dies: whoever comes
// next finds all of it or nothing.
TEST_F(EtcdBackendTest, CoordinatorThatDiesAtAnyMomentOfABatch_LeavesAllOfItOrNothing) {
  const Batch batch = LargeBatch();
  int moments = 0, whole = 0;
  for (bool died = true; died; ++moments) {
    disk_.emplace();
    int left = moments;
    died = false;
    bool armed = false;
    const auto client = disk_->NewClient([&]() -> absl::Status {
      if (!armed || left-- > 0) return absl::OkStatus();
      died = true;
      return absl::InternalError("the coordinator died here");
    });
    auto backend = *EtcdBackend::Open(client, disk_->place.prefix, *disk_->Lead(client));
    ASSERT_TRUE(backend->Commit({.records = {Of(1, "one")}}).ok());
    armed = true;
    const absl::Status status = backend->Commit(batch);
    EXPECT_NE(status.ok(), died);
    armed = false;
    backend.reset();

    backend = *disk_->Open();
    const std::vector<StoredRecord> records = All(*backend);
    const bool there = records.size() == batch.records.size();
    EXPECT_TRUE(there || records.size() == 1) << records.size() << " records at " << moments;
    EXPECT_EQ(backend->ended_jobs()->List(JobId{100}, 100)->size(), there ? 9u : 0u);
    EXPECT_EQ(*backend->Reopen(), there ? 255u : 1u);
    EXPECT_EQ(backend->ended_jobs()->Count()[job::JobPhase::kSucceeded], there ? 9 : 0);
    EXPECT_THAT(Keys("staged/"), IsEmpty());
    ASSERT_TRUE(backend->Commit({.records = {Of(256, "next")}}).ok());
    whole += there ? 1 : 0;
  }
  EXPECT_GT(whole, 5);
  EXPECT_GT(moments - whole, 5);
}

// etcd carried it out and the answer was lost: the transaction is not done twice, nor given up.
TEST_F(EtcdBackendTest, AnswerThatIsLost_IsFoundOutByTryingAgain) {
  bool lose = false;
  int calls = 0;
  const auto client = disk_->NewClient([&]() -> absl::Status {
    ++calls;
    if (!lose || calls != 2) return absl::OkStatus();
    return absl::UnavailableError("the connection broke");
  });
  auto backend = *EtcdBackend::Open(client, disk_->place.prefix, *disk_->Lead(client));
  lose = true;
  calls = 0;
  ASSERT_TRUE(backend->Commit({.records = {Of(1, "one")}}).ok());
  EXPECT_EQ(calls, 4);
  ASSERT_TRUE(backend->Commit({.records = {Of(2, "two")}}).ok());
  EXPECT_THAT(All(*backend), SizeIs(2));
}

// etcd may be told by itself to forget what is older than some minutes.
TEST_F(EtcdBackendTest, StoreOfWhichEtcdForgotThePast_IsReadAsItIsNow) {
  auto backend = *disk_->Open();
  ASSERT_TRUE(backend->Commit({.records = {Of(1, "one")}}).ok());
  const auto client = disk_->NewClient();
  etcdserverpb::TxnRequest later;
  later.add_success()->mutable_request_put()->set_key(disk_->place.prefix + "tokens");
  ASSERT_TRUE(client->Compact(client->Write(later)->header().revision()).ok());
  EXPECT_THAT(All(*backend), SizeIs(1));
  EXPECT_TRUE(backend->ForEachRequest([](const StoredRequest&) { return absl::OkStatus(); }).ok());
}

// A process that was stopped past its lease, by its own clock still the leader.
TEST_F(EtcdBackendTest, DeposedLeader_WritesNothing) {
  const std::shared_ptr<Leadership> old_leadership = disk_->LeadBlindly();
  auto deposed = *EtcdBackend::Open(disk_->NewClient(), disk_->place.prefix, old_leadership);
  ASSERT_TRUE(deposed->Commit({.records = {Of(1, "one")}}).ok());
  disk_->Forget();
  EXPECT_TRUE(old_leadership->Held().ok()) << "its clock says that it leads";

  auto leader = *disk_->Open();
  const absl::Status status = deposed->Commit({.records = {Of(2, "of the deposed")}});
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1 leads"));
  EXPECT_EQ(old_leadership->Held().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(deposed->Reopen().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(deposed->Prune({}, absl::Now()).status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(leader->Commit({.records = {Of(2, "two")}}).ok());
  EXPECT_EQ(All(*leader).back().bytes, "two");
}

// The lease is gone and nobody else has come yet.
TEST_F(EtcdBackendTest, LeaderWithoutALease_WritesNothing) {
  auto deposed = *EtcdBackend::Open(disk_->NewClient(), disk_->place.prefix, disk_->LeadBlindly());
  disk_->Forget();
  EXPECT_EQ(deposed->Commit({.records = {Of(1, "one")}}).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(All(**disk_->Open()), IsEmpty());
}

// The state was read, and then a transaction that had been given up was carried out after all.
TEST_F(EtcdBackendTest, LateTransaction_IsRefusedOnceTheStoreWasReopened) {
  const auto client = disk_->NewClient();
  const auto leadership = *disk_->Lead(client);
  auto late = *EtcdBackend::Open(client, disk_->place.prefix, leadership);
  auto reopened = *EtcdBackend::Open(client, disk_->place.prefix, leadership);
  EXPECT_EQ(late->Commit({.records = {Of(1, "late")}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(All(*reopened), IsEmpty());
  ASSERT_TRUE(reopened->Commit({.records = {Of(1, "one")}}).ok());
}

TEST_F(EtcdBackendTest, SecondCoordinator_StandsByAndLearnsWhoLeads) {
  const auto leader = *disk_->Open();
  Election second(disk_->NewClient(), disk_->place.prefix, "127.0.0.1:2");
  EXPECT_EQ(*second.Try(), nullptr);
  EXPECT_EQ(second.leader(), "127.0.0.1:1");
}

TEST_F(EtcdBackendTest, LeaderThatEndsInGoodOrder_IsFollowedAtOnce) {
  Election second(disk_->NewClient(), disk_->place.prefix, "127.0.0.1:2");
  { const auto leader = *disk_->Open(); }
  EXPECT_NE(*second.Try(), nullptr);
}

TEST_F(EtcdBackendTest, LeaseThatIsNotRenewedInTime_EndsByOurOwnClock) {
  Leadership leadership(disk_->NewClient(), disk_->place.prefix + "leader", 1,
                        {.id = 1, .length = absl::Hours(1), .valid_until = SteadyNow()});
  EXPECT_EQ(leadership.Held().code(), absl::StatusCode::kAborted);
}

TEST_F(EtcdBackendTest, IdentityAndCounts_AreThoseOfTheStore) {
  auto backend = *disk_->Open();
  const uint64_t identity = backend->identity();
  EXPECT_NE(identity, 0u);
  ASSERT_TRUE(backend->Commit({.ended = {Ended(1), Ended(2)}}).ok());
  ASSERT_TRUE(backend->Commit({.ended = {Ended(2)}}).ok()) << "committed again after a failure";
  backend.reset();
  backend = *disk_->Open();
  EXPECT_EQ(backend->identity(), identity);
  EXPECT_EQ(backend->ended_jobs()->Count().at(job::JobPhase::kSucceeded), 2);
  disk_.emplace();
  EXPECT_NE((*disk_->Open())->identity(), identity);
}

TEST_F(EtcdBackendTest, ExpiredRequestIds_ArePruned) {
  auto backend = *disk_->Open();
  for (int64_t job = 1; job <= 3; ++job) {
    EndedJob ended = Ended(job);
    ended.request =
        StoredRequest{absl::StrCat("r", job), JobId{job}, "digest", kNow + absl::Hours(job)};
    ASSERT_TRUE(backend->Commit({.ended = {ended}}).ok());
  }
  EXPECT_FALSE(*backend->Prune({}, kNow + absl::Hours(2)));
  EXPECT_THAT(Keys("request/"), SizeIs(1));
  backend.reset();
  backend = *disk_->Open();
  EXPECT_EQ(backend->ended_jobs()->Request("r3", kNow)->job, JobId{3});
  EXPECT_FALSE(backend->ended_jobs()->Request("r2", kNow).ok());
}

TEST_F(EtcdBackendTest, StoreOfANewerVersion_IsRefused) {
  auto backend = *disk_->Open();
  v1::EtcdState state;
  state.set_schema(2);
  state.set_identity(1);
  etcdserverpb::TxnRequest request;
  request.add_success()->mutable_request_put()->set_key(disk_->place.prefix + "state");
  request.mutable_success(0)->mutable_request_put()->set_value(state.SerializeAsString());
  ASSERT_TRUE(disk_->NewClient()->Write(request).ok());
  backend.reset();
  EXPECT_EQ(disk_->Open().status().code(), absl::StatusCode::kFailedPrecondition);
}

// etcd grants leases anew when it has elected: whoever waited for this one would wait seconds.
TEST(EtcdElectionTest, LeadershipThatCouldNotBeGivenBack_IsGivenBackByTheNextTry) {
  PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
  support::EtcdServer etcd;
  const EtcdPlace place = *ParseEtcdPlace(etcd.NewPlace());
  const auto client = std::make_shared<EtcdClient>(EtcdOptions{.members = place.members});
  Election election(client, place.prefix, "127.0.0.1:1");
  std::shared_ptr<Leadership> leadership = *election.Try();
  ASSERT_NE(leadership, nullptr);
  EXPECT_EQ(*election.Try(), nullptr) << "it leads, and nothing is taken from it";
  etcd.Kill();
  leadership.reset();
  etcd.Start();
  EXPECT_NE(*election.Try(), nullptr);
  EXPECT_EQ(election.leader(), "127.0.0.1:1");
}

TEST(EtcdTlsTest, Etcd_TakesOurCertificateAndNoPlaintext) {
  PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
  const support::Authority authority;
  support::EtcdServer etcd(
      {.server = authority.Coordinator(), .client = authority.User("phalanx", "operator")});
  const EtcdPlace place = *ParseEtcdPlace(etcd.NewPlace());
  const auto client = std::make_shared<EtcdClient>(
      EtcdOptions{.members = place.members, .tls = authority.User("phalanx", "operator")});
  auto backend = *EtcdBackend::Open(client, place.prefix,
                                    *Election(client, place.prefix, "127.0.0.1:1").Try());
  EXPECT_TRUE(backend->Commit({.records = {Of(1, "one")}}).ok());
  EtcdClient plain({.members = place.members, .read_time = absl::Milliseconds(100)});
  EXPECT_EQ(plain.Range({}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(EtcdTlsTest, FilesInPlaceOfOthers_AreUsedWithoutARestart) {
  PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
  const support::Authority authority, foreign;
  const transport::TlsFiles sound = authority.User("phalanx", "operator");
  support::EtcdServer etcd({.server = authority.Coordinator(), .client = sound});
  const EtcdPlace place = *ParseEtcdPlace(etcd.NewPlace());
  const auto becomes_well = [&](const transport::TlsFiles& files,
                                const std::vector<std::pair<std::string, std::string>>& replaced) {
    EtcdClient client(
        {.members = place.members, .tls = files, .read_time = absl::Milliseconds(500)});
    EXPECT_EQ(client.Range({}).status().code(), absl::StatusCode::kUnavailable);
    for (const auto& [file, by] : replaced) support::ReplaceFile(file, support::ReadFile(by));
    etcdserverpb::RangeRequest any;
    any.set_key("any");
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    bool well = false;
    while (!well && absl::Now() < deadline) well = client.Range(any).ok();
    return well;
  };
  transport::TlsFiles files = sound;
  files.ca = support::MakeFolder("etcd-authorities") + "/ca.pem";
  foreign.Coordinator();
  support::ReplaceFile(files.ca, support::ReadFile(foreign.folder() + "/ca.pem"));
  EXPECT_TRUE(becomes_well(files, {{files.ca, sound.ca}})) << "an authority";
  files = foreign.User("phalanx", "operator");
  files.ca = sound.ca;
  EXPECT_TRUE(becomes_well(files, {{files.key, sound.key}, {files.certificate, sound.certificate}}))
      << "a certificate";
}

TEST(EtcdPlaceTest, Members_StandBetweenCommas) {
  const auto place = ParseEtcdPlace("etcd://10.0.0.1:2379,[::1]:2379/phalanx/lab");
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(place->members, ::testing::ElementsAre("10.0.0.1:2379", "[::1]:2379"));
  EXPECT_EQ(place->prefix, "/phalanx/lab/");
}

TEST(EtcdPlaceTest, OtherForms_AreRefused) {
  for (const char* store : {"etcd://", "etcd://a:1", "etcd://a:1/", "etcd:///p", "etcd://a/p",
                            "etcd://a:1,a:1/p", "etcd://a:1/p//q", "etcd://a:1/p q"}) {
    EXPECT_EQ(ParseEtcdPlace(store).status().code(), absl::StatusCode::kInvalidArgument) << store;
  }
}

}  // namespace
}  // namespace phalanx::coordinator
