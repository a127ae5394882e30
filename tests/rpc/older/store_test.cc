// The store of a coordinator of the release before, which was killed while a job trained.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/store/sqlite_backend.h"
#include "coordinator/store/token_file.h"
#include "nlohmann/json.hpp"
#include "tests/rpc/fixture.h"
#include "tests/rpc/older/recording.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

// The numbers of its jobs.
constexpr int64_t kTrains = 3, kWaits = 4;

template <typename Message>
Message Recorded(const std::string& name) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(support::ReadFile(older::PathOf(name)),
                                                            &message));
  return message;
}

// By node.
std::map<std::string, std::string> MarksOf(const v1::ListNodesResponse& nodes) {
  std::map<std::string, std::string> marks;
  for (const v1::NodeStatus& node : nodes.nodes()) {
    if (node.has_mark()) marks[node.name()] = node.mark().DebugString();
  }
  return marks;
}

class OlderStoreTest : public RpcTest {
 protected:
  void SetUp() override {
    std::filesystem::copy(older::PathOf("store"), store_);
    const auto then = Recorded<v1::ListJobsResponse>("jobs.txtpb");
    for (const v1::JobStatus& job : then.jobs()) recorded_[job.id()] = job;
  }
  void Open(ServerOptions options = {}) {
    options.driver.journal.retention.age_max = absl::InfiniteDuration();  // recorded long ago
    auto backend = SqliteBackend::Open(store_ + "/journal.db");
    ASSERT_TRUE(backend.ok()) << backend.status();
    identity_ = (*backend)->identity();
    Start(std::move(options), *std::move(backend));
  }
  // A daemon that has stayed, as those of the release before say hello; with the only rank of the
  // job that trains on its node.
  std::unique_ptr<FakeWorker> Rejoin(const std::string& node) {
    v1::WorkerHello hello = FakeWorker::Hello(node, 1, /*incarnation=*/1);
    hello.set_protocol_version(kOldestProtocolVersion);
    hello.set_store(identity_);
    hello.set_last_job(kTrains);
    hello.add_running()->set_job(kTrains);
    hello.mutable_running(0)->set_epoch(1);
    auto worker = std::make_unique<FakeWorker>(channel);
    worker->SayHello(hello);
    EXPECT_TRUE(worker->Read()->has_welcome());
    return worker;
  }

  const std::string store_ = support::MakeFolder("older-store") + "/store";
  std::map<int64_t, v1::JobStatus> recorded_;
  uint64_t identity_ = 0;
};

TEST_F(OlderStoreTest, IsSound) {
  const support::Finished check = support::RunToEnd(
      {support::Program("phalanx-coordinator"), "--store", store_, "--check-store"});
  EXPECT_EQ(check.exit_code, 0) << check.out << check.talk;
}

TEST_F(OlderStoreTest, JobsThatHaveEnded_AreAsTheyWere) {
  Open();
  for (auto& [id, job] : recorded_) {
    if (id == kTrains || id == kWaits) continue;
    v1::JobStatus now = Get(absl::StrCat("job-", id));
    now.clear_document();  // not in lists
    EXPECT_EQ(now.DebugString(), job.DebugString());
  }
  EXPECT_EQ(recorded_.size(), 4u);
}

TEST_F(OlderStoreTest, JobsThatHaveNot_AreWhereTheyWere) {
  Open();
  for (const int64_t id : {kTrains, kWaits}) {
    const v1::JobStatus now = Get(absl::StrCat("job-", id)), &then = recorded_[id];
    EXPECT_EQ(now.phase(), then.phase());
    EXPECT_EQ(now.epoch(), then.epoch());
    EXPECT_EQ(now.plan_digest(), then.plan_digest());
    EXPECT_EQ(now.placement().DebugString(), then.placement().DebugString());
    EXPECT_EQ(now.submitted().DebugString(), then.submitted().DebugString());
    EXPECT_EQ(now.output(), then.output());
    EXPECT_EQ(now.last_checkpoint().DebugString(), then.last_checkpoint().DebugString());
  }
}

TEST_F(OlderStoreTest, MarksOfNodes_AreThere) {
  Open();
  v1::ListNodesResponse nodes;
  grpc::ClientContext context;
  SetDeadline(context);
  ASSERT_TRUE(jobs->ListNodes(&context, {}, &nodes).ok());
  const auto then = MarksOf(Recorded<v1::ListNodesResponse>("nodes.txtpb"));
  EXPECT_EQ(MarksOf(nodes), then);
  EXPECT_EQ(then.size(), 1u);
}

TEST_F(OlderStoreTest, JoinTokens_AreThere) {
  const auto records = TokenFile(store_ + "/join-tokens").Load();
  ASSERT_TRUE(records.ok()) << records.status();
  const nlohmann::json then =
      nlohmann::json::parse(support::ReadFile(older::PathOf("tokens.json"))).at("tokens");
  ASSERT_EQ(records->size(), then.size());
  const v1::JoinRecord& record = records->begin()->second;
  EXPECT_EQ(record.about().id(), then.at(0).at("id").get<std::string>());
  EXPECT_EQ(record.about().node(), then.at(0).at("node").get<std::string>());
  EXPECT_EQ(record.secret_sha256().size(), 32u);
}

TEST_F(OlderStoreTest, JobThatTrained_TrainsOn_WhereItsNodesHaveStayed) {
  Open();
  std::vector<std::unique_ptr<FakeWorker>> workers;
  for (const char* node : {"here", "middle", "there"}) workers.push_back(Rejoin(node));
  v1::Assign epoch;
  epoch.set_job(kTrains);
  epoch.set_epoch(1);
  const int64_t step = recorded_[kTrains].last_step().step() + 1;
  workers[0]->Step(epoch, step);
  const v1::JobStatus job =
      Await("trains", [&](const v1::JobStatus& now) { return now.last_step().step() == step; });
  EXPECT_EQ(job.phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(job.epoch(), 1);
  EXPECT_EQ(job.plan_digest(), recorded_[kTrains].plan_digest());
}

TEST_F(OlderStoreTest, JobThatTrained_WaitsForItsRanks_WhereItsNodesAreGone) {
  ServerOptions options;
  options.sessions.heartbeat_interval = absl::Milliseconds(100);
  options.sessions.heartbeat_timeout = absl::Milliseconds(500);
  Open(std::move(options));
  const v1::JobStatus job = Await(
      "trains", [](const v1::JobStatus& now) { return now.reason() == "waits for ranks 0, 1, 2"; });
  EXPECT_EQ(job.phase(), v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(job.epoch(), 1);
  EXPECT_EQ(job.last_checkpoint().DebugString(),
            recorded_[kTrains].last_checkpoint().DebugString());
}

}  // namespace
}  // namespace phalanx::coordinator
