// Commands against a server of the test's own: what they print and how they end.
#include "client/commands.h"

#include <atomic>
#include <set>
#include <string>

#include "absl/strings/str_replace.h"
#include "client/exit_code.h"
#include "client/list.h"
#include "core/job/json.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

const std::string kExample = tests::SourceDir() + "/examples/emoji-captions.yaml";

grpc::Status ListTwo(const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
  *response->add_jobs() = AJob(v1::JOB_PHASE_RUNNING, 12);
  *response->add_jobs() = AJob(v1::JOB_PHASE_QUEUED);
  return grpc::Status::OK;
}

TEST(ListTest, Table_HasAColumnForEachThingPeopleAsk) {
  FakeServer server;
  server.list = ListTwo;
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.format = Format::kTable}, stopper, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), StartsWith("NAME  ID     STATE    STEP    LOSS  AGE\n"
                                             "demo  job-7  Running  12/300  1.25  "));
  EXPECT_EQ(captured.talk.str(), "");
}

TEST(ListTest, DamagedEntry_IsNotShownAsSound) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    *response->add_jobs() = AJob(v1::JOB_PHASE_SUCCEEDED);
    response->mutable_jobs(0)->set_damaged(true);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.format = Format::kTable}, stopper, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), HasSubstr("demo  job-7  Succeeded (damaged)  "));
}

TEST(ListTest, Json_HasNumbersAndWords) {
  FakeServer server;
  server.list = ListTwo;
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.format = Format::kJson}, stopper, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), HasSubstr("\"phase\": \"Running\""));
  EXPECT_THAT(captured.out.str(), HasSubstr("\"id\": 7,"));
  EXPECT_THAT(captured.out.str(), HasSubstr("\"submitted\": \"2023-11-14T22:13:20.000Z\""));
  EXPECT_TRUE(wire::ParseYaml(captured.out.str()).ok());
}

TEST(ListTest, YamlAndJson_SayTheSame) {
  FakeServer server;
  server.list = ListTwo;
  Connection connection = server.Connect();
  Captured json, yaml;
  Stopper stopper;
  List(connection, {.format = Format::kJson}, stopper, json.io);
  List(connection, {.format = Format::kYaml}, stopper, yaml.io);
  EXPECT_EQ(job::EmitJson(*wire::ParseYaml(yaml.out.str())), json.out.str());
}

TEST(ListTest, Name_IsOneIdALine) {
  FakeServer server;
  server.list = ListTwo;
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  List(connection, {.format = Format::kName}, stopper, captured.io);
  EXPECT_EQ(captured.out.str(), "job-7\njob-7\n");
}

TEST(ListTest, Pages_AreFollowedToTheEnd) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    if (request.page_token().empty()) response->set_next_page_token("more");
    return ListTwo(request, response);
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  List(connection, {.format = Format::kName}, stopper, captured.io);
  EXPECT_EQ(captured.out.str(), "job-7\njob-7\njob-7\njob-7\n");
}

TEST(ListTest, NoJobs_IsSaidAsideAndIsEmptyJson) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest&, v1::ListJobsResponse*) { return grpc::Status::OK; };
  Connection connection = server.Connect();
  Captured table, json;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.format = Format::kTable}, stopper, table.io), kSuccess);
  EXPECT_EQ(table.out.str(), "");
  EXPECT_EQ(table.talk.str(), "no jobs\n");
  List(connection, {.format = Format::kJson}, stopper, json.io);
  EXPECT_EQ(json.out.str(), "{\n  \"jobs\": []\n}\n");
}

struct Ending {
  grpc::StatusCode code;
  int exit_code;
};
class EndingTest : public ::testing::TestWithParam<Ending> {};

TEST_P(EndingTest, ServersCode_BecomesAnExitCode) {
  FakeServer server;
  server.get = [](const v1::GetJobRequest&, v1::GetJobResponse*) {
    return grpc::Status(GetParam().code, "no");
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Get(connection, "job-7", Format::kTable, captured.io), GetParam().exit_code);
  EXPECT_EQ(captured.out.str(), "");
  EXPECT_THAT(captured.talk.str(), HasSubstr("no"));
}
INSTANTIATE_TEST_SUITE_P(Codes, EndingTest,
                         ::testing::Values(Ending{grpc::StatusCode::NOT_FOUND, kFailure},
                                           Ending{grpc::StatusCode::PERMISSION_DENIED, kNotAllowed},
                                           Ending{grpc::StatusCode::UNAUTHENTICATED, kNotAllowed},
                                           Ending{grpc::StatusCode::INTERNAL, kInternal},
                                           Ending{grpc::StatusCode::FAILED_PRECONDITION,
                                                  kFailure}));

