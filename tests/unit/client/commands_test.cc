// Commands against a server of the test's own: what they print and how they end.
#include "client/commands.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "client/incidents.h"
#include "client/list.h"
#include "core/job/failure.h"
#include "core/job/json.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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

TEST(ListTest, WithoutHeaders_TablesAreRows) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    *response->add_jobs() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  server.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    response->add_nodes()->set_name("n1");
    return grpc::Status::OK;
  };
  server.events = [](const v1::ListEventsRequest&, v1::ListEventsResponse* response) {
    response->add_events()->set_type("Submitted");
    return grpc::Status::OK;
  };
  server.incidents = [](const v1::ListIncidentsRequest&, v1::ListIncidentsResponse* response) {
    response->add_incidents()->set_number(1);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured jobs, nodes, events, incidents;
  for (Captured* captured : {&jobs, &nodes, &events, &incidents}) captured->io.headers = false;
  Stopper stopper;
  List(connection, {.format = Format::kTable}, stopper, jobs.io);
  Nodes(connection, Format::kTable, nodes.io);
  Events(connection, {.job = "7"}, events.io);
  IncidentsList(connection, "7", Format::kTable, incidents.io);
  EXPECT_THAT(jobs.out.str(), StartsWith("demo  job-7  Queued "));
  EXPECT_THAT(nodes.out.str(), StartsWith("n1 "));
  EXPECT_THAT(events.out.str(), AllOf(HasSubstr("Submitted"), Not(HasSubstr("TYPE"))));
  EXPECT_THAT(incidents.out.str(), StartsWith("1  "));
  for (const Captured* captured : {&jobs, &nodes, &events, &incidents}) {
    const std::string text = captured->out.str();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
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

TEST(DescribeTest, VariablesAreShown_AndOfSecretsTheFiles) {
  FakeServer server;
  server.explain = [](const v1::ExplainJobRequest&, v1::ExplainJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_RUNNING);
    return grpc::Status::OK;
  };
  server.events = [](const v1::ListEventsRequest&, v1::ListEventsResponse*) {
    return grpc::Status::OK;
  };
  server.get = [](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
    EXPECT_EQ(request.job(), "job-7");
    *response->mutable_job() = AJob(v1::JOB_PHASE_RUNNING);
    response->mutable_job()->mutable_document()->set_text(
        "spec:\n  secrets: {TOKEN: store-token}\n  env:\n    NCCL_DEBUG: INFO\n    EMPTY: \"\"\n");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Describe(connection, "demo", Format::kTable, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), HasSubstr("Variable:      NCCL_DEBUG=INFO\n"
                                            "Variable:      EMPTY=\n"
                                            "Secret:        TOKEN, of file store-token\n"));
}

TEST(DescribeTest, JobWithoutVariables_HasNoLineForThem) {
  FakeServer server;
  server.explain = [](const v1::ExplainJobRequest&, v1::ExplainJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_RUNNING);
    return grpc::Status::OK;
  };
  server.events = [](const v1::ListEventsRequest&, v1::ListEventsResponse*) {
    return grpc::Status::OK;
  };
  server.get = [](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_RUNNING);
    response->mutable_job()->mutable_document()->set_text("spec: {steps: 10, env: {}}\n");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Describe(connection, "demo", Format::kTable, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), Not(HasSubstr("Variable")));
  EXPECT_THAT(captured.out.str(), Not(HasSubstr("Secret")));
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
  Captured name;
  EXPECT_EQ(Describe(connection, "7", Format::kName, name.io), kSuccess);
  EXPECT_EQ(name.out.str(), "job-7\n") << "as get -o name";
}

v1::Incident ALossOf(int32_t rank, const std::string& summary) {
  v1::Incident incident;
  incident.set_kind(v1::Incident::LOSS);
  incident.set_number(rank);
  incident.mutable_cause()->set_cause("RankKilled");
  incident.mutable_cause()->set_rank(rank);
  incident.mutable_cause()->set_node("b");
  incident.set_device(rank + 4);
  incident.set_device_kind("gpu");
  incident.set_summary(summary);
  return incident;
}

