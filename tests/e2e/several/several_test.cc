// Two coordinators over one etcd: one leads, and dies, or is stopped past its lease, under load.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/e2e/jobs/submitter.h"
#include "tests/rpc/plain_http.h"
#include "tests/support/etcd.h"
#include "tests/support/process.h"
#include "tests/support/tools.h"

namespace phalanx::e2e {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kFoundWithin = absl::Seconds(5);

// What the port for HTTP of a coordinator that has told of it answers.
std::string PageOf(Cluster& cluster, size_t index, const std::string& path) {
  const std::string log = cluster.CoordinatorLog(index);
  const std::string key = "\"http\":\"127.0.0.1:";
  const size_t at = log.rfind(key);
  if (at == std::string::npos) return "no port in: " + log;
  return coordinator::Get(std::stoi(log.substr(at + key.size())), path);
}

class SeveralTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
    cluster_ =
        std::make_unique<Cluster>(ClusterOptions{.devices = 2,
                                                 .coordinator_flags = {"--jobs-max", "1000000"},
                                                 .store = support::SharedEtcd().NewPlace(),
                                                 .coordinators = 2});
    leader_ = cluster_->AwaitLeader();
  }
  size_t other() const { return 1 - leader_; }

  // A job that trains, and the processes of its ranks.
  int64_t StartJob(int64_t steps) {
    const int64_t job = cluster_->Submit(Document(data_, {.steps = steps})).id();
    cluster_->AwaitStep(job, 5);
    ranks_ = cluster_->Ranks(job);
    EXPECT_EQ(ranks_.size(), 2u);
    return job;
  }
  // Waits until the other one leads and has the worker; how long that took.
  absl::Duration AwaitOther(absl::Time since) {
    const absl::Time deadline = since + support::kPatience;
    while (absl::Now() < deadline) {
      const bool leads = cluster_->AwaitLeader() == other();
      const std::vector<v1::NodeStatus> nodes = cluster_->Nodes();
      if (leads && nodes.size() == 1 && nodes[0].state() == v1::NodeStatus::STATE_READY) break;
      cluster_->worker().watch().AwaitEnd(absl::Milliseconds(20));
    }
    return absl::Now() - since;
  }
  std::string Page(size_t index, const std::string& path) { return PageOf(*cluster_, index, path); }
  void ExpectRanksLive() {
    for (const auto& [rank, watch] : ranks_) EXPECT_FALSE(watch.HasEnded()) << "rank " << rank;
  }
  void ExpectSuccess(int64_t job, int64_t steps) {
    const v1::JobStatus ended = cluster_->AwaitEnd(job);
    EXPECT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
    EXPECT_EQ(ended.epoch(), 1);
    EXPECT_EQ(ended.last_step().step(), steps);
    EXPECT_EQ(StepsFault(ReadMetrics(data_.path + "/out"), steps), "");
  }

  const DataFolder data_ = MakeData();
  std::unique_ptr<Cluster> cluster_;
  size_t leader_ = 0;
  std::map<int32_t, support::ProcessWatch> ranks_;
};

