// Lists of jobs and events, filtered and paged by the coordinator.
#include <gmock/gmock.h>

#include "tests/rpc/fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ListRpcTest : public RpcTest {
 protected:
  std::string Labelled(const std::string& name, const std::string& team) {
    std::string text = JobText(name);
    const std::string at = "{name: " + name;
    return text.replace(text.find(at), at.size(), at + ", labels: {team: " + team + "}");
  }
  // All pages; `requests` counts them.
  std::vector<int64_t> Ids(v1::ListJobsRequest request, int* requests = nullptr) {
    std::vector<int64_t> ids;
    do {
      v1::ListJobsResponse response;
      grpc::ClientContext context;
      SetDeadline(context);
      const grpc::Status status = jobs->ListJobs(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      if (!status.ok()) return ids;
      for (const v1::JobStatus& job : response.jobs()) ids.push_back(job.id());
      request.set_page_token(response.next_page_token());
      if (requests != nullptr) ++*requests;
    } while (!request.page_token().empty());
    return ids;
  }
  void Cancel(const std::string& job) {
    v1::CancelJobRequest request;
    request.set_job(job);
    v1::CancelJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    EXPECT_TRUE(jobs->CancelJob(&context, request, &response).ok());
  }
  v1::ListEventsResponse Events(const v1::ListEventsRequest& request) {
    v1::ListEventsResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status status = jobs->ListEvents(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
};

TEST_F(ListRpcTest, Phases_OfLiveAndEndedJobs) {
  for (const char* name : {"a", "b", "c", "d"}) MustSubmit(JobText(name));
  Cancel("b");
  Cancel("d");
  v1::ListJobsRequest request;
  request.add_phases(v1::JOB_PHASE_QUEUED);
  EXPECT_THAT(Ids(request), ElementsAre(3, 1));
  request.set_phases(0, v1::JOB_PHASE_CANCELLED);
  EXPECT_THAT(Ids(request), ElementsAre(4, 2));
  request.add_phases(v1::JOB_PHASE_QUEUED);
  EXPECT_THAT(Ids(request), ElementsAre(4, 3, 2, 1));
  request.clear_phases();
  request.add_phases(v1::JOB_PHASE_FAILED);
  EXPECT_THAT(Ids(request), IsEmpty());
}

TEST_F(ListRpcTest, LabelsAndPages_TogetherGiveEachJobOnce) {
  for (int i = 1; i <= 9; ++i) {
    MustSubmit(Labelled(absl::StrCat("j", i), i % 2 == 0 ? "even" : "odd"));
  }
  Cancel("j3");
  Cancel("j4");
  v1::ListJobsRequest request;
  request.set_page_size(2);
  (*request.mutable_labels())["team"] = "odd";
  int requests = 0;
  EXPECT_THAT(Ids(request, &requests), ElementsAre(9, 7, 5, 3, 1));
  EXPECT_GE(requests, 3);
  (*request.mutable_labels())["tier"] = "a";
  EXPECT_THAT(Ids(request), IsEmpty());
}

TEST_F(ListRpcTest, Node_IsThatOfThePlacement) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("placed"));
  MustSubmit(JobText("waits"));
  const v1::Assign assign = worker.TakeAssignment();
  v1::ListJobsRequest request;
  request.set_node("n");
  EXPECT_THAT(Ids(request), ElementsAre(assign.job()));
  request.set_node("m");
  EXPECT_THAT(Ids(request), IsEmpty());
}

TEST_F(ListRpcTest, FilterBeyondItsBounds_IsRefusedWithItsField) {
  const auto refusal = [this](const v1::ListJobsRequest& request) {
    v1::ListJobsResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status status = jobs->ListJobs(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  v1::ListJobsRequest phases, labels, node, size;
  for (int i = 0; i < 17; ++i) phases.add_phases(v1::JOB_PHASE_QUEUED);
  for (int i = 0; i < 65; ++i) (*labels.mutable_labels())[absl::StrCat("k", i)] = "v";
  node.set_node(std::string(254, 'n'));
  size.set_page_size(-1);
  EXPECT_EQ(refusal(phases), "phases: 17: at most 16 may be named");
  EXPECT_EQ(refusal(labels), "labels: 65: at most 64 may be named");
  EXPECT_EQ(refusal(node), "node: 254 bytes: at most 253");
  EXPECT_EQ(refusal(size), "page_size: -1: must be 0 (then it is 100) or more");
}

TEST_F(ListRpcTest, Events_ByTypeTimeAndPage) {
  MustSubmit(JobText("a"));
  Cancel("a");
  v1::ListEventsRequest request;
  request.set_job("a");
  const v1::ListEventsResponse all = Events(request);
  ASSERT_EQ(all.events_size(), 2);
  EXPECT_FALSE(all.more());
  request.set_page_size(1);
  const v1::ListEventsResponse page = Events(request);
  ASSERT_EQ(page.events_size(), 1);
  EXPECT_EQ(page.events(0).type(), "Submitted");
  EXPECT_TRUE(page.more());
  request.set_after_number(page.events(0).number());
  EXPECT_EQ(Events(request).events(0).type(), "Cancelled");
  EXPECT_FALSE(Events(request).more());
  request.set_after_number(0);
  request.set_page_size(0);
  request.add_types("Cancelled");
  ASSERT_EQ(Events(request).events_size(), 1);
  EXPECT_EQ(Events(request).events(0).type(), "Cancelled");
  request.clear_types();
  *request.mutable_since() = all.events(1).time();
  request.mutable_since()->set_seconds(request.since().seconds() + 1);
  EXPECT_EQ(Events(request).events_size(), 0);
  *request.mutable_since() = all.events(0).time();
  EXPECT_EQ(Events(request).events_size(), 2);
}

}  // namespace
}  // namespace phalanx::coordinator
