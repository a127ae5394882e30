// What a person reads of nodes that are taken out of service.
#include "client/node_commands.h"

#include "client/commands.h"
#include "client/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;

TEST(NodeCommandsTest, Drain_SaysWhatBecomesOfEachJob) {
  FakeServer server;
  server.drain = [](const v1::DrainNodeRequest& request, v1::DrainNodeResponse* response) {
    EXPECT_EQ(request.node(), "a");
    EXPECT_EQ(request.reason(), "new fan");
    EXPECT_TRUE(request.force());
    response->mutable_node()->set_name("a");
    v1::JobOnNode* job = response->add_jobs();
    job->set_job(7);
    job->set_name("demo");
    job->set_what("saves its state, and then goes on elsewhere");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured, names;
  EXPECT_EQ(Drain(connection, {.node = "a", .reason = "new fan", .force = true}, captured.io),
            kSuccess);
  EXPECT_EQ(captured.talk.str(),
            "node a drains: nothing new is placed on it\n"
            "job-7 (demo) saves its state, and then goes on elsewhere\n");
  EXPECT_EQ(
      Drain(connection, {.node = "a", .reason = "new fan", .format = Format::kName, .force = true},
            names.io),
      kSuccess);
  EXPECT_EQ(names.out.str(), "a\n");
}

TEST(NodeCommandsTest, CordonAndUncordon_SayHowTheNodeIs) {
  FakeServer server;
  server.cordon = [](const v1::CordonNodeRequest& request, v1::CordonNodeResponse* response) {
    EXPECT_EQ(request.reason(), "new fan");
    response->mutable_node()->set_name(request.node());
    return grpc::Status::OK;
  };
  server.uncordon = [](const v1::UncordonNodeRequest& request, v1::UncordonNodeResponse* response) {
    response->mutable_node()->set_name(request.node());
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured cordoned, uncordoned;
  EXPECT_EQ(Cordon(connection, {.node = "a", .reason = "new fan"}, cordoned.io), kSuccess);
  EXPECT_EQ(cordoned.talk.str(),
            "node a is cordoned: its jobs go on, and nothing new is placed on it\n");
  EXPECT_EQ(Uncordon(connection, {.node = "a"}, uncordoned.io), kSuccess);
  EXPECT_EQ(uncordoned.talk.str(), "node a takes jobs again\n");
}

TEST(NodeCommandsTest, Nodes_ShowsTheMarkWithItsReason) {
  FakeServer server;
  server.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    for (const bool drains : {false, true}) {
      v1::NodeStatus* node = response->add_nodes();
      node->set_name(drains ? "b" : "a");
      node->set_state(v1::NodeStatus::STATE_READY);
      node->mutable_mark()->set_drains(drains);
      node->mutable_mark()->set_reason("new fan");
      node->mutable_mark()->set_by("ops");
    }
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Nodes(connection, Format::kTable, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), HasSubstr("Ready, cordoned by ops: new fan"));
  EXPECT_THAT(captured.out.str(), HasSubstr("Ready, drained by ops: new fan"));
}

}  // namespace
}  // namespace phalanx::client
