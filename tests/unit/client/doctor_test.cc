// What `phalanx doctor` says of clusters that a test describes.
#include "client/doctor.h"

#include <string>
#include <vector>

#include "client/exit_code.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/finding_of.h"

namespace phalanx::client {
namespace {

using job::Finding;
using ::testing::HasSubstr;
using Verdict = Finding::Verdict;

v1::NodeStatus Node(const std::string& name, absl::Time heartbeat) {
  v1::NodeStatus node;
  node.set_name(name);
  node.set_state(v1::NodeStatus::STATE_READY);
  node.set_devices(8);
  node.set_version("1.0");
  node.mutable_last_heartbeat()->set_seconds(absl::ToUnixSeconds(heartbeat));
  return node;
}

TEST(DoctorTest, Cluster_NodesThatAreAwayAndVersionsThatDiffer) {
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  std::vector<v1::NodeStatus> nodes = {Node("a", now), Node("b", now - absl::Seconds(1))};
  for (const Finding& finding : ExamineCluster(nodes, "1.0", now)) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.found;
  }
  nodes[1].set_state(v1::NodeStatus::STATE_DISCONNECTED);
  nodes[1].set_version("0.9");
  const std::vector<Finding> findings = ExamineCluster(nodes, "1.0", now);
  EXPECT_EQ(FindingOf(findings, "nodes").verdict, Verdict::kProblem);
  EXPECT_EQ(FindingOf(findings, "nodes").found, "2 with 16 devices; disconnected: b");
  EXPECT_EQ(FindingOf(findings, "versions").found, "this client is 1.0; others: b 0.9");
  EXPECT_EQ(FindingOf(ExamineCluster({}, "1.0", now), "nodes").verdict, Verdict::kProblem);
  EXPECT_EQ(FindingOf(ExamineCluster({}, "1.0", now), "versions").verdict, Verdict::kSkipped);
}

TEST(DoctorTest, Cluster_ClocksThatAreApart_AreToldOf) {
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  const Finding ahead =
      FindingOf(ExamineCluster({Node("a", now + absl::Seconds(90))}, "1.0", now), "clocks");
  EXPECT_EQ(ahead.verdict, Verdict::kWarning);
  EXPECT_EQ(ahead.found, "by this machine's clock the newest heartbeat is 90 s in the future");
}

TEST(DoctorTest, CoordinatorThatDoesNotAnswer_IsAProblemAndTheMachineIsToldOfAllTheSame) {
  Connection nobody({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(200)});
  Captured table, json;
  EXPECT_EQ(Doctor(nobody, {.version = "1.0"}, table.io), kFailure);
  EXPECT_THAT(table.out.str(), HasSubstr("coordinator    problem"));
  EXPECT_THAT(table.out.str(), HasSubstr("\nports "));
  EXPECT_EQ(Doctor(nobody, {.version = "1.0", .format = Format::kJson}, json.io), kFailure);
  EXPECT_THAT(json.out.str(), HasSubstr("\"check\": \"coordinator\""));
  EXPECT_TRUE(wire::ParseYaml(json.out.str()).ok());
}

// Of a coordinator that answers, no firewall is to be looked for.
TEST(DoctorTest, CoordinatorThatSaysWhyItDoesNotServe_IsNotTakenForSilent) {
  FakeServer server;
  server.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse*) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE,
                        "the store is full; ask again when that has changed");
  };
  Connection connection({.server = server.address(), .timeout = absl::Milliseconds(200)});
  Captured table;
  EXPECT_EQ(Doctor(connection, {.version = "1.0"}, table.io), kFailure);
  EXPECT_THAT(table.out.str(), HasSubstr("the store is full"));
  EXPECT_THAT(table.out.str(), Not(HasSubstr("no firewall is between")));
}

TEST(DoctorTest, CoordinatorThatAcceptsNothing_IsAProblem) {
  FakeServer server;
  server.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    response->set_store_fault("the store is full, nothing is accepted until it works again");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured table;
  EXPECT_EQ(Doctor(connection, {.version = "1.0"}, table.io), kFailure);
  EXPECT_THAT(table.out.str(), HasSubstr("answers and changes nothing: the store is full"));
  EXPECT_THAT(table.out.str(), HasSubstr("coordinator: make room on the disk of its --store"));
}

TEST(DoctorTest, Cluster_HasALineForEachCheckOfItsNodes_AndFailsOfAProblemThere) {
  FakeServer server;
  server.nodes = [](const v1::ListNodesRequest& request, v1::ListNodesResponse* response) {
    EXPECT_TRUE(request.examinations());
    for (const char* name : {"node-1", "node-2"}) {
      v1::NodeStatus& node = *response->add_nodes();
      node = Node(name, absl::Now());
      v1::MachineFinding& finding = *node.mutable_examination()->add_findings();
      finding.set_check("folders");
      finding.set_verdict(v1::MachineFinding::VERDICT_PROBLEM);
      finding.set_found("/data: No such file or directory");
      finding.set_next("mount it");
    }
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured table, names;
  EXPECT_EQ(Doctor(connection, {.version = "1.0"}, table.io), kFailure);
  EXPECT_THAT(table.out.str(), HasSubstr("all 2 nodes: node-1, node-2: /data: No such file"));
  EXPECT_THAT(table.out.str(), HasSubstr("\nnode folders: mount it\n"));
  EXPECT_EQ(Doctor(connection, {.version = "1.0", .format = Format::kName}, names.io), kFailure);
  EXPECT_THAT(names.out.str(), HasSubstr("node folders\n"));
}

}  // namespace
}  // namespace phalanx::client