TEST(DescribeTest, FailedJob_NamesItsDeviceAndWhatWasTried) {
  FakeServer server;
  server.explain = [](const v1::ExplainJobRequest&, v1::ExplainJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_FAILED);
    *response->mutable_job()->mutable_failure() = ALossOf(2, "").cause();
    return grpc::Status::OK;
  };
  server.events = [](const v1::ListEventsRequest&, v1::ListEventsResponse*) {
    return grpc::Status::OK;
  };
  server.incidents = [](const v1::ListIncidentsRequest& request,
                        v1::ListIncidentsResponse* response) {
    EXPECT_EQ(request.job(), "7");
    *response->add_incidents() = ALossOf(1, "rank 1 died; language tp 2 -> 1");
    v1::Incident::Phase& back = *response->mutable_incidents(0)->add_phases();
    back.set_name("resumed");
    back.set_end(1'000'000);
    *response->add_incidents() = ALossOf(2, "rank 2 died");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Describe(connection, "7", Format::kTable, captured.io), kSuccess);
  const std::string text = captured.out.str();
  EXPECT_THAT(text, HasSubstr("Device:        GPU 6 of node b\n"));
  EXPECT_THAT(text, HasSubstr(", incident 1: rank 1 died; language tp 2 -> 1\n"));
  EXPECT_EQ(text.find("rank 2 died"), std::string::npos) << text;
}

// What happened, when, on which device, what was tried, what to do next.
TEST(DescribeTest, FailedJob_OfEveryKind_TellsItsFiveParts) {
  for (const job::FailureTraits& kind : job::AllFailures()) {
    for (const int32_t rank : {-1, 4}) {
      FakeServer server;
      server.explain = [&](const v1::ExplainJobRequest&, v1::ExplainJobResponse* response) {
        v1::JobStatus& job = *response->mutable_job();
        job = AJob(v1::JOB_PHASE_FAILED, rank < 0 ? 0 : 7);
        job.mutable_ended()->set_seconds(1'700'000'100);
        v1::NodeDevices& a = *job.mutable_placement()->add_nodes();
        a.set_node("a");
        for (const int32_t device : {0, 1, 2}) a.add_devices(device);
        v1::NodeDevices& b = *job.mutable_placement()->add_nodes();
        b.set_node("b");
        for (const int32_t device : {5, 6, 7}) b.add_devices(device);
        job.mutable_failure()->set_cause(std::string(kind.name));
        job.mutable_failure()->set_message("what was seen");
        job.mutable_failure()->set_rank(rank);
        job.mutable_failure()->set_node("b");
        return grpc::Status::OK;
      };
      server.events = [](const v1::ListEventsRequest&, v1::ListEventsResponse*) {
        return grpc::Status::OK;
      };
      server.incidents = [](const v1::ListIncidentsRequest&, v1::ListIncidentsResponse*) {
        return grpc::Status::OK;
      };
      Connection connection = server.Connect();
      Captured captured;
      EXPECT_EQ(Describe(connection, "7", Format::kTable, captured.io), kSuccess);
      const std::string text = captured.out.str();
      EXPECT_THAT(text, HasSubstr(absl::StrCat("Failure:       ", kind.name,
                                               rank < 0 ? "" : " rank 4", " on b\n")));
      EXPECT_THAT(text, HasSubstr("Failure:       what was seen\n"));
      EXPECT_THAT(text, HasSubstr("Ended:         2023-11-1"));
      EXPECT_THAT(text, HasSubstr(absl::StrCat("Failure:       what to do: ", kind.next, "\n")));
      EXPECT_THAT(text, HasSubstr(rank < 0 ? "Tried:         nothing: no step was trained\n"
                                           : "Device:        device 6 of node b\n"
                                             "Tried:         nothing: no loss came before this "
                                             "one\n"));
      EXPECT_EQ(absl::StrContains(text, "Device: "), rank >= 0) << text;
    }
  }
}

TEST(DescribeTest, IncidentsThatAreNotTold_AreNotKnown) {
  FakeServer server;
  server.explain = [](const v1::ExplainJobRequest&, v1::ExplainJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_FAILED);
    *response->mutable_job()->mutable_failure() = ALossOf(2, "").cause();
    return grpc::Status::OK;
  };
  server.events = [](const v1::ListEventsRequest&, v1::ListEventsResponse*) {
    return grpc::Status::OK;
  };
  server.incidents = [](const v1::ListIncidentsRequest&, v1::ListIncidentsResponse*) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "its entry is damaged");
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Describe(connection, "7", Format::kTable, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), HasSubstr("Tried:         not known: its entry is damaged\n"));
  EXPECT_THAT(captured.out.str(), Not(HasSubstr("Tried:         nothing")));
}