TEST(ConnectionTest, NobodyThere_IsUnreachable) {
  Connection connection({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(200)});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.format = Format::kTable}, stopper, captured.io), kUnreachable);
  EXPECT_THAT(captured.talk.str(), HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(captured.talk.str(), HasSubstr("\nwhat to do: see that phalanx-coordinator runs"));
}

// A coordinator that answers is there.
TEST(ConnectionTest, StoreThatIsFull_IsSaidWithinTheTimeoutAndNotCalledSilence) {
  FakeServer server;
  server.submit = [](const v1::SubmitJobRequest&, v1::SubmitJobResponse*) {
    google::rpc::ErrorInfo info;
    info.set_domain("phalanx");
    return WithDetails(grpc::StatusCode::UNAVAILABLE, info, "the store is full");
  };
  Connection connection({.server = server.address(), .timeout = absl::Milliseconds(300)});
  Captured captured;
  Stopper stopper;
  const absl::Time start = absl::Now();
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kUnreachable);
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  EXPECT_EQ(captured.talk.str(),
            "error: the coordinator at " + server.address() +
                " cannot serve this now: the store is full\nwhat to do: ask again when that has "
                "changed; phalanx nodes shows the nodes that are there, and the coordinator's log "
                "says more\n");
}

TEST(ConnectionTest, Unavailable_IsTriedAgainWithTheSameRequestId) {
  FakeServer server;
  std::vector<std::string> ids;
  server.submit = [&](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    ids.push_back(request.request_id());
    if (ids.size() < 3) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "starting");
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kSuccess);
  ASSERT_THAT(ids, SizeIs(3));
  EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), 1u);
  EXPECT_THAT(ids[0], SizeIs(32));
}

TEST(ConnectionTest, OverALimit_IsTriedAgainAfterTheHint_WithinTheTimeout) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.get = [&](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_nanos(100'000'000);
    if (++calls < 3)
      return WithDetails(grpc::StatusCode::RESOURCE_EXHAUSTED, retry, "vera calls too often");
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  const absl::Time start = absl::Now();
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Get(connection, "7", Format::kTable, captured.io), kSuccess);
  EXPECT_EQ(calls, 3);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(200));

  calls = -1000;
  Connection hasty({.server = server.address(), .timeout = absl::Milliseconds(50)});
  EXPECT_EQ(Get(hasty, "7", Format::kTable, captured.io), kFailure);
  EXPECT_EQ(calls, -999);
  EXPECT_THAT(captured.talk.str(), HasSubstr("vera calls too often"));
}

TEST(ConnectionTest, OtherErrors_AreNotTriedAgain) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.get = [&](const v1::GetJobRequest&, v1::GetJobResponse*) {
    ++calls;
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
  };
  Connection connection = server.Connect();
  Captured captured;
  Get(connection, "7", Format::kTable, captured.io);
  EXPECT_EQ(calls, 1);
}

TEST(SubmitTest, Id_GoesToStdoutAlone) {
  FakeServer server;
  v1::JobDocument sent;
  server.submit = [&](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    sent = request.document();
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kSuccess);
  EXPECT_EQ(captured.out.str(), "job-7\n");
  EXPECT_EQ(captured.talk.str(), "submitted demo as job-7\n");
  EXPECT_EQ(sent.directory(), tests::SourceDir() + "/examples");
}

TEST(SubmitTest, Directory_IsOfTheClusterAndNeedNotBeHere) {
  FakeServer server;
  std::vector<std::string> sent;
  server.submit = [&](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    sent.push_back(request.document().directory());
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample, .directory = "/no/such/./folder/"}, stopper,
                   captured.io),
            kSuccess);
  EXPECT_NE(Submit(connection, {.file = kExample, .directory = "jobs"}, stopper, captured.io),
            kSuccess);
  EXPECT_THAT(sent, testing::ElementsAre("/no/such/folder"));
  EXPECT_THAT(captured.talk.str(), HasSubstr("error: --directory: jobs: must begin with /: it is a "
                                             "folder of the cluster's machines\n"));
}

TEST(SubmitTest, BadFile_IsNeverSent) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.submit = [&](const v1::SubmitJobRequest&, v1::SubmitJobResponse*) {
    ++calls;
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  const std::string bad = ::testing::TempDir() + "/bad.yaml";
  support::WriteFile(bad, "metadata: {name: X}\nspec: {stepz: 1}\n");
  EXPECT_EQ(Submit(connection, {.file = bad}, stopper, captured.io), kBadJobFile);
  EXPECT_EQ(calls, 0);
  EXPECT_THAT(captured.talk.str(),
              HasSubstr("spec.stepz: 1: unknown field; did you mean steps?\n"));
  EXPECT_THAT(captured.talk.str(), HasSubstr("metadata.name: X: "));
}

