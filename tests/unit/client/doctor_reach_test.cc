// Whether nodes reach each other, as a coordinator that a test describes says.
#include "client/doctor_reach.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using job::Finding;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Verdict = Finding::Verdict;

v1::NodeStatus ReadyNode(const std::string& name, const std::string& kind = "cpu") {
  v1::NodeStatus node;
  node.set_name(name);
  node.set_state(v1::NodeStatus::STATE_READY);
  node.set_device_kind(kind);
  return node;
}

std::vector<v1::NodeStatus> ReadyNodes(int count) {
  std::vector<v1::NodeStatus> nodes;
  for (int i = 1; i <= count; ++i) nodes.push_back(ReadyNode(absl::StrCat("n", i)));
  return nodes;
}

class DoctorReachTest : public ::testing::Test {
 protected:
  DoctorReachTest() {
    server_.reach = [this](const v1::TryConnectionRequest& request,
                           v1::TryConnectionResponse* response) {
      asked_.push_back(absl::StrCat(request.from(), ">", request.to()));
      if (const auto fault = faults_.find(asked_.back()); fault != faults_.end())
        response->set_fault(fault->second);
      if (const auto error = errors_.find(asked_.back()); error != errors_.end())
        return error->second;
      return grpc::Status::OK;
    };
  }
  Finding Examine(const std::vector<v1::NodeStatus>& nodes, const ReachOptions& options = {}) {
    Connection connection = server_.Connect();
    return ExamineReach(connection, nodes, options);
  }

  FakeServer server_;
  std::vector<std::string> asked_;  // "n1>n2"
  std::map<std::string, std::string> faults_;
  std::map<std::string, grpc::Status> errors_;
};

TEST_F(DoctorReachTest, Rings_AreOfNodesOfOneKind_ThatAreThere) {
  std::vector<v1::NodeStatus> nodes = {ReadyNode("a"), ReadyNode("b", "gpu"),
                                       ReadyNode("c"), ReadyNode("d", "gpu"),
                                       ReadyNode("e"), ReadyNode("f", "tpu")};
  nodes[4].set_state(v1::NodeStatus::STATE_DISCONNECTED);
  EXPECT_THAT(RingsOf(nodes), ElementsAre(NodePair{"a", "c"}, NodePair{"c", "a"},
                                          NodePair{"b", "d"}, NodePair{"d", "b"}));
  EXPECT_THAT(RingsOf({}), IsEmpty());
}

TEST_F(DoctorReachTest, NodesThatReachEachOther) {
  EXPECT_EQ(Examine(ReadyNodes(3)),
            (Finding{.check = "node reach",
                     .verdict = Verdict::kOk,
                     .found = "all 3 nodes reach the next one where its ranks would listen"}));
  EXPECT_THAT(asked_, ElementsAre("n1>n2", "n2>n3", "n3>n1"));
}

TEST_F(DoctorReachTest, OneThatIsNotReached_IsAProblem_WithWhatToDo) {
  faults_["n2>n3"] = "n2 does not reach n3 at 10.0.0.3:40123: Connection refused";
  const Finding finding = Examine(ReadyNodes(3));
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_EQ(finding.found,
            "n2 does not reach n3 at 10.0.0.3:40123: Connection refused; 2 reach the next one");
  EXPECT_THAT(finding.next, HasSubstr("would not find each other: start the worker"));
}

TEST_F(DoctorReachTest, Many_AreCounted) {
  for (int i = 1; i <= 9; ++i)
    faults_[absl::StrCat("n", i, ">n", i % 9 + 1)] = absl::StrCat(i, std::string(1000, 'x'));
  const std::string found = Examine(ReadyNodes(9)).found;
  EXPECT_THAT(found, EndsWith("; 5 more do not, either"));
  EXPECT_LT(found.size(), 1200u);
}

TEST_F(DoctorReachTest, LargeClusters_AreTriedHereAndThere) {
  EXPECT_THAT(Examine(ReadyNodes(500)).found,
              ::testing::StrEq("32 of 500 nodes reach the next one where its ranks would listen; "
                               "468 not tried"));
  ASSERT_EQ(asked_.size(), 32u);
  EXPECT_EQ(asked_.front(), "n1>n2");
  EXPECT_EQ(asked_.back(), "n485>n486");
}

TEST_F(DoctorReachTest, TimeThatIsOver_EndsIt) {
  const Finding finding = Examine(ReadyNodes(3), {.time_max = absl::ZeroDuration()});
  EXPECT_EQ(finding.verdict, Verdict::kSkipped);
  EXPECT_EQ(finding.found, "nobody can tell; 3 not tried");
}

TEST_F(DoctorReachTest, PairsOfWhichNobodyCanTell_AreNoTrouble) {
  errors_["n1>n2"] = {grpc::StatusCode::FAILED_PRECONDITION, "the worker of node n2 is older"};
  const Finding finding = Examine(ReadyNodes(2));
  EXPECT_EQ(finding.verdict, Verdict::kOk);
  EXPECT_EQ(finding.found,
            "1 of 2 nodes reach the next one where its ranks would listen; 1 unknown: the worker "
            "of node n2 is older");
}

TEST_F(DoctorReachTest, WhoeverMayNot_OrAsksAnOlderCoordinator_IsToldOnce) {
  errors_["n1>n2"] = {grpc::StatusCode::PERMISSION_DENIED, "TryConnection is for operator"};
  EXPECT_EQ(Examine(ReadyNodes(3)), (Finding{.check = "node reach",
                                             .verdict = Verdict::kSkipped,
                                             .found = "TryConnection is for operator"}));
  errors_["n1>n2"] = {grpc::StatusCode::UNIMPLEMENTED, ""};
  EXPECT_EQ(Examine(ReadyNodes(3)).found,
            "this coordinator is of a release that tries no connections");
  EXPECT_THAT(asked_, ElementsAre("n1>n2", "n1>n2"));
}

TEST_F(DoctorReachTest, OneNode_HasNobodyToReach) {
  EXPECT_EQ(Examine(ReadyNodes(1)).verdict, Verdict::kSkipped);
  EXPECT_THAT(asked_, IsEmpty());
}

}  // namespace
}  // namespace phalanx::client
