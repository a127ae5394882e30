// What the nodes of a cluster found of their machines, in a line a check.
#include "client/doctor_nodes.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/finding_of.h"

namespace phalanx::client {
namespace {

using job::Finding;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Verdict = Finding::Verdict;
constexpr auto kOk = v1::MachineFinding::VERDICT_OK;
constexpr auto kSkipped = v1::MachineFinding::VERDICT_SKIPPED;
constexpr auto kWarning = v1::MachineFinding::VERDICT_WARNING;
constexpr auto kProblem = v1::MachineFinding::VERDICT_PROBLEM;

void Say(v1::NodeStatus& node, const std::string& check, v1::MachineFinding::Verdict verdict,
         const std::string& found, const std::string& next = "") {
  v1::MachineFinding& finding = *node.mutable_examination()->add_findings();
  finding.set_check(check);
  finding.set_verdict(verdict);
  finding.set_found(found);
  finding.set_next(next);
}

// Named node-1, node-2, ..., whose machines are as they should be.
std::vector<v1::NodeStatus> SoundNodes(int count) {
  std::vector<v1::NodeStatus> nodes;
  for (int i = 1; i <= count; ++i) {
    v1::NodeStatus& node = nodes.emplace_back();
    node.set_name(absl::StrCat("node-", i));
    Say(node, "driver", kSkipped, "no NVIDIA GPU here");
    Say(node, "limits", kOk, absl::StrCat("open files ", 100'000 + i));
    Say(node, "clock", kOk, "the kernel keeps it");
  }
  return nodes;
}

v1::MachineFinding& LimitsOf(v1::NodeStatus& node) {
  return *node.mutable_examination()->mutable_findings(1);
}

TEST(DoctorNodesTest, FoldersThatNodesDoNotShare_AreNamed) {
  const std::string one = "0123456789abcdef", other = "fedcba9876543210", third(16, '3');
  std::vector<v1::NodeStatus> nodes = SoundNodes(3);
  const auto say = [&nodes](const std::vector<std::string>& found) {
    for (size_t i = 0; i < nodes.size(); ++i) Say(nodes[i], "same folders", kOk, found[i]);
  };
  say({absl::StrCat("/srv is ", one, " on the network"),
       absl::StrCat("/srv is ", one, " on the network"), absl::StrCat("/srv is ", one)});
  EXPECT_EQ(FindingOf(ExamineNodes(nodes), "node same folders"),
            (Finding{.check = "node same folders", .found = "3 nodes have the same /srv"}));

  nodes = SoundNodes(3);
  say({absl::StrCat("/srv is ", one, " on the network; /of-one is ", one),
       absl::StrCat("/srv is ", one, " on the network; /disk is ", third),
       absl::StrCat("/srv is ", other, "; /disk is ", one)});
  const Finding differ = FindingOf(ExamineNodes(nodes), "node same folders");
  EXPECT_EQ(differ.verdict, Verdict::kWarning);
  EXPECT_EQ(differ.found,
            "/srv is one folder on node-1, node-2, another one on node-3; /disk is one folder on "
            "node-2, another one on node-3");
  EXPECT_THAT(differ.next, HasSubstr("all of them mount"));

  nodes = SoundNodes(2);
  say({absl::StrCat("/disk is ", one), absl::StrCat("/disk is ", other)});
  EXPECT_EQ(FindingOf(ExamineNodes(nodes), "node same folders").verdict, Verdict::kOk)
      << "each has its own disk";
  nodes = SoundNodes(2);
  say({"/disk is no mark", absl::StrCat("/disk is ", other, "; /disk is ", other)});
  for (const Finding& finding : ExamineNodes(nodes)) EXPECT_NE(finding.check, "node same folders");
}

TEST(DoctorNodesTest, SoundNodes_HaveALineACheck_InAFixedOrder) {
  const std::vector<Finding> findings = ExamineNodes(SoundNodes(64));
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0], (Finding{.check = "node driver",
                                  .verdict = Verdict::kSkipped,
                                  .found = "all 64 nodes: no NVIDIA GPU here"}));
  EXPECT_EQ(findings[1], (Finding{.check = "node limits", .found = "all 64 nodes"}));
  EXPECT_EQ(findings[2],
            (Finding{.check = "node clock", .found = "all 64 nodes: the kernel keeps it"}));
}

TEST(DoctorNodesTest, NodesThatHaveTheSame_AreNamedOnce) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(64);
  for (const size_t i : {2u, 6u}) {
    LimitsOf(nodes[i]).set_verdict(kWarning);
    LimitsOf(nodes[i]).set_found("open files 1024");
    LimitsOf(nodes[i]).set_next("ulimit -Hn 16384");
  }
  const Finding limits = FindingOf(ExamineNodes(nodes), "node limits");
  EXPECT_EQ(limits.verdict, Verdict::kWarning);
  EXPECT_EQ(limits.found, "2 of 64 nodes: node-3, node-7: open files 1024");
  EXPECT_EQ(limits.next, "ulimit -Hn 16384");
}

TEST(DoctorNodesTest, NodesThatHaveDifferentThings_AreNamed_WithThatOfTheFirst) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(4);
  for (const int i : {0, 1}) {
    LimitsOf(nodes[static_cast<size_t>(i)]).set_verdict(kWarning);
    LimitsOf(nodes[static_cast<size_t>(i)]).set_found(absl::StrCat("open files ", i));
  }
  EXPECT_EQ(FindingOf(ExamineNodes(nodes), "node limits").found,
            "2 of 4 nodes: node-1, node-2; node-1: open files 0");
}

