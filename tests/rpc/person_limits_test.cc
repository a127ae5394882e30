// How much one person may have open, queue, and be refused.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "coordinator/rpc/audit.h"
#include "coordinator/rpc/log_relay.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class PersonLimitsTest : public AccessTest {
 protected:
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> stream;
    v1::WatchJobResponse response;
  };
  std::unique_ptr<Watch> Open(const std::string& job) {
    auto watch = std::make_unique<Watch>();
    SetDeadline(watch->context);
    v1::WatchJobRequest request;
    request.set_job(job);
    watch->stream = jobs->WatchJob(&watch->context, request);
    return watch;
  }

  struct Reading {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GetLogsResponse>> stream;
    v1::GetLogsResponse response;

    bool Read() { return stream->Read(&response); }
  };
  // Whoever has `stub` reads on in the logs of job a.
  static std::unique_ptr<Reading> Follow(v1::JobService::Stub& stub) {
    auto reading = std::make_unique<Reading>();
    SetDeadline(reading->context);
    v1::GetLogsRequest request;
    request.set_job("a");
    request.set_follow(true);
    reading->stream = stub.GetLogs(&reading->context, request);
    return reading;
  }
  // Sam has job a on the worker; whoever calls from here on is vera.
  std::unique_ptr<v1::JobService::Stub> LetSamHaveAJobOn(FakeWorker& worker) {
    worker.Join("here", 1);
    Be("sam", "submitter");
    MustSubmit(JobText("a"));
    worker.TakeAssignment();
    auto of_sam = v1::JobService::NewStub(channel);
    Be("vera", "viewer");
    return of_sam;
  }
};

TEST_F(PersonLimitsTest, WatchesOfOnePerson_AreBounded_AndOthersNoticeNothing) {
  server_.reset();
  AccessTest::Open([](ServerOptions& options) { options.person_watchers_max = 2; });
  Be("sam", "submitter");
  MustSubmit(JobText("a"));
  Be("vera", "viewer");
  std::vector<std::unique_ptr<Watch>> open;
  for (int i = 0; i < 2; ++i) {
    open.push_back(Open("a"));
    ASSERT_TRUE(open.back()->stream->Read(&open.back()->response));
  }
  const auto refused = Open("a");
  EXPECT_FALSE(refused->stream->Read(&refused->response));
  const grpc::Status status = refused->stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "vera has 2 such calls open; at most 2");
  EXPECT_THAT(status.error_details(), HasSubstr("google.rpc.RetryInfo"));
  FakeWorker worker(ChannelOf(authority().Worker("here")));
  worker.Join("here", 1);
  Be("sam", "submitter");
  const auto others = Open("a");
  EXPECT_TRUE(others->stream->Read(&others->response));

  open[0]->context.TryCancel();
  while (open[0]->stream->Read(&open[0]->response)) continue;
  open[0]->stream->Finish();
  Be("vera", "viewer");
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  bool room = false;
  while (!room && absl::Now() < deadline) {
    const auto next = Open("a");
    room = next->stream->Read(&next->response);
    next->context.TryCancel();
  }
  EXPECT_TRUE(room) << "one that has ended makes room";
}

TEST_F(PersonLimitsTest, ConnectionsOfOnePerson_AreBounded_AndThoseThatAreClosedMakeRoom) {
  server_.reset();
  AccessTest::Open([](ServerOptions& options) { options.person_connections_max = 2; });
  const std::string list = "/phalanx.v1.JobService/ListJobs";
  const transport::TlsFiles vera = authority().User("vera", "viewer");
  std::vector<std::shared_ptr<grpc::Channel>> open = {ChannelOf(vera), ChannelOf(vera)};
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(Call(open[0], list).ok());
    EXPECT_TRUE(Call(open[1], list).ok());
  }
  const grpc::Status refused = Call(ChannelOf(vera), list);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(), "vera has 2 connections open; at most 2");
  EXPECT_THAT(refused.error_details(), HasSubstr("google.rpc.RetryInfo"));
  EXPECT_TRUE(Call(ChannelOf(authority().User("sam", "submitter")), list).ok());
  for (int i = 0; i < 3; ++i) {
    FakeWorker worker(ChannelOf(authority().Worker(absl::StrCat("node-", i))));
    worker.Join(absl::StrCat("node-", i), 1);
  }
  open.pop_back();
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const std::shared_ptr<grpc::Channel> next = ChannelOf(vera);
  while (!Call(next, list).ok() && absl::Now() < deadline) continue;
  EXPECT_TRUE(Call(next, list).ok());
}

