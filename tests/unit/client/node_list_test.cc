// Nodes of large clusters, from coordinators of this release and of the one before.
#include "client/node_list.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/doctor.h"
#include "client/exit_code.h"
#include "client/node_commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;

// Of a cluster of 2,500 nodes, whose coordinator answers in pages unless it is of the release
// before.
class NodeListTest : public ::testing::Test {
 protected:
  static constexpr int kNodes = 2500;

  static std::string NameOf(int node) { return absl::StrFormat("node-%05d", node); }
  static void Add(int node, bool examined, v1::ListNodesResponse* response) {
    v1::NodeStatus& status = *response->add_nodes();
    status.set_name(NameOf(node));
    status.set_state(v1::NodeStatus::STATE_READY);
    status.set_version("1.0");
    if (!examined) return;
    v1::MachineFinding& finding = *status.mutable_examination()->add_findings();
    finding.set_check("limits");
    finding.set_verdict(v1::MachineFinding::VERDICT_WARNING);
    finding.set_found("open files 1024");
  }
  static grpc::Status OfTheReleaseBefore(const v1::ListNodesRequest& request,
                                         v1::ListNodesResponse* response) {
    for (int node = 0; node < kNodes; ++node)
      Add(node, request.examinations() && node < 1000, response);
    return grpc::Status::OK;
  }
  static grpc::Status OfThisRelease(const v1::ListNodesRequest& request,
                                    v1::ListNodesResponse* response) {
    for (int node = 0; node < kNodes; ++node) {
      if (!request.node().empty() && request.node() != NameOf(node)) continue;
      if (request.node().empty() && NameOf(node) <= request.page_token()) continue;
      if (request.page_size() > 0 && response->nodes_size() == request.page_size()) {
        response->set_next_page_token(response->nodes().rbegin()->name());
        break;
      }
      Add(node, request.examinations(), response);
    }
    return grpc::Status::OK;
  }
  NodeListTest() {
    server_.nodes = [this](const v1::ListNodesRequest& request, v1::ListNodesResponse* response) {
      requests_.push_back(request);
      return older_from_ <= requests_.size() ? OfTheReleaseBefore(request, response)
                                             : OfThisRelease(request, response);
    };
  }
  // All nodes, each once; how many of them have an examination.
  int64_t Examined() {
    const absl::StatusOr<std::vector<v1::NodeStatus>> nodes = ListNodes(connection_, true);
    EXPECT_TRUE(nodes.ok()) << nodes.status();
    if (!nodes.ok()) return -1;
    EXPECT_EQ(nodes->size(), static_cast<size_t>(kNodes));
    for (size_t i = 0; i < nodes->size(); ++i) {
      const std::string& name = (*nodes)[i].name();
      EXPECT_EQ(name, NameOf(static_cast<int>(i)));
      if (name != NameOf(static_cast<int>(i))) break;
    }
    return std::count_if(nodes->begin(), nodes->end(),
                         [](const v1::NodeStatus& node) { return node.has_examination(); });
  }

  FakeServer server_;
  std::vector<v1::ListNodesRequest> requests_;  // one at a time
  size_t older_from_ = 1000;                    // the request that the release before answers first
  Connection connection_ = server_.Connect();
  Captured captured_;
};

TEST_F(NodeListTest, Nodes_AreAskedForInPages) {
  EXPECT_EQ(Examined(), kNodes);
  EXPECT_EQ(requests_.size(), 3u);
  EXPECT_EQ(requests_.back().page_token(), NameOf(1999));
}

TEST_F(NodeListTest, CoordinatorOfTheReleaseBefore_AnswersOnceWithAll) {
  older_from_ = 1;
  EXPECT_EQ(Examined(), 1000);
  EXPECT_EQ(requests_.size(), 1u);
}

TEST_F(NodeListTest, CoordinatorOfTheReleaseBeforeThatLeadsMeanwhile_AddsNoNodeTwice) {
  older_from_ = 2;
  EXPECT_EQ(Examined(), 1000);
  EXPECT_EQ(requests_.size(), 2u);
}

TEST_F(NodeListTest, PagesThatDoNotGoOn_AreAnError) {
  server_.nodes = [this](const v1::ListNodesRequest& request, v1::ListNodesResponse* response) {
    requests_.push_back(request);
    if (request.page_token().empty()) Add(5, false, response);
    response->set_next_page_token(request.page_token() + "a");  // greater, but of an empty page
    return grpc::Status::OK;
  };
  EXPECT_EQ(ListNodes(connection_, true).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(requests_.size(), 2u);
}

TEST_F(NodeListTest, Doctor_KnowsOfEveryNode) {
  Doctor(connection_, {.version = "1.0", .format = Format::kWide}, captured_.io);
  EXPECT_THAT(captured_.out.str(), HasSubstr("all 2500 nodes: node-00000, node-00001, "));
}

TEST_F(NodeListTest, DescribedNode_IsAskedForAlone) {
  EXPECT_EQ(DescribeNode(connection_, NameOf(2400), Format::kTable, captured_.io), kSuccess);
  EXPECT_THAT(captured_.out.str(), HasSubstr("Machine:       limits: warning: open files 1024"));
  ASSERT_EQ(requests_.size(), 1u);
  EXPECT_EQ(requests_[0].node(), NameOf(2400));
}

TEST_F(NodeListTest, DescribedNode_IsFoundAmongAllThoseThatTheReleaseBeforeAnswersWith) {
  older_from_ = 1;
  EXPECT_EQ(DescribeNode(connection_, NameOf(900), Format::kTable, captured_.io), kSuccess);
  EXPECT_THAT(captured_.out.str(), HasSubstr("node-00900"));
  EXPECT_THAT(captured_.out.str(), HasSubstr("Machine:       limits: warning: open files 1024"));
  EXPECT_NE(DescribeNode(connection_, "nobody", Format::kTable, captured_.io), kSuccess);
  EXPECT_THAT(captured_.talk.str(), HasSubstr("there is no node \"nobody\""));
}

}  // namespace
}  // namespace phalanx::client