TEST(DescribeTest, DeviceThatIsNotTheFailedRanks_IsNotNamed) {
  FakeServer server;
  server.explain = [](const v1::ExplainJobRequest&, v1::ExplainJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_FAILED);
    *response->mutable_job()->mutable_failure() = ALossOf(0, "").cause();  // on node b
    v1::NodeDevices& a = *response->mutable_job()->mutable_placement()->add_nodes();
    a.set_node("a");
    a.add_devices(3);
    return grpc::Status::OK;
  };
  server.events = [](const v1::ListEventsRequest&, v1::ListEventsResponse*) {
    return grpc::Status::OK;
  };
  server.incidents = [](const v1::ListIncidentsRequest&, v1::ListIncidentsResponse*) {
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Describe(connection, "7", Format::kTable, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), Not(HasSubstr("Device: ")));
}

TEST(DeleteTest, SaysWhatIsGone) {
  FakeServer server;
  server.get = [](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
    EXPECT_EQ(request.job(), "demo");
    response->mutable_job()->set_id(7);
    return grpc::Status::OK;
  };
  server.remove = [](const v1::DeleteJobRequest& request, v1::DeleteJobResponse* response) {
    EXPECT_EQ(request.job(), "job-7");
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

// A coordinator that dies between the deletion and its answer.
TEST(DeleteTest, AnswerThatIsLost_DeletesNoOlderJobOfTheName) {
  FakeServer server;
  std::vector<int64_t> jobs = {3, 7};  // of the name
  server.get = [&](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    response->mutable_job()->set_id(jobs.back());
    return grpc::Status::OK;
  };
  server.remove = [&](const v1::DeleteJobRequest& request, v1::DeleteJobResponse*) {
    const auto named = std::find_if(jobs.begin(), jobs.end(), [&](int64_t id) {
      return request.job() == absl::StrCat("job-", id);
    });
    if (named == jobs.end() && request.job() != "demo")
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no job " + request.job());
    jobs.erase(named == jobs.end() ? jobs.end() - 1 : named);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "");
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Delete(connection, "demo", Format::kTable, captured.io), kSuccess);
  EXPECT_EQ(captured.talk.str(), "deleted job-7\n");
  EXPECT_THAT(jobs, ElementsAre(3));
}

TEST(DeleteTest, JobThatCannotBeRead_IsDeletedByItsName) {
  FakeServer server;
  server.get = [](const v1::GetJobRequest&, v1::GetJobResponse*) {
    return grpc::Status(grpc::StatusCode::DATA_LOSS, "the entry of job-7 is damaged");
  };
  server.remove = [](const v1::DeleteJobRequest& request, v1::DeleteJobResponse* response) {
    EXPECT_EQ(request.job(), "demo");
    response->set_id(7);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Delete(connection, "demo", Format::kTable, captured.io), kSuccess);
  EXPECT_EQ(captured.talk.str(), "deleted job-7\n");
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