TEST_F(PersonLimitsTest, ReadersOfLogsOfOnePerson_AreBounded_AndOthersNoticeNothing) {
  server_.reset();
  AccessTest::Open([](ServerOptions& options) { options.person_log_calls_max = 2; });
  FakeWorker worker(ChannelOf(authority().Worker("here")));
  const auto of_sam = LetSamHaveAJobOn(worker);
  std::vector<std::unique_ptr<Reading>> open;
  for (int i = 0; i < 2; ++i) {
    open.push_back(Follow(*jobs));
    EXPECT_TRUE(worker.Command().has_fetch_logs());
    ASSERT_TRUE(open.back()->Read());
  }
  const auto refused = Follow(*jobs);
  EXPECT_FALSE(refused->Read());
  const grpc::Status status = refused->stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "vera has 2 such calls open; at most 2");
  EXPECT_THAT(status.error_details(), HasSubstr("google.rpc.RetryInfo"));
  EXPECT_THAT(server_->MetricsText(),
              HasSubstr("phalanx_rpc_handled_total{code=\"RESOURCE_EXHAUSTED\","
                        "method=\"GetLogs\"} 1"));
  open.push_back(Follow(*of_sam));
  EXPECT_TRUE(open.back()->Read());
  for (const auto& reading : open) reading->context.TryCancel();
}