TEST(SubmitTest, LadderThatCannotBeMet_IsRefused_AndOneWithoutRungsIsWarnedOf) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.submit = [&](const v1::SubmitJobRequest&, v1::SubmitJobResponse* response) {
    ++calls;
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Stopper stopper;
  const auto submit = [&](const std::string& ladder, int code) {
    const std::string file = ::testing::TempDir() + "/ladder.yaml";
    support::WriteFile(
        file,
        absl::StrReplaceAll(support::ReadFile(kExample),
                            {{"\nspec:\n", "\nspec:\n  recovery: {ladder: " + ladder + "}\n"}}));
    Captured captured;
    EXPECT_EQ(Submit(connection, {.file = file}, stopper, captured.io), code);
    return captured.talk.str();
  };
  EXPECT_EQ(submit("[spare]", kBadJobFile),
            "spec.recovery.ladder: [spare]: none of its rungs can ever be taken: spare needs "
            "resources.spares; [] is for a job that ends with its first loss\n1 violation\n");
  EXPECT_EQ(calls, 0);
  EXPECT_THAT(submit("[]", kSuccess),
              StartsWith("warning: spec.recovery.ladder: the job tolerates no loss: it ends with "
                         "the first device that it loses\n"));
  EXPECT_EQ(calls, 1);
}

TEST(SubmitTest, ServersViolations_AreShownFieldByField) {
  FakeServer server;
  server.submit = [](const v1::SubmitJobRequest&, v1::SubmitJobResponse*) {
    google::rpc::BadRequest bad;
    for (const char* field : {"spec.steps", "spec.batch.global"}) {
      auto* violation = bad.add_field_violations();
      violation->set_field(field);
      violation->set_description("0\x1b[2J: must be more");
    }
    return WithDetails(grpc::StatusCode::INVALID_ARGUMENT, bad);
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kBadJobFile);
  EXPECT_EQ(captured.talk.str(),
            "spec.steps: 0 [2J: must be more\nspec.batch.global: 0 [2J: must be more\n"
            "2 violations\n");
}

TEST(SubmitTest, DryRun_AsksNobody) {
  Connection nobody({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(100)});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(nobody, {.file = kExample, .dry_run = true}, stopper, captured.io), kSuccess);
  EXPECT_EQ(captured.out.str(), "");
}

TEST(SubmitTest, Wait_EndsWithTheJobsOutcome) {
  FakeServer server;
  server.submit = [](const v1::SubmitJobRequest&, v1::SubmitJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  server.watch = [](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>* writer) {
    v1::WatchJobResponse response;
    *response.mutable_job() = AJob(v1::JOB_PHASE_FAILED, 3);
    response.mutable_job()->mutable_failure()->set_cause("RankKilled");
    response.mutable_job()->mutable_failure()->set_rank(2);
    response.mutable_job()->mutable_failure()->set_node("n1");
    response.mutable_job()->mutable_failure()->set_signal(9);
    writer->Write(response);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample, .wait = true}, stopper, captured.io), kJobFailed);
  EXPECT_THAT(captured.talk.str(), HasSubstr("RankKilled rank 2 on n1, signal 9\n"));
}

