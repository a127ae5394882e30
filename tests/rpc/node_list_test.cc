// Nodes with what was found of their machines: pages, one alone, and all in one answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/rpc/job_filter.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMessageBytesMax = 8 << 20;

class NodeListTest : public ::testing::Test {
 protected:
  // Nodes that found so many things, with a text of so many bytes each.
  void Publish(int nodes, int findings, size_t bytes) {
    auto examination = std::make_shared<job::NodeExamination>();
    for (int i = 0; i < findings; ++i) {
      examination->findings.push_back(
          {.check = absl::StrCat("check-", i), .found = std::string(bytes, 'x')});
    }
    for (int i = 0; i < nodes; ++i) {
      board_.Publish(PublishNode{
          std::make_shared<const NodeView>(NodeView{.name = absl::StrFormat("node-%05d", i),
                                                    .connected = true,
                                                    .device_jobs = std::vector<JobId>(8),
                                                    .examination = examination})});
    }
  }
  v1::ListNodesResponse Page(const v1::ListNodesRequest& request) {
    v1::ListNodesResponse response;
    const absl::Status status = ListNodes(board_, request, &response);
    EXPECT_TRUE(status.ok()) << status;
    return response;
  }
  static int Examined(const v1::ListNodesResponse& response) {
    int examined = 0;
    for (const v1::NodeStatus& node : response.nodes()) examined += node.has_examination() ? 1 : 0;
    return examined;
  }

  Board board_;
};

TEST_F(NodeListTest, PagesOfTenThousandNodes_HaveEachOnceWithItsExamination) {
  Publish(10'000, 10, 100);
  v1::ListNodesRequest request;
  request.set_examinations(true);
  request.set_page_size(1000);
  int nodes = 0;
  std::string last;
  do {
    const v1::ListNodesResponse page = Page(request);
    EXPECT_LE(page.nodes_size(), 1000);
    EXPECT_LT(page.ByteSizeLong(), kMessageBytesMax);
    EXPECT_EQ(Examined(page), page.nodes_size());
    for (const v1::NodeStatus& node : page.nodes()) {
      ASSERT_LT(last, node.name());
      last = node.name();
    }
    nodes += page.nodes_size();
    ASSERT_NE(page.nodes_size(), 0);
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(nodes, 10'000);
}

TEST_F(NodeListTest, PageOfNodesThatSayMuch_EndsEarlier) {
  Publish(1000, job::kFindingsMax, job::kFoundBytesMax + job::kNextBytesMax);
  v1::ListNodesRequest request;
  request.set_examinations(true);
  request.set_page_size(1000);
  const v1::ListNodesResponse page = Page(request);
  EXPECT_LT(page.nodes_size(), 1000);
  EXPECT_EQ(Examined(page), page.nodes_size());
  EXPECT_LT(page.ByteSizeLong(), kMessageBytesMax);
  EXPECT_EQ(page.next_page_token(), page.nodes().rbegin()->name());
  request.set_examinations(false);
  EXPECT_EQ(Page(request).nodes_size(), 1000);
}

TEST_F(NodeListTest, LastPage_SaysThatThereAreNoMore) {
  Publish(4, 1, 1);
  v1::ListNodesRequest request;
  request.set_page_size(2);
  v1::ListNodesResponse page = Page(request);
  EXPECT_EQ(page.nodes_size(), 2);
  EXPECT_EQ(Examined(page), 0);
  board_.Publish(RetractNode{page.nodes(1).name()});
  request.set_page_token(page.next_page_token());
  page = Page(request);
  ASSERT_EQ(page.nodes_size(), 2) << "whatever became of the node before";
  EXPECT_EQ(page.nodes(0).name(), "node-00002");
  EXPECT_EQ(page.next_page_token(), "");
}

TEST_F(NodeListTest, OneNode_HasItsExaminationHoweverManyThereAre) {
  Publish(10'000, 10, 100);
  v1::ListNodesRequest request;
  request.set_examinations(true);
  request.set_node("node-09999");
  const v1::ListNodesResponse found = Page(request);
  ASSERT_EQ(found.nodes_size(), 1);
  EXPECT_EQ(found.nodes(0).name(), "node-09999");
  EXPECT_EQ(found.nodes(0).examination().findings_size(), 10);
  request.set_node("node-0999");
  EXPECT_EQ(Page(request).nodes_size(), 0);
}

TEST_F(NodeListTest, ClientsOfTheReleaseBefore_GetAllNodesAndSomeExaminations) {
  Publish(10'000, 10, 100);
  v1::ListNodesRequest request;
  request.set_examinations(true);
  const v1::ListNodesResponse all = Page(request);
  EXPECT_EQ(all.nodes_size(), 10'000);
  EXPECT_EQ(all.next_page_token(), "");
  EXPECT_LT(all.ByteSizeLong(), kMessageBytesMax);
  EXPECT_GT(Examined(all), 3000);
  EXPECT_LT(Examined(all), 5000);
}

TEST_F(NodeListTest, PageSizeBelowZero_IsRefused) {
  v1::ListNodesRequest request;
  request.set_page_size(-1);
  v1::ListNodesResponse response;
  const absl::Status status = ListNodes(board_, request, &response);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("page_size: -1: must be 0 (then it is all) or more"));
}

}  // namespace
}  // namespace phalanx::coordinator
