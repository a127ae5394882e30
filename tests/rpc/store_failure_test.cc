// A store that fails: nothing is accepted, reads go on, sessions stay; and work resumes when the
// store does.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/store/sqlite_backend.h"
#include "core/base/mutex.h"
#include "core/posix/waker.h"
#include "tests/rpc/fixture.h"
#include "tests/rpc/health_check.h"
#include "tests/support/files.h"
#include "tests/support/full_disk.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;

// Asks until that is what it says of `service`; what it said last.
std::string AwaitHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                        absl::string_view wanted) {
  std::string said = HealthOf(channel, service);
  for (const SteadyTime start = SteadyNow(); said != wanted && Since(start) < absl::Seconds(20);)
    said = HealthOf(channel, service);
  return said;
}

// A store on `disk` that does not answer what is to be stored while it is held.
class HeldBackend final : public Backend {
 public:
  explicit HeldBackend(std::shared_ptr<MemoryDisk> disk) : memory_(std::move(disk)) {}
  void Hold(bool held) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    held_ = held;
    changed_.SignalAll();
  }

  absl::StatusOr<StoreMarks> Load(absl::FunctionRef<absl::Status(StoredRecord)> visit) override {
    return memory_.Load(visit);
  }
  absl::StatusOr<std::vector<StoredRecord>> RecordsOf(JobId job) override {
    return memory_.RecordsOf(job);
  }
  absl::Status Commit(const Batch& batch) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(&mu_);
      while (held_ && !batch.empty()) changed_.Wait(&mu_);
    }
    return memory_.Commit(batch);
  }
  absl::StatusOr<uint64_t> Reopen() override { return memory_.Reopen(); }
  absl::StatusOr<bool> Prune(const Retention& retention, Instant now) override {
    return memory_.Prune(retention, now);
  }
  std::shared_ptr<EndedJobs> ended_jobs() override { return memory_.ended_jobs(); }
  uint64_t identity() const override { return memory_.identity(); }

 private:
  MemoryBackend memory_;
  Mutex mu_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
};

TEST_F(RpcTest, StoreThatFails_IsNotServing_UntilItWorksAgain) {
  int number = 0;
  for (const char* service : {"", "phalanx.v1.JobService", "phalanx.v1.WorkerService"}) {
    SCOPED_TRACE(service);
    EXPECT_EQ(AwaitHealth(channel, service, kServes), kServes);
    disk->FailCommits(absl::ResourceExhaustedError("disk full"));
    v1::SubmitJobResponse response;
    // Each may have become a job by the time that it works again.
    const std::string job = absl::StrCat("n", ++number);
    EXPECT_EQ(Submit(JobText(job), response).error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(AwaitHealth(channel, service, kServesNot), kServesNot);
    EXPECT_THAT(server_->MetricsText(), HasSubstr("\nphalanx_serving 0\n"));
    disk->FailCommits(absl::OkStatus());
    EXPECT_EQ(AwaitHealth(channel, service, kServes), kServes);
    EXPECT_THAT(server_->MetricsText(), HasSubstr("\nphalanx_serving 1\n"));
  }
}

// Nobody tells of it: neither the store, which does not answer, nor whoever submits, who waits.
TEST_F(RpcTest, StoreThatDoesNotAnswer_IsNotServing_UntilItDoes) {
  auto store = std::make_unique<HeldBackend>(disk);
  HeldBackend& held = *store;
  ServerOptions options;
  options.driver.commit_time_max = absl::Milliseconds(500);
  server_.reset();
  Start(std::move(options), std::move(store));
  EXPECT_EQ(AwaitHealth(channel, "", kServes), kServes);
  held.Hold(true);
  std::jthread submits([this] { MustSubmit(JobText("a")); });
  EXPECT_EQ(AwaitHealth(channel, "", kServesNot), kServesNot);
  held.Hold(false);
  EXPECT_EQ(AwaitHealth(channel, "", kServes), kServes);
}

TEST_F(RpcTest, StoreThatFails_RefusesTheSubmitAndIsNotReady) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  disk->FailCommits(absl::ResourceExhaustedError("disk full"));
  v1::SubmitJobResponse response;
  const grpc::Status status = Submit(JobText("a"), response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("disk full"));
  EXPECT_THAT(server_->ready().message(), HasSubstr("disk full"));
  EXPECT_EQ(Submit(JobText("b"), response).error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::ListNodesResponse nodes;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_TRUE(jobs->ListNodes(&context, {}, &nodes).ok());
  EXPECT_EQ(nodes.nodes(0).state(), v1::NodeStatus::STATE_READY);
}

TEST_F(RpcTest, RunningJob_LivesThroughAFailureOfTheStore) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  WaitFor("a", v1::JOB_PHASE_RUNNING);
  disk->FailCommits(absl::UnavailableError("fsync: input/output error"));
  worker.Step(assign, 1);  // is to be stored, and fails
  ASSERT_TRUE(disk->AwaitFailedCommits(1, absl::Seconds(20)));
  for (int step = 2; step < 10; ++step) worker.Step(assign, step);
  worker.Succeed(assign, 0);
  EXPECT_EQ(Get("a").phase(), v1::JOB_PHASE_RUNNING) << "nothing is told that is not stored";
  disk->FailCommits(absl::OkStatus());
  WaitFor("a", v1::JOB_PHASE_SUCCEEDED);
  EXPECT_TRUE(server_->ready().ok()) << server_->ready();
  MustSubmit(JobText("b"));
}