TEST(DescribeTest, TellsTheWholeStory) {
  FakeServer server;
  server.explain = [](const v1::ExplainJobRequest&, v1::ExplainJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    response->add_reasons("waits for 2 more devices; job-3 has them");
    return grpc::Status::OK;
  };
  server.events = [](const v1::ListEventsRequest&, v1::ListEventsResponse* response) {
    response->add_events()->set_type("Submitted");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured, why;
  EXPECT_EQ(Describe(connection, "7", Format::kTable, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(),
              HasSubstr("Why:           waits for 2 more devices; job-3 has them\n"));
  EXPECT_THAT(captured.out.str(), HasSubstr("Submitted"));
  EXPECT_EQ(Why(connection, "7", Format::kTable, why.io), kSuccess);
  EXPECT_EQ(why.out.str(), "job-7 is Queued\nwaits for 2 more devices; job-3 has them\n");
}

TEST(DescribeTest, FailedJob_SaysWhyOnce) {
  FakeServer server;
  server.explain = [](const v1::ExplainJobRequest&, v1::ExplainJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_FAILED);
    v1::FailureCause* failure = response->mutable_job()->mutable_failure();
    failure->set_cause("NonFinite");
    failure->set_message("rank 0: loss is not finite");
    response->add_reasons("NonFinite: rank 0: loss is not finite");
    response->add_reasons("what to do: lower the learning rate");
    return grpc::Status::OK;
  };
  server.events = [](const v1::ListEventsRequest&, v1::ListEventsResponse*) {
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Describe(connection, "7", Format::kTable, captured.io), kSuccess);
  const std::string text = captured.out.str();
  EXPECT_THAT(text, HasSubstr("loss is not finite"));
  EXPECT_EQ(text.find("loss is not finite"), text.rfind("loss is not finite")) << text;
  EXPECT_EQ(text.find("what to do"), text.rfind("what to do")) << text;
}

TEST(DeleteTest, SaysWhatIsGone) {
  FakeServer server;
  server.remove = [](const v1::DeleteJobRequest& request, v1::DeleteJobResponse* response) {
    EXPECT_EQ(request.job(), "demo");
    response->set_id(7);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured table, name;
  EXPECT_EQ(Delete(connection, "demo", Format::kTable, table.io), kSuccess);
  EXPECT_EQ(table.talk.str(), "deleted job-7\n");
  EXPECT_EQ(Delete(connection, "demo", Format::kName, name.io), kSuccess);
  EXPECT_EQ(name.out.str(), "job-7\n");
}

TEST(NodesTest, Free_CountsDevicesWithoutAJob) {
  FakeServer server;
  server.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    auto* node = response->add_nodes();
    node->set_name("n1");
    node->set_state(v1::NodeStatus::STATE_READY);
    node->set_device_kind("cpu");
    node->set_devices(3);
    node->add_device_jobs(7);
    node->add_device_jobs(0);
    node->add_device_jobs(0);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Nodes(connection, Format::kTable, captured.io), kSuccess);
  EXPECT_EQ(captured.out.str(),
            "NAME  STATE  KIND  DEVICES  FREE  HEARTBEAT\n"
            "n1    Ready  cpu   3        2     -\n");
}

TEST(NodesTest, HostMemory_IsShownWhereMoreIs) {
  FakeServer server;
  server.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    for (const int64_t bytes : {int64_t{0}, int64_t{96} << 30}) {
      auto* node = response->add_nodes();
      node->set_name(absl::StrCat("n", response->nodes_size()));
      node->set_state(v1::NodeStatus::STATE_READY);
      node->set_device_kind("cpu");
      node->set_devices(1);
      node->add_device_jobs(0);
      node->set_host_memory(bytes);
    }
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured wide, json;
  EXPECT_EQ(Nodes(connection, Format::kWide, wide.io), kSuccess);
  EXPECT_EQ(
      wide.out.str(),
      "NAME  STATE  KIND  DEVICES  FREE  HEARTBEAT  DOMAIN  JOBS  HOST MEMORY  LABELS  VERSION\n"
      "n1    Ready  cpu   1        1     -          n1      0     -\n"
      "n2    Ready  cpu   1        1     -          n2      0     96.0 GiB\n");
  EXPECT_EQ(Nodes(connection, Format::kJson, json.io), kSuccess);
  EXPECT_THAT(json.out.str(), HasSubstr("\"host_memory\": 103079215104"));
}

TEST(NodesTest, FailureDomain_IsShownWhereMoreIs) {
  FakeServer server;
  server.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    auto* node = response->add_nodes();
    node->set_name("n1");
    node->set_state(v1::NodeStatus::STATE_READY);
    node->set_device_kind("cpu");
    (*node->mutable_labels())["phalanx/failure-domain"] = "rack-7";
    (*node->mutable_labels())["zone"] = "b";
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured wide;
  EXPECT_EQ(Nodes(connection, Format::kWide, wide.io), kSuccess);
  EXPECT_THAT(wide.out.str(), HasSubstr("rack-7"));
  EXPECT_THAT(wide.out.str(), HasSubstr("zone=b"));
  EXPECT_THAT(wide.out.str(), Not(HasSubstr("failure-domain")));
}

TEST(EventsTest, TypeThatTheJobHasNot_IsAnsweredWithThoseThatThereAre) {
  FakeServer server;
  server.events = [](const v1::ListEventsRequest& request, v1::ListEventsResponse* response) {
    if (request.types_size() > 0) return grpc::Status::OK;
    for (const char* type : {"Submitted", "Planned", "Submitted"})
      response->add_events()->set_type(type);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Events(connection, {.job = "demo", .types = {"submitted"}}, captured.io), kSuccess);
  EXPECT_EQ(captured.talk.str(),
            "no such events\nthose of demo are of the types Planned, Submitted\n");
}

}  // namespace
}  // namespace phalanx::client