TEST_F(SeveralTest, LeaderKilledUnderLoad_IsFollowedWithin5Seconds_AndNothingIsLost) {
  constexpr int64_t kSteps = 2000;
  const int64_t job = StartJob(kSteps);
  std::vector<std::unique_ptr<Submitter>> submitters;
  for (int32_t i = 0; i < 2; ++i) {
    submitters.push_back(std::make_unique<Submitter>(
        cluster_->grpc(), data_,
        SubmitterOptions{.number = i, .changes = true, .node = i == 0 ? "here" : ""}));
  }
  cluster_->AwaitStep(job, 60);
  const absl::Time killed = absl::Now();
  cluster_->KillCoordinator(leader_);
  // A person asks meanwhile, and is answered by whoever leads then.
  const support::Finished list = cluster_->Phalanx({"get", absl::StrCat(job), "-o", "name"});
  EXPECT_EQ(list.exit_code, 0) << list.talk;
  EXPECT_LT(absl::Now() - killed, kFoundWithin);
  EXPECT_LT(AwaitOther(killed), kFoundWithin) << cluster_->CoordinatorLog(other());
  ExpectRanksLive();
  const int64_t step = cluster_->Get(job).last_step().step();
  cluster_->AwaitStep(job, step + 20);
  ExpectRanksLive();

  Acknowledged acknowledged;
  for (const auto& submitter : submitters) acknowledged.Add(submitter->Finish());
  EXPECT_GT(acknowledged.submits.size(), 20u);
  EXPECT_GT(acknowledged.cancels.size(), 3u);
  EXPECT_GT(acknowledged.suspends.size(), 3u);
  EXPECT_GT(acknowledged.resumes.size(), 0u);
  EXPECT_GT(acknowledged.deletes.size(), 0u);
  EXPECT_GT(acknowledged.marks, 1);
  EXPECT_GT(acknowledged.reserves, 0);
  const Kept kept = LookFor(acknowledged, *cluster_);
  EXPECT_EQ(kept.missing, 0) << "of " << acknowledged.submits.size();
  EXPECT_EQ(kept.doubled, 0);
  EXPECT_EQ(kept.cancels_missing, 0) << "of " << acknowledged.cancels.size();
  EXPECT_EQ(kept.suspends_missing, 0) << "of " << acknowledged.suspends.size();
  EXPECT_EQ(kept.resumes_missing, 0) << "of " << acknowledged.resumes.size();
  EXPECT_EQ(kept.deletes_missing, 0) << "of " << acknowledged.deletes.size();
  EXPECT_EQ(kept.marks_missing, 0) << "of " << acknowledged.marks;
  EXPECT_EQ(kept.reserves_missing, 0) << "of " << acknowledged.reserves;
  EXPECT_EQ(kept.refused, 0);
  ExpectSuccess(job, kSteps);
}

// Whoever is stopped has the kernel take calls for it, and answers them when it goes on.
TEST_F(SeveralTest, LeaderStoppedPastItsLease_IsFollowed_AndWritesNothingAfterwards) {
  constexpr int64_t kSteps = 6000;  // of some milliseconds: it trains until the other leads
  const int64_t job = StartJob(kSteps);
  const auto stub = v1::JobService::NewStub(
      grpc::CreateChannel(cluster_->grpc(leader_), grpc::InsecureChannelCredentials()));
  v1::ListNodesResponse nodes;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub->ListNodes(&context, {}, &nodes).ok()) << "connected";
  }
  const absl::Time stopped = absl::Now();
  cluster_->coordinator(leader_).Signal(SIGSTOP);
  auto late = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + support::kPatience));
    v1::SubmitJobRequest request;
    *request.mutable_document() = Document(data_, {.name = "late", .language = "ranks: 4, tp: 4"});
    v1::SubmitJobResponse response;
    return stub->SubmitJob(&context, request, &response);
  });
  AwaitOther(stopped);
  cluster_->Submit(Document(data_, {.name = "of-the-new", .language = "ranks: 4, tp: 4"}));
  cluster_->coordinator(leader_).Signal(SIGCONT);
  const grpc::Status status = late.get();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  support::AwaitText(cluster_->CoordinatorLogPath(leader_), "serving no more",
                     cluster_->coordinator(leader_));
  support::AwaitText(cluster_->CoordinatorLogPath(leader_),
                     absl::StrCat(cluster_->grpc(other()), " leads"),
                     cluster_->coordinator(leader_));
  for (const v1::JobStatus& stored : cluster_->List()) EXPECT_NE(stored.name(), "late");
  ExpectRanksLive();

  // It is as good as any other from here on.
  const absl::Time killed = absl::Now();
  cluster_->KillCoordinator(other());
  leader_ = other();
  EXPECT_LT(AwaitOther(killed), kFoundWithin) << cluster_->CoordinatorLog(other());
  EXPECT_EQ(cluster_->List().size(), 2u);
  ExpectRanksLive();
  ExpectSuccess(job, kSteps);
}

