#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "absl/strings/str_replace.h"
#include "coordinator/wire/record_codec.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/rpc/fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename Detail>
std::optional<Detail> DetailOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const google::protobuf::Any& any : details.details()) {
    Detail detail;
    if (any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}

TEST_F(RpcTest, Submit_IsStoredWhenItIsAcknowledged) {
  v1::SubmitJobResponse response;
  ASSERT_TRUE(Submit(JobText("a"), response).ok());
  EXPECT_EQ(response.job().id(), 1);
  EXPECT_EQ(response.job().phase(), v1::JOB_PHASE_QUEUED);
  ASSERT_EQ(disk->records().size(), 1u);
  const absl::StatusOr<JournalRecord> record = DecodeRecord(disk->records()[0].bytes, 1);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(std::get<JobSubmitted>(record->body).request->document.text, JobText("a"));
}

TEST_F(RpcTest, Submit_SameRequestId_GivesTheSameJobAlsoAfterARestart) {
  v1::SubmitJobResponse first, second, third;
  ASSERT_TRUE(Submit(JobText("a"), first, "r").ok());
  ASSERT_TRUE(Submit(JobText("a"), second, "r").ok());
  EXPECT_EQ(second.job().id(), first.job().id());
  Restart();
  ASSERT_TRUE(Submit(JobText("a"), third, "r").ok());
  EXPECT_EQ(third.job().id(), first.job().id());
}

// A node that joins between a submit and its repetition has no FP8, so another job is refused.
TEST_F(RpcTest, Submit_SameRequestIdOfAJobThatWouldBeRefusedByNow_GivesTheSameJob) {
  const auto text = [](const std::string& name) {
    return absl::StrReplaceAll(JobText(name), {{"  resources: {device: cpu}\n",
                                                "  resources: {device: gpu}\n"
                                                "  precision: {linear: fp8}\n"}});
  };
  v1::SubmitJobResponse first, second, other;
  const grpc::Status accepted = Submit(text("a"), first, "r");
  ASSERT_TRUE(accepted.ok()) << accepted.error_message();
  FakeWorker worker(channel);
  v1::WorkerHello hello = FakeWorker::Hello("old", 1, 1);
  hello.set_device_kind("gpu");
  (*hello.mutable_labels())["phalanx/fp8"] = "no";
  worker.SayHello(hello);
  const auto welcome = worker.Read();
  ASSERT_TRUE(welcome.has_value() && welcome->has_welcome());
  const grpc::Status refused = Submit(text("b"), other, "s");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(DetailOf<google::rpc::BadRequest>(refused).has_value());
  EXPECT_EQ(Submit(text("b"), other).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status again = Submit(text("a"), second, "r");
  EXPECT_TRUE(again.ok()) << again.error_message();
  EXPECT_EQ(second.job().id(), first.job().id());
  EXPECT_EQ(Submit(text("b"), other, "r").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcTest, Submit_BadDocument_ListsEveryViolationAndKeepsNothing) {
  std::string text = JobText("a");
  text.replace(text.find("steps: 10"), 9, "steps: -1");
  text.replace(text.find("global: 4"), 9, "globl: 44");
  v1::SubmitJobResponse response;
  const grpc::Status status = Submit(text, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const auto info = DetailOf<google::rpc::ErrorInfo>(status);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->domain(), "phalanx");
  EXPECT_EQ(info->reason(), "INVALID_DOCUMENT");
  const auto bad = DetailOf<google::rpc::BadRequest>(status);
  ASSERT_TRUE(bad.has_value());
  std::set<std::string> fields;
  for (const auto& violation : bad->field_violations()) fields.insert(violation.field());
  EXPECT_THAT(fields, Contains("spec.steps"));
  EXPECT_THAT(fields, Contains("spec.batch.globl"));
  EXPECT_TRUE(disk->records().empty());
}

TEST_F(RpcTest, Submit_ManyViolations_StillFitTheClientsDefaultLimits) {
  std::string text = JobText("a");
  for (int i = 0; i < 500; ++i) absl::StrAppend(&text, "  unknown_field_number_", i, ": 1\n");
  v1::SubmitJobResponse response;
  const grpc::Status status = Submit(text, response);
  ASSERT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  const auto bad = DetailOf<google::rpc::BadRequest>(status);
  ASSERT_TRUE(bad.has_value());
  EXPECT_THAT(bad->field_violations().rbegin()->description(), HasSubstr("more violations"));
}

TEST_F(RpcTest, Submit_RelativeDirectory_IsRefused) {
  v1::SubmitJobRequest request;
  request.mutable_document()->set_text(JobText("a"));
  request.mutable_document()->set_directory("here");
  v1::SubmitJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_EQ(jobs->SubmitJob(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcTest, Submit_LongRequestId_IsRefused) {
  v1::SubmitJobResponse response;
  EXPECT_EQ(Submit(JobText("a"), response, std::string(129, 'r')).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcTest, Submit_NameOfALiveJob_IsAlreadyExists) {
  MustSubmit(JobText("a"));
  v1::SubmitJobResponse response;
  EXPECT_EQ(Submit(JobText("a"), response).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(RpcTest, Submit_TooLargeAMessage_IsResourceExhausted) {
  v1::SubmitJobResponse response;
  EXPECT_EQ(Submit(std::string(9 << 20, '#'), response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  MustSubmit(JobText("a"));
}

TEST_F(RpcTest, Get_ByNumberByIdAndByName) {
  MustSubmit(JobText("a"));
  EXPECT_EQ(Get("1").name(), "a");
  EXPECT_EQ(Get("job-1").name(), "a");
  EXPECT_EQ(Get("a").id(), 1);
  EXPECT_EQ(Get("a").output().substr(0, 5), "/tmp/");
  v1::GetJobRequest request;
  request.set_job("b");
  v1::GetJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_EQ(jobs->GetJob(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(RpcTest, List_PagesNewestFirst) {
  for (int i = 0; i < 5; ++i) MustSubmit(JobText(absl::StrCat("job", i)));
  std::vector<int64_t> ids;
  v1::ListJobsRequest request;
  request.set_page_size(2);
  do {
    v1::ListJobsResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    ASSERT_TRUE(jobs->ListJobs(&context, request, &response).ok());
    for (const v1::JobStatus& job : response.jobs()) ids.push_back(job.id());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(ids, ::testing::ElementsAre(5, 4, 3, 2, 1));
  request.set_page_token("nonsense");
  v1::ListJobsResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_EQ(jobs->ListJobs(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcTest, Cancel_IsIdempotentAndPersists) {
  MustSubmit(JobText("a"));
  v1::CancelJobRequest request;
  request.set_job("a");
  for (int i = 0; i < 2; ++i) {
    v1::CancelJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    ASSERT_TRUE(jobs->CancelJob(&context, request, &response).ok());
    EXPECT_EQ(response.job().phase(), v1::JOB_PHASE_CANCELLED);
  }
  Restart();
  EXPECT_EQ(Get("a").phase(), v1::JOB_PHASE_CANCELLED);
}

TEST_F(RpcTest, Explain_SaysWhatAQueuedJobWaitsFor) {
  MustSubmit(JobText("a"));
  v1::ExplainJobRequest request;
  request.set_job("a");
  v1::ExplainJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  ASSERT_TRUE(jobs->ExplainJob(&context, request, &response).ok());
  ASSERT_GE(response.reasons_size(), 1);
  EXPECT_THAT(response.reasons(0), HasSubstr("no connected node has cpu devices"));
}

TEST_F(RpcTest, Events_AreNumberedAndContinueAfterANumber) {
  MustSubmit(JobText("a"));
  v1::CancelJobRequest cancel;
  cancel.set_job("a");
  v1::CancelJobResponse cancelled;
  grpc::ClientContext cancel_context;
  ASSERT_TRUE(jobs->CancelJob(&cancel_context, cancel, &cancelled).ok());
  v1::ListEventsRequest request;
  request.set_job("a");
  request.set_after_number(1);
  v1::ListEventsResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  ASSERT_TRUE(jobs->ListEvents(&context, request, &response).ok());
  ASSERT_EQ(response.events_size(), 1);
  EXPECT_EQ(response.events(0).number(), 2);
  EXPECT_EQ(response.events(0).type(), "Cancelled");
}

TEST_F(RpcTest, Plan_OnTheConnectedNodes) {
  FakeWorker worker(channel);
  worker.Join("n", 2);
  v1::PlanJobRequest request;
  request.mutable_document()->set_text(JobText("a", 2));
  v1::PlanJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Status status = jobs->PlanJob(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.plan().world(), 2);
  EXPECT_EQ(response.plan().placement().nodes(0).node(), "n");
  request.mutable_document()->set_text(JobText("a", 4));
  grpc::ClientContext second;
  SetDeadline(second);
  EXPECT_EQ(jobs->PlanJob(&second, request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RpcTest, JobThatLeavesNoRoomForWhatNoEstimateCounts_FailsUnassigned) {
  FakeWorker worker(channel);
  v1::WorkerHello hello = FakeWorker::Hello("n", 2, 1);
  for (int device = 0; device < 2; ++device) {
    hello.add_device_memory(1 << 30);
    hello.add_device_names("NVIDIA H200");
  }
  worker.SayHello(hello);
  ASSERT_TRUE(worker.Read()->has_welcome());
  MustSubmit(JobText("a", 2));
  const v1::JobStatus failed = WaitFor("a", v1::JOB_PHASE_FAILED);
  EXPECT_EQ(failed.failure().cause(), "PlanInvalid");
  EXPECT_THAT(failed.failure().message(),
              EndsWith("device has 1 B for it; another rank does not fit either"));
  v1::PlanJobRequest request;
  request.mutable_document()->set_text(JobText("a", 2));
  v1::PlanJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_EQ(jobs->PlanJob(&context, request, &response).error_message(),
            failed.failure().message());
}

TEST_F(RpcTest, JobBeyondTheMemoryOfItsDevices_FailsUnassigned) {
  FakeWorker worker(channel);
  v1::WorkerHello hello = FakeWorker::Hello("n", 2, 1);
  hello.add_device_memory(1 << 30);
  hello.add_device_memory(1 << 12);
  hello.add_device_names("NVIDIA L40S");
  hello.add_device_names("");
  worker.SayHello(hello);
  ASSERT_TRUE(worker.Read()->has_welcome());
  MustSubmit(JobText("a", 2));
  const v1::JobStatus failed = WaitFor("a", v1::JOB_PHASE_FAILED);
  EXPECT_EQ(failed.failure().cause(), "PlanInvalid");
  EXPECT_THAT(failed.failure().message(), StartsWith("spec.modules: rank 1 needs "));
  EXPECT_THAT(failed.failure().message(), EndsWith("device has 4.0 KiB for it"));
  v1::ListNodesResponse nodes;
  grpc::ClientContext list;
  SetDeadline(list);
  ASSERT_TRUE(jobs->ListNodes(&list, {}, &nodes).ok());
  ASSERT_EQ(nodes.nodes_size(), 1);
  EXPECT_THAT(nodes.nodes(0).device_memory(), ElementsAre(1 << 30, 1 << 12));
  EXPECT_THAT(nodes.nodes(0).device_names(), ElementsAre("NVIDIA L40S", ""));
  v1::PlanJobRequest request;
  request.mutable_document()->set_text(JobText("a", 2));
  v1::PlanJobResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Status planned = jobs->PlanJob(&context, request, &response);
  EXPECT_EQ(planned.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(planned.error_message(), failed.failure().message());
}

class InjectRpcTest : public RpcTest {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.driver.machine.allow_inject = true;
    Start(std::move(options));
  }
  grpc::Status Inject(const std::string& job, int32_t rank,
                      v1::FaultKind kind = v1::FAULT_KIND_KILL) {
    v1::InjectFaultRequest request;
    request.set_job(job);
    request.mutable_fault()->set_kind(kind);
    request.mutable_fault()->set_rank(rank);
    response_.Clear();
    grpc::ClientContext context;
    SetDeadline(context);
    return jobs->InjectFault(&context, request, &response_);
  }

  v1::InjectFaultResponse response_;
};

TEST_F(RpcTest, Inject_WhereItIsNotAllowed_IsDeniedWhateverTheJob) {
  v1::InjectFaultRequest request;
  request.set_job("nobody");
  v1::InjectFaultResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Status status = jobs->InjectFault(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(status.error_message(),
            "this coordinator brings no faults about on demand: it runs without --allow-inject; "
            "ask an operator for one that has it");
}

TEST_F(InjectRpcTest, Fault_IsAnsweredByItsNode) {
  MustSubmit(JobText("a"));
  FakeWorker worker(channel);
  worker.Join("n", 1);
  const v1::Assign assign = worker.TakeAssignment();
  EXPECT_EQ(Inject("a", 0).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  worker.Ready(assign, 0);
  WaitFor("a", v1::JOB_PHASE_RUNNING);
  std::thread node([&] {
    const v1::Command command = worker.Command();
    EXPECT_EQ(command.inject_fault().job(), 1);
    EXPECT_EQ(command.inject_fault().epoch(), 1);
    EXPECT_EQ(command.inject_fault().fault().kind(), v1::FAULT_KIND_KILL);
    worker.Done(command);
  });
  const grpc::Status status = Inject("a", 0);
  node.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response_.job(), 1);
  EXPECT_EQ(response_.epoch(), 1);
  EXPECT_EQ(response_.node(), "n");
}

TEST_F(InjectRpcTest, WrongOnes_AreToldApart) {
  MustSubmit(JobText("a"));
  const grpc::Status unknown = Inject("nobody", 0);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(unknown.error_message(), "there is no job \"nobody\"");
  const grpc::Status wrong = Inject("a", -1, v1::FAULT_KIND_UNSPECIFIED);
  EXPECT_EQ(wrong.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const auto bad = DetailOf<google::rpc::BadRequest>(wrong);
  ASSERT_TRUE(bad.has_value());
  ASSERT_EQ(bad->field_violations_size(), 2);
  EXPECT_EQ(bad->field_violations(0).field(), "fault.rank");
  EXPECT_EQ(bad->field_violations(1).field(), "fault.kind");
  v1::CancelJobRequest cancel;
  cancel.set_job("a");
  v1::CancelJobResponse cancelled;
  grpc::ClientContext context;
  SetDeadline(context);
  ASSERT_TRUE(jobs->CancelJob(&context, cancel, &cancelled).ok());
  const grpc::Status ended = Inject("a", 0);
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ended.error_message(), "job-1 is Cancelled; faults are for a job that is Running");
}

}  // namespace
}  // namespace phalanx::coordinator