TEST_F(PersonLimitsTest, ReadersOfLogsOfOneNode_WhoeverHasMostOfThemMakesRoom) {
  FakeWorker worker(ChannelOf(authority().Worker("here")));
  const auto of_sam = LetSamHaveAJobOn(worker);
  std::vector<std::unique_ptr<Reading>> open;
  for (size_t i = 0; i <= LogRelay::kUploadsMax; ++i) {
    open.push_back(Follow(i == 0 ? *jobs : *of_sam));
    EXPECT_TRUE(worker.Command().has_fetch_logs());
    ASSERT_TRUE(open.back()->Read());
  }
  EXPECT_FALSE(open[1]->Read());
  EXPECT_EQ(open[1]->stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // The first of all, of somebody else, goes on: one more of sam's ends sam's next.
  open.push_back(Follow(*of_sam));
  EXPECT_TRUE(worker.Command().has_fetch_logs());
  EXPECT_FALSE(open[2]->Read());
  EXPECT_EQ(open[2]->stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (const auto& reading : open) reading->context.TryCancel();
}

// Each plan that has been made, or is refused, makes room for the next one.
TEST_F(PersonLimitsTest, PlansOfOnePerson_AreBounded_AndThoseThatAreMadeMakeRoom) {
  const auto plan = [this](const std::string& text) {
    v1::PlanJobRequest request;
    request.mutable_document()->set_text(text);
    v1::PlanJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return jobs->PlanJob(&context, request, &response);
  };
  FakeWorker worker(ChannelOf(authority().Worker("here")));
  worker.Join("here", 1);
  Be("vera", "viewer");
  for (size_t i = 0; i < 2 * Admission::kPlansMax; ++i) {
    EXPECT_TRUE(plan(JobText("a")).ok());
    EXPECT_EQ(plan("no job").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  server_.reset();
  AccessTest::Open([](ServerOptions& options) { options.person_plans_max = 0; });
  Be("vera", "viewer");
  const grpc::Status refused = plan(JobText("a"));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("vera has 0 plans made; at most 0"));
  EXPECT_THAT(refused.error_details(), HasSubstr("google.rpc.RetryInfo"));
  Be("sam", "submitter");
  MustSubmit(JobText("b"));
}

TEST_F(PersonLimitsTest, JobsOfOnePersonInTheQueue_AreBounded) {
  server_.reset();
  AccessTest::Open(
      [](ServerOptions& options) { options.driver.machine.quotas.others.queued_max = 2; });
  Be("sam", "submitter");
  MustSubmit(JobText("a"));
  MustSubmit(JobText("b"));
  v1::SubmitJobResponse response;
  const grpc::Status refused = Submit(JobText("c"), response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(
      refused.error_message(),
      "2 jobs of sam wait, and its quota is 2 (queued_max): submit again when one of them has "
      "started, or cancel one");
  EXPECT_EQ(Audit().back(), absl::StrCat("audit who=sam role=submitter method=SubmitJob "
                                         "outcome=RESOURCE_EXHAUSTED reason=\"",
                                         refused.error_message(), "\""));
  Be("sue", "submitter");
  MustSubmit(JobText("d"));
  Be("sam", "submitter");
  ASSERT_TRUE(Cancel("a").ok());
  MustSubmit(JobText("c"));
  server_.reset();
  AccessTest::Open(
      [](ServerOptions& options) { options.driver.machine.quotas.others.queued_max = 2; });
  Be("sam", "submitter");
  EXPECT_EQ(Submit(JobText("e"), response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << "behind a restart";
}

TEST_F(PersonLimitsTest, PriorityOfASubmitter_IsBounded_AndThatOfAnOperatorIsNot) {
  server_.reset();
  AccessTest::Open(
      [](ServerOptions& options) { options.driver.machine.quotas.others.priority_max = 10; });
  const std::string high = JobText("a") + "  priority: 11\n",
                    rule =
                        "spec.priority: 11: must be at most 10, the priority_max of sam's quota; "
                        "lower it, or ask an "
                        "operator";
  Be("sam", "submitter");
  v1::SubmitJobResponse response;
  for (const grpc::Status& refused : {CheckSubmit(high), Submit(high, response)}) {
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(refused.error_message(), rule);
    EXPECT_THAT(refused.error_details(), HasSubstr("google.rpc.BadRequest"));
  }
  EXPECT_TRUE(CheckSubmit(JobText("a")).ok());
  Be("olga", "operator");
  EXPECT_TRUE(CheckSubmit(high).ok());
  MustSubmit(high);
  EXPECT_EQ(CheckSubmit(high).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

// A search takes up to a minute, and a place among the person's plans.
TEST_F(PersonLimitsTest, PriorityOfAJobWithoutALayout_IsRefusedBeforeOneIsSearchedFor) {
  server_.reset();
  AccessTest::Open([](ServerOptions& options) {
    options.driver.machine.quotas.others.priority_max = 10;
    options.person_plans_max = 0;
  });
  Be("sam", "submitter");
  const std::string open = absl::StrReplaceAll(
      JobText("a"),
      {{"{ranks: 1, tp: 1}", "auto"}, {"{device: cpu}", "{device: cpu, devices: 2}"}});
  v1::SubmitJobResponse response;
  EXPECT_EQ(Submit(open, response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const grpc::Status refused = Submit(open + "  priority: 11\n", response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << refused.error_message();
  EXPECT_THAT(refused.error_message(), HasSubstr("spec.priority: 11: must be at most 10"));
}

TEST(AuditTest, RefusalsOfOneCaller_AreBounded_AndWhatWasDoneIsAlwaysTold) {
  std::vector<std::string> lines;
  int left_out = 0;
  Audit audit([&](const std::string& line) { lines.push_back(line); },
              {.calls_per_second = 0.001, .calls_at_once = 2}, [&] { ++left_out; });
  const Caller bob = Identity{"bob", Role::kViewer}, sam = Identity{"sam", Role::kSubmitter};
  const absl::Status denied = absl::PermissionDeniedError("no");
  for (int i = 0; i < 5; ++i) audit.Tell(bob, "CancelJob", "", denied);
  EXPECT_THAT(lines, SizeIs(2));
  EXPECT_EQ(left_out, 3);
  for (int i = 0; i < 3; ++i) audit.Tell(std::nullopt, "Join", "", denied);
  for (int i = 0; i < 3; ++i) audit.Tell(Identity{"bob", Role::kWorker}, "ListJobs", "", denied);
  EXPECT_EQ(left_out, 5) << "strangers and nodes are counted by themselves";
  lines.clear();
  for (int i = 0; i < 3; ++i) audit.Tell(sam, "CancelJob", "job=1", absl::OkStatus());
  EXPECT_THAT(lines, SizeIs(4));
  EXPECT_EQ(lines[0], "audit left_out=1 reason=\"who=worker/bob is refused too often\"");
  EXPECT_EQ(lines[3], "audit who=sam role=submitter method=CancelJob job=1 outcome=OK");
}

}  // namespace
}  // namespace phalanx::coordinator