TEST_F(SeveralTest, CoordinatorThatStandsBy_IsLiveAndNotReady) {
  EXPECT_THAT(Page(leader_, "/livez?verbose"), HasSubstr("[+]driver ok\nlivez check passed\n"));
  EXPECT_THAT(Page(leader_, "/readyz?verbose"),
              HasSubstr("[+]serving ok\n[+]store ok\n[+]driver ok\nreadyz check passed\n"));
  EXPECT_THAT(Page(other(), "/livez?verbose"), HasSubstr("[+]election ok\nlivez check passed\n"));
  EXPECT_THAT(Page(other(), "/readyz?verbose"),
              HasSubstr("[-]leader failed: this coordinator stands by\nreadyz check failed\n"));
  // Of who waits for both, so that a leader whose store fails is not ready and who stands by is.
  EXPECT_THAT(Page(other(), "/readyz?standby=ready&verbose"),
              HasSubstr("[+]election ok\n[+]leader ok\nreadyz check passed\n"));
  EXPECT_THAT(Page(leader_, "/readyz?standby=ready&verbose"),
              HasSubstr("[+]serving ok\n[+]store ok\n[+]driver ok\nreadyz check passed\n"));
}

TEST_F(SeveralTest, LeaderThatEndsInGoodOrder_IsFollowedAtOnce_AndStandbyNamesTheLeader) {
  const auto stub = v1::JobService::NewStub(
      grpc::CreateChannel(cluster_->grpc(other()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::ListNodesResponse nodes;
  const grpc::Status status = stub->ListNodes(&context, {}, &nodes);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr(cluster_->grpc(leader_) + " leads"));
  const int64_t job =
      cluster_->Submit(Document(data_, {.name = "stays", .language = "ranks: 4, tp: 4"})).id();
  const absl::Time asked = absl::Now();
  cluster_->coordinator(leader_).Signal(SIGTERM);
  EXPECT_LT(AwaitOther(asked), absl::Seconds(3))
      << cluster_->CoordinatorLog(leader_) << cluster_->CoordinatorLog(other())
      << cluster_->WorkerLog();
  // A plan under way may take longer.
  EXPECT_EQ(cluster_->coordinator(leader_).WaitExitCode(), 0);
  EXPECT_EQ(cluster_->Get(job).name(), "stays");
}

// Jobs train on while etcd is away, and nothing is accepted.
TEST(EtcdAwayTest, LeaderWithoutEtcd_StopsServing_AndNoRankNotices) {
  PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
  const DataFolder data = MakeData();
  support::EtcdServer etcd;
  Cluster cluster({.devices = 2, .store = etcd.NewPlace(), .coordinators = 2});
  const int64_t job = cluster.Submit(Document(data, {.steps = 2000})).id();
  cluster.AwaitStep(job, 5);
  const size_t leader = cluster.AwaitLeader();
  const auto ranks = cluster.Ranks(job);
  etcd.Kill();
  support::AwaitText(cluster.CoordinatorLogPath(leader), "serving no more",
                     cluster.coordinator(leader));
  support::AwaitText(cluster.CoordinatorLogPath(leader), "nobody knows who leads",
                     cluster.coordinator(leader));
  // Who cannot ask is as good as nobody, also to probes that let pass who stands by.
  EXPECT_THAT(
      PageOf(cluster, leader, "/readyz?standby=ready&verbose"),
      HasSubstr("[+]election ok\n[-]leader failed: nobody knows who leads\nreadyz check failed"));
  EXPECT_THAT(PageOf(cluster, leader, "/livez"), HasSubstr("200 OK"));
  etcd.Start();
  cluster.AwaitLeader();
  for (const auto& [rank, watch] : ranks) EXPECT_FALSE(watch.HasEnded()) << "rank " << rank;
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  EXPECT_EQ(ended.epoch(), 1);
}

}  // namespace
}  // namespace phalanx::e2e
