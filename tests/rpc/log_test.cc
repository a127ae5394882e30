#include <gmock/gmock.h>

#include "tests/rpc/fixture.h"

namespace phalanx::coordinator {
namespace {

class LogTest : public RpcTest {
 protected:
  void SetUp() override {
    RpcTest::SetUp();
    worker_.emplace(channel);
    worker_->Join("n", 1);
    MustSubmit(JobText("a"));
    worker_->TakeAssignment();
    workers_ = v1::WorkerService::NewStub(channel);
    SetDeadline(context_);
    v1::GetLogsRequest request;
    request.set_job("a");
    request.set_tail(5);
    logs_ = jobs->GetLogs(&context_, request);
  }
  void TearDown() override {
    context_.TryCancel();
    worker_.reset();
    RpcTest::TearDown();
  }
  std::optional<FakeWorker> worker_;
  std::unique_ptr<v1::WorkerService::Stub> workers_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GetLogsResponse>> logs_;
};

TEST_F(LogTest, Lines_TravelFromTheUploadToTheCaller) {
  const v1::Command fetch = worker_->Command();
  ASSERT_TRUE(fetch.has_fetch_logs());
  EXPECT_EQ(fetch.fetch_logs().tail(), 5);
  worker_->Done(fetch);
  grpc::ClientContext upload_context;
  SetDeadline(upload_context);
  v1::UploadLogsResponse uploaded;
  auto upload = workers_->UploadLogs(&upload_context, &uploaded);
  std::string all;
  for (int i = 0; i < 100; ++i) {  // more than the relay holds at a time
    v1::UploadLogsRequest chunk;
    chunk.set_fetch_id(fetch.fetch_logs().fetch_id());
    chunk.set_text(absl::StrCat("line ", i, "\n"));
    chunk.set_place(absl::StrCat("after ", i));
    chunk.set_epoch(3);
    absl::StrAppend(&all, chunk.text());
    ASSERT_TRUE(upload->Write(chunk));
  }
  upload->WritesDone();
  std::string seen, place;
  v1::GetLogsResponse response;
  while (logs_->Read(&response)) {
    EXPECT_EQ(response.node(), "n");
    EXPECT_EQ(response.epoch(), 3);
    seen += response.text();
    place = response.place();
  }
  EXPECT_EQ(place, "after 99");
  EXPECT_EQ(seen, all);
  EXPECT_TRUE(logs_->Finish().ok());
  EXPECT_TRUE(upload->Finish().ok());
}

// A follower of a large job that was cut off names all that it has printed.
TEST_F(LogTest, PlacesOfManyRanks_ReachTheirNode) {
  worker_->Done(worker_->Command());
  v1::GetLogsRequest request;
  request.set_job("a");
  for (int32_t rank = 0; rank < 20'000; ++rank) {
    v1::LogPlace* after = request.add_after();
    after->set_node("n");
    after->set_rank(rank);
    after->set_place("1:1048576");
  }
  grpc::ClientContext context;
  SetDeadline(context);
  const auto logs = jobs->GetLogs(&context, request);
  const v1::Command fetch = worker_->Command();
  ASSERT_TRUE(fetch.has_fetch_logs());
  EXPECT_EQ(fetch.fetch_logs().after_size(), request.after_size());
  context.TryCancel();
}

TEST_F(LogTest, TooManyRanks_AreRefusedByTheirField) {
  v1::GetLogsRequest of_ranks, of_places;
  of_ranks.set_job("a");
  of_places.set_job("a");
  for (int32_t rank = 0; rank <= 65'536; ++rank) {
    of_ranks.add_ranks(rank);
    of_places.add_after();
  }
  for (const auto& [request, field] :
       {std::pair(&of_ranks, "ranks"), std::pair(&of_places, "after")}) {
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status status = jobs->GetLogs(&context, *request)->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), absl::StrCat(field, ": 65537: at most 65536 may be named"));
  }
}

TEST_F(LogTest, CoordinatorThatStops_IsUnavailableToReaderUploadAndSession) {
  const v1::Command fetch = worker_->Command();
  ASSERT_TRUE(fetch.has_fetch_logs());
  worker_->Done(fetch);
  grpc::ClientContext upload_context;
  SetDeadline(upload_context);
  v1::UploadLogsResponse uploaded;
  const auto upload = workers_->UploadLogs(&upload_context, &uploaded);
  v1::UploadLogsRequest chunk;
  chunk.set_fetch_id(fetch.fetch_logs().fetch_id());
  chunk.set_text("line\n");
  ASSERT_TRUE(upload->Write(chunk));
  v1::GetLogsResponse response;
  ASSERT_TRUE(logs_->Read(&response));
  server_->Shutdown(absl::Seconds(5));
  while (logs_->Read(&response)) continue;
  EXPECT_EQ(logs_->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(upload->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  while (worker_->Read().has_value()) continue;
  EXPECT_EQ(worker_->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(LogTest, RankThatTheJobHasNot_IsRefusedByName) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetLogsRequest request;
  request.set_job("a");
  request.add_ranks(9);
  auto reader = jobs->GetLogs(&context, request);
  v1::GetLogsResponse response;
  EXPECT_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "job-1 has no rank 9; its ranks are 0 to 0");
}

TEST_F(LogTest, RefusedFetch_EndsTheCallWithTheReason) {
  const v1::Command fetch = worker_->Command();
  v1::OpenSessionRequest result;
  result.mutable_command_result()->set_command_number(fetch.command_number());
  result.mutable_command_result()->set_code(5);
  result.mutable_command_result()->set_message("no logs of this job");
  worker_->Write(result);
  v1::GetLogsResponse response;
  EXPECT_FALSE(logs_->Read(&response));
  const grpc::Status status = logs_->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("no logs of this job"));
}

TEST_F(LogTest, FollowerOfSeveralNodes_EndsWithTheFirstThatGoesAway) {
  FakeWorker left(channel), right(channel);
  left.Join("left", 1);
  right.Join("right", 1);
  MustSubmit(JobText("b", 2));
  left.Done(left.Command(), "data");
  right.Done(right.Command(), "data");
  left.Done(left.Command());
  right.Done(right.Command());
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetLogsRequest request;
  request.set_job("b");
  request.set_follow(true);
  auto reader = jobs->GetLogs(&context, request);
  EXPECT_TRUE(left.Command().has_fetch_logs());
  EXPECT_TRUE(right.Command().has_fetch_logs());
  v1::GetLogsResponse response;
  EXPECT_TRUE(reader->Read(&response));
  right.Break();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(LogTest, UploadThatNobodyWaitsFor_IsNotFound) {
  grpc::ClientContext upload_context;
  SetDeadline(upload_context);
  v1::UploadLogsResponse uploaded;
  auto upload = workers_->UploadLogs(&upload_context, &uploaded);
  v1::UploadLogsRequest chunk;
  chunk.set_fetch_id("no such fetch");
  upload->Write(chunk);
  EXPECT_EQ(upload->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(LogTest, BrokenSession_EndsTheCall) {
  worker_->Command();
  worker_->Break();
  v1::GetLogsResponse response;
  EXPECT_FALSE(logs_->Read(&response));
  EXPECT_EQ(logs_->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace phalanx::coordinator