TEST(DoctorNodesTest, AProblem_ComesBeforeWarnings_WhichAreCounted) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(3);
  LimitsOf(nodes[0]).set_verdict(kWarning);
  LimitsOf(nodes[1]).set_verdict(kProblem);
  LimitsOf(nodes[1]).set_found("none");
  LimitsOf(nodes[2]).set_verdict(kWarning);
  const Finding limits = FindingOf(ExamineNodes(nodes), "node limits");
  EXPECT_EQ(limits.verdict, Verdict::kProblem);
  EXPECT_EQ(limits.found, "1 of 3 nodes: node-2: none; a warning on 2 more");
}

TEST(DoctorNodesTest, AdviceForSeveralNodes_IsOfNoUseToOne) {
  for (const int count : {1, 2}) {
    std::vector<v1::NodeStatus> nodes = SoundNodes(count);
    for (v1::NodeStatus& node : nodes) Say(node, "folders", kOk, "/srv is here", "share it");
    EXPECT_EQ(FindingOf(ExamineNodes(nodes), "node folders").next, count == 1 ? "" : "share it");
  }
}

TEST(DoctorNodesTest, NodesWithDifferentVersionsOfNccl_AreWarnedOf) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(3);
  for (v1::NodeStatus& node : nodes) Say(node, "nccl", kOk, "NCCL 2.27.3");
  EXPECT_EQ(FindingOf(ExamineNodes(nodes), "node nccl").found, "all 3 nodes: NCCL 2.27.3");
  nodes[1].mutable_examination()->mutable_findings(3)->set_found("NCCL 2.21.5");
  const Finding nccl = FindingOf(ExamineNodes(nodes), "node nccl");
  EXPECT_EQ(nccl.verdict, Verdict::kWarning);
  EXPECT_EQ(nccl.found, "nodes differ: NCCL 2.21.5 on node-2, NCCL 2.27.3 on node-1, node-3");
  EXPECT_THAT(nccl.next, HasSubstr("install one version"));
}

TEST(DoctorNodesTest, HundredsOfNodes_FitInALine) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(500);
  for (v1::NodeStatus& node : nodes) {
    LimitsOf(node).set_verdict(kWarning);
    LimitsOf(node).set_found(std::string(256, 'x'));
  }
  const std::vector<Finding> findings = ExamineNodes(nodes);
  EXPECT_EQ(findings.size(), 3u);
  const std::string found = FindingOf(findings, "node limits").found;
  EXPECT_THAT(found, HasSubstr("node-1, node-2, node-3, node-4 and 496 more: xxx"));
  EXPECT_LT(found.size(), 250u);
}