TEST(ServerTest, DiskThatIsFullForAWhile_LosesNothingThatWasAcknowledged) {
  const std::string folder = support::MakeFolder("full");
  const auto open = [&folder] { return *SqliteBackend::Open(folder + "/journal.db"); };
  std::set<std::string> acknowledged;
  {
    auto server = *Server::Start({}, open());
    const auto stub = v1::JobService::NewStub(grpc::CreateChannel(
        absl::StrCat("127.0.0.1:", server->port()), grpc::InsecureChannelCredentials()));
    const auto submit = [&](int i) {
      v1::SubmitJobRequest request;
      request.mutable_document()->set_text(JobText(absl::StrCat("n", i)) + "#" +
                                           std::string(100'000, 'x'));
      request.mutable_document()->set_directory("/tmp");
      request.set_request_id(absl::StrCat("request-", i));
      v1::SubmitJobResponse response;
      grpc::ClientContext context;
      SetDeadline(context);
      const grpc::Status status = stub->SubmitJob(&context, request, &response);
      if (status.ok()) acknowledged.insert(absl::StrCat("n", i));
      return status;
    };
    int i = 0;
    {
      const support::FullDisk limit(2'000'000);
      grpc::Status status;
      while (i < 100 && status.ok()) status = submit(i++);
      ASSERT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << i << " submits";
      EXPECT_THAT(status.error_message(), HasSubstr("the store fails"));
      EXPECT_FALSE(server->ready().ok());
    }
    // Asked again, as clients do.
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    grpc::Status again;
    while (!(again = submit(i - 1)).ok() && absl::Now() < give_up) {
      ASSERT_EQ(again.error_code(), grpc::StatusCode::UNAVAILABLE) << again.error_message();
    }
    EXPECT_TRUE(again.ok()) << again.error_message();
    EXPECT_TRUE(server->ready().ok()) << server->ready();
    for (int more = 0; more < 3; ++more) EXPECT_TRUE(submit(i++).ok());
  }
  auto server = *Server::Start({}, open());
  const auto stub = v1::JobService::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", server->port()), grpc::InsecureChannelCredentials()));
  for (const std::string& name : acknowledged) {
    v1::GetJobRequest request;
    request.set_job(name);
    v1::GetJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    EXPECT_TRUE(stub->GetJob(&context, request, &response).ok()) << name;
  }
}

TEST_F(RpcTest, JobThatHasEnded_IsExplainedWhileTheStoreFails) {
  MustSubmit(JobText("a"));
  v1::CancelJobRequest cancel;
  cancel.set_job("a");
  const auto cancel_again = [&] {
    v1::CancelJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status status = jobs->CancelJob(&context, cancel, &response);
    EXPECT_EQ(response.job().phase(), v1::JOB_PHASE_CANCELLED) << status.error_message();
    EXPECT_EQ(response.job().document().text(), JobText("a"));
  };
  cancel_again();
  disk->FailCommits(absl::ResourceExhaustedError("disk full"));
  v1::SubmitJobResponse refused;
  EXPECT_EQ(Submit(JobText("b"), refused).error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::ExplainJobRequest request;
  request.set_job("a");
  v1::ExplainJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Status status = jobs->ExplainJob(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response.reasons(), ::testing::ElementsAre("cancelled on request"));
  EXPECT_EQ(response.job().phase(), v1::JOB_PHASE_CANCELLED);
  cancel_again();
}

TEST(ServerTest, RecordOfAnUnknownKind_IsRefusedAtStart) {
  auto disk = std::make_shared<MemoryDisk>();
  disk->Put({.number = 1, .job = JobId{1}, .bytes = "\xFF\xFF"});
  const auto server = Server::Start({}, std::make_unique<MemoryBackend>(disk));
  EXPECT_EQ(server.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(server.status().message(), HasSubstr("record 1 of job-1"));
}

TEST(ServerTest, PortThatIsTaken_IsUnavailable) {
  auto first = Server::Start({}, std::make_unique<MemoryBackend>(std::make_shared<MemoryDisk>()));
  ASSERT_TRUE(first.ok());
  const auto second = Server::Start(
      {.port = (*first)->port()}, std::make_unique<MemoryBackend>(std::make_shared<MemoryDisk>()));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace phalanx::coordinator
