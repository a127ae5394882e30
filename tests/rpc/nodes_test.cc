// Nodes that are taken out of service, and jobs that wait.
#include <gmock/gmock.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/job/node_examination.h"
#include "tests/rpc/fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;

class NodesRpcTest : public RpcTest {
 protected:
  grpc::Status Drain(const std::string& node, const std::string& reason) {
    v1::DrainNodeRequest request;
    request.set_node(node);
    request.set_reason(reason);
    grpc::ClientContext context;
    SetDeadline(context);
    return jobs->DrainNode(&context, request, &drained_);
  }
  grpc::Status Cordon(const std::string& node) {
    v1::CordonNodeRequest request;
    request.set_node(node);
    request.set_reason("new fan");
    v1::CordonNodeResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return jobs->CordonNode(&context, request, &response);
  }
  grpc::Status Uncordon(const std::string& node) {
    v1::UncordonNodeRequest request;
    request.set_node(node);
    v1::UncordonNodeResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return jobs->UncordonNode(&context, request, &response);
  }
  grpc::Status Reserve(const std::string& node, const std::string& reason) {
    v1::ReserveNodeRequest request;
    request.set_node(node);
    request.set_reason(reason);
    v1::ReserveNodeResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return jobs->ReserveNode(&context, request, &response);
  }
  grpc::Status Unreserve(const std::string& node) {
    v1::UnreserveNodeRequest request;
    request.set_node(node);
    v1::UnreserveNodeResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return jobs->UnreserveNode(&context, request, &response);
  }
  v1::ListNodesResponse Nodes(bool examinations = false) {
    v1::ListNodesRequest request;
    request.set_examinations(examinations);
    v1::ListNodesResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    EXPECT_TRUE(jobs->ListNodes(&context, request, &response).ok());
    return response;
  }
  v1::DrainNodeResponse drained_;
};