TEST(DoctorNodesTest, WorkersOfTheReleaseBefore_AreUnknown_AndNoTrouble) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(3);
  nodes[1].clear_examination();
  EXPECT_EQ(FindingOf(ExamineNodes(nodes), "node limits").found, "2 of 3 nodes; 1 unknown");
  for (v1::NodeStatus& node : nodes) node.clear_examination();
  const std::vector<Finding> findings = ExamineNodes(nodes);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].check, "node machines");
  EXPECT_EQ(findings[0].verdict, Verdict::kSkipped);
  EXPECT_THAT(findings[0].found, HasSubstr("all 3 nodes unknown"));
  EXPECT_THAT(ExamineNodes({}), IsEmpty());
}

TEST(DoctorNodesTest, WorkersThatMakeUpChecks_DoNotFillTheScreen) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(100);
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (int check = 0; check < 10; ++check)
      Say(nodes[i], absl::StrCat("made-up-", i, "-", check), kProblem, "");
  }
  const std::vector<Finding> findings = ExamineNodes(nodes);
  EXPECT_EQ(findings.size(), static_cast<size_t>(job::kFindingsMax));
  EXPECT_EQ(findings[0].check, "node driver");
}

TEST(DoctorNodesTest, ClockThatIsOff_IsAWarning_WhateverItsKernelSays) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(3);
  nodes[0].mutable_examination()->set_clock_ahead_min_seconds(90);
  nodes[0].mutable_examination()->set_clock_ahead_max_seconds(91);
  const Finding clock = FindingOf(ExamineNodes(nodes), "node clock");
  EXPECT_EQ(clock.verdict, Verdict::kWarning);
  EXPECT_EQ(clock.found,
            "1 of 3 nodes: node-1: 90 s ahead of the coordinator's (the kernel keeps it)");
  EXPECT_THAT(clock.next, HasSubstr("synchronise"));
  nodes[0].mutable_examination()->set_clock_ahead_min_seconds(-62);
  nodes[0].mutable_examination()->set_clock_ahead_max_seconds(-61);
  EXPECT_THAT(FindingOf(ExamineNodes(nodes), "node clock").found,
              HasSubstr("61 s behind the coordinator's"));
}

TEST(DoctorNodesTest, ExaminationThatHangs_IsAWarning) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(2);
  nodes[1].mutable_last_heartbeat()->set_seconds(20'000);
  nodes[1].mutable_examination()->mutable_received()->set_seconds(20'000 - 24 * 60);
  EXPECT_EQ(ExamineNodes(nodes).back().check, "node clock");
  nodes[1].mutable_examination()->mutable_received()->set_seconds(20'000 - 26 * 60);
  const Finding hangs = FindingOf(ExamineNodes(nodes), "node examination");
  EXPECT_EQ(hangs.verdict, Verdict::kWarning);
  EXPECT_THAT(hangs.found, HasSubstr("26m00s before the last heartbeat"));
  EXPECT_THAT(hangs.next, HasSubstr("does not answer"));
}

TEST(DoctorNodesTest, NodeThatIsAway_SaysNothing) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(2);
  LimitsOf(nodes[1]).set_verdict(kWarning);
  nodes[1].set_state(v1::NodeStatus::STATE_DISCONNECTED);
  const Finding limits = FindingOf(ExamineNodes(nodes), "node limits");
  EXPECT_EQ(limits.verdict, Verdict::kOk);
  EXPECT_THAT(limits.found, HasSubstr("1 of 2 nodes: "));
  EXPECT_THAT(limits.found, HasSubstr("; 1 unknown"));
}

TEST(DoctorNodesTest, ClockThatMayBeRight_IsNotBlamed) {
  std::vector<v1::NodeStatus> nodes = SoundNodes(1);
  // Its message took up to a minute.
  nodes[0].mutable_examination()->set_clock_ahead_min_seconds(-60);
  nodes[0].mutable_examination()->set_clock_ahead_max_seconds(0);
  EXPECT_EQ(FindingOf(ExamineNodes(nodes), "node clock").verdict, Verdict::kOk);
}

TEST(DoctorNodesTest, ClockOfANode_ThatSaysNothingOfItsKernels_IsComparedAllTheSame) {
  v1::NodeStatus node;
  node.mutable_examination()->set_clock_ahead_min_seconds(7);
  node.mutable_examination()->set_clock_ahead_max_seconds(7);
  const std::vector<Finding> findings = FindingsOf(node);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].found, "7 s ahead of the coordinator's");
}

}  // namespace
}  // namespace phalanx::client