TEST_F(NodesRpcTest, ReasonWithALineEnd_IsNone) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  const grpc::Status drained = Drain("n", "fan\n n2 is sound");
  EXPECT_EQ(drained.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(drained.error_message(), "reason must have no control characters, line ends included");
  EXPECT_EQ(Reserve("n", "\x1b[2J").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(NodesRpcTest, Drain_NamesTheJobsThere) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  WaitFor("a", v1::JOB_PHASE_RUNNING);
  ASSERT_TRUE(Drain("n", "new fan").ok());
  ASSERT_EQ(drained_.jobs_size(), 1);
  EXPECT_EQ(drained_.jobs(0).name(), "a");
  EXPECT_TRUE(drained_.jobs(0).stays());
  EXPECT_THAT(drained_.jobs(0).what(), HasSubstr("has no checkpoint section"));
  EXPECT_TRUE(drained_.node().mark().drains());
}

TEST_F(NodesRpcTest, Connection_IsTriedByBothNodes_WithAWordOfItsOwn) {
  FakeWorker alpha(channel), beta(channel);
  alpha.Join("alpha", 1);
  beta.Join("beta", 1);
  std::string last_word;
  for (const char* why : {"", "Connection refused"}) {
    v1::TryConnectionResponse response;
    std::jthread caller([&] {
      v1::TryConnectionRequest request;
      request.set_from("beta");
      request.set_to("alpha");
      grpc::ClientContext context;
      SetDeadline(context);
      EXPECT_TRUE(jobs->TryConnection(&context, request, &response).ok());
    });
    const v1::Command listens = alpha.Command();
    EXPECT_EQ(listens.try_peer().word().size(), 32u);
    EXPECT_NE(listens.try_peer().word(), last_word);
    EXPECT_EQ(listens.try_peer().peer(), "");
    last_word = listens.try_peer().word();
    v1::OpenSessionRequest result;
    result.mutable_command_result()->set_command_number(listens.command_number());
    result.mutable_command_result()->set_listens_at("10.0.0.1:40123");
    alpha.Write(result);
    const v1::Command connects = beta.Command();
    EXPECT_EQ(connects.try_peer().word(), last_word);
    EXPECT_EQ(connects.try_peer().peer(), "10.0.0.1:40123");
    result.Clear();
    result.mutable_command_result()->set_command_number(connects.command_number());
    if (*why != '\0') result.mutable_command_result()->set_code(grpc::StatusCode::UNAVAILABLE);
    result.mutable_command_result()->set_message(why);
    beta.Write(result);
    caller.join();
    EXPECT_EQ(
        response.fault(),
        *why == '\0' ? "" : "beta does not reach alpha at 10.0.0.1:40123: Connection refused");
  }
  EXPECT_TRUE(disk->records().empty()) << "nothing of it is stored";
}

TEST_F(NodesRpcTest, Examination_IsShownToWhoeverAsks_WithinItsBounds) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  EXPECT_FALSE(Nodes(true).nodes(0).has_examination());
  v1::OpenSessionRequest request;
  v1::MachineExamination& said = *request.mutable_heartbeat()->mutable_examination();
  for (int i = 0; i < 10'000; ++i) {
    v1::MachineFinding& finding = *said.add_findings();
    finding.set_check(absl::StrCat("check-", i));
    finding.set_verdict(v1::MachineFinding::VERDICT_PROBLEM);
    if (i == 0) finding.set_found(std::string(1 << 20, 'x'));
  }
  said.mutable_sent()->set_seconds(absl::ToUnixSeconds(absl::Now()) + 1'000);
  worker.Write(request);
  v1::NodeExamination shown;
  while (shown.findings_size() == 0) shown = Nodes(true).nodes(0).examination();
  EXPECT_EQ(shown.findings_size(), job::kFindingsMax);
  EXPECT_LE(shown.findings(0).found().size(), job::kFoundBytesMax);
  EXPECT_GT(shown.clock_ahead_min_seconds(), 900);
  EXPECT_LT(shown.clock_ahead_max_seconds(), 1'001);
  EXPECT_FALSE(Nodes().nodes(0).has_examination());
  EXPECT_TRUE(disk->records().empty()) << "nothing of it is stored";
}

TEST_F(NodesRpcTest, Mark_IsShownAndHoldsOverARestart) {
  {
    FakeWorker worker(channel);
    worker.Join("n", 1);
    ASSERT_TRUE(Cordon("n").ok());
    ASSERT_TRUE(Cordon("n").ok());
    EXPECT_EQ(Nodes().nodes(0).mark().reason(), "new fan");
  }
  EXPECT_EQ(disk->records().size(), 1u) << "one record for each node";
  Restart();
  ASSERT_EQ(Nodes().nodes_size(), 1);
  EXPECT_EQ(Nodes().nodes(0).mark().reason(), "new fan");
  FakeWorker worker(channel);
  worker.Join("n", 1, /*incarnation=*/2);
  MustSubmit(JobText("a"));
  EXPECT_EQ(Get("a").phase(), v1::JOB_PHASE_QUEUED);
  ASSERT_TRUE(Uncordon("n").ok());
  EXPECT_TRUE(worker.Command().has_prepare_data());
  EXPECT_FALSE(Nodes().nodes(0).has_mark());
}

TEST_F(NodesRpcTest, Reserve_IsShownAndHoldsOverARestart) {
  {
    FakeWorker worker(channel);
    worker.Join("n", 1);
    ASSERT_TRUE(Reserve("n", "spares").ok());
    ASSERT_TRUE(Cordon("n").ok());
    EXPECT_EQ(Nodes().nodes(0).reserve().reason(), "spares");
    ASSERT_TRUE(Uncordon("n").ok());
  }
  EXPECT_EQ(disk->records().size(), 1u) << "one record for each node, whatever was decided";
  Restart();
  ASSERT_EQ(Nodes().nodes_size(), 1);
  EXPECT_EQ(Nodes().nodes(0).reserve().reason(), "spares");
  EXPECT_FALSE(Nodes().nodes(0).has_mark());
  FakeWorker worker(channel);
  worker.Join("n", 1, /*incarnation=*/2);
  MustSubmit(JobText("a"));
  EXPECT_EQ(Get("a").phase(), v1::JOB_PHASE_QUEUED);
  ASSERT_TRUE(Unreserve("n").ok());
  EXPECT_TRUE(worker.Command().has_prepare_data());
  EXPECT_FALSE(Nodes().nodes(0).has_reserve());
}

TEST_F(NodesRpcTest, BadReserves_SayWhatIsWrong) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  EXPECT_EQ(Reserve("nobody", "spares").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Unreserve("nobody").error_code(), grpc::StatusCode::NOT_FOUND);
  const grpc::Status unsaid = Reserve("n", " ");
  EXPECT_EQ(unsaid.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unsaid.error_message(), HasSubstr("reason is empty"));
  EXPECT_FALSE(Nodes().nodes(0).has_reserve());
}

TEST_F(NodesRpcTest, BadRequests_SayWhatIsWrong) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  EXPECT_EQ(Drain("nobody", "new fan").error_code(), grpc::StatusCode::NOT_FOUND);
  const grpc::Status unsaid = Drain("n", " ");
  EXPECT_EQ(unsaid.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unsaid.error_message(), HasSubstr("reason is empty"));
  const grpc::Status epic = Drain("n", std::string(1025, 'x'));
  EXPECT_EQ(epic.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(epic.error_message(), HasSubstr("1025 bytes; at most 1024"));
  EXPECT_FALSE(Nodes().nodes(0).has_mark());
}

TEST_F(NodesRpcTest, JobsThatWait_AreToldTheirPlace) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  for (const char* name : {"a", "b", "c"}) MustSubmit(JobText(name));
  EXPECT_EQ(Get("a").queue_number(), 0) << "it has its device";
  EXPECT_EQ(Get("c").queue_number(), 2);
  v1::ListJobsResponse listed;
  grpc::ClientContext context;
  SetDeadline(context);
  ASSERT_TRUE(jobs->ListJobs(&context, {}, &listed).ok());
  ASSERT_EQ(listed.jobs_size(), 3);
  EXPECT_EQ(listed.jobs(0).queue_number(), 2);
  EXPECT_EQ(listed.jobs(1).queue_number(), 1);
  EXPECT_EQ(listed.jobs(2).queue_number(), 0);
}

TEST_F(NodesRpcTest, JobsThatWait_AreToldWhenTheyMayStart) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  MustSubmit(JobText("b"));
  EXPECT_FALSE(Get("b").has_starts_about());
  for (int64_t step = 1; step <= 9; ++step) worker.Step(assign, step, 24 * 3600.0);
  Await("a", [](const v1::JobStatus& job) { return job.last_step().step() == 9; });
  const v1::JobStatus waits = Get("b");
  ASSERT_TRUE(waits.has_starts_about());
  EXPECT_FALSE(waits.has_starts_by());
  EXPECT_GT(waits.starts_about().seconds(), absl::ToUnixSeconds(absl::Now()) + 22 * 3600);
  EXPECT_LT(waits.starts_about().seconds(), absl::ToUnixSeconds(absl::Now()) + 26 * 3600);
}

}  // namespace
}  // namespace phalanx::coordinator
