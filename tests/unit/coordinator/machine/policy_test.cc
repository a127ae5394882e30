// Every failure and what becomes of the job.
#include "coordinator/machine/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using ::testing::HasSubstr;

struct Situation {
  bool assigned = false;  // node b has ranks
  bool back = true;       // node b has a session
  bool may_wait = true;
};

// Of a run on nodes a, which has ranks, and b.
Decision DecideOn(const std::vector<Loss>& losses, const Situation& situation) {
  Run run;
  run.teams = {{.node = "a", .devices = {0}, .assigned = true},
               {.node = "b", .devices = {0}, .first_rank = 1, .assigned = situation.assigned}};
  NodeTable cluster;
  cluster["a"].session = SessionId{1};
  cluster["b"].session = SessionId{situation.back ? 2u : 0u};
  return Decide({.may_wait = situation.may_wait}, run, losses, cluster);
}

// The whole policy of this release: of each kind what becomes of a job that has no ranks on a node
// which is back, and of any other.
TEST(PolicyTest, Decide_EveryKind) {
  struct Row {
    FailureKind kind;
    Rung without_ranks, with_ranks;
    std::string reason;  // part of what is said of a job with ranks
  };
  constexpr char kAgain[] = "would come again", kNoRecovery[] = "does not recover from";
  const std::vector<Row> table = {
      {FailureKind::kNodeLost, Rung::kWait, Rung::kFail, "ranks on node b may have trained"},
      {FailureKind::kNodeUnreachable, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kNodeStopped, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kRanksLost, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kRankKilled, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kRankCrashed, Rung::kFail, Rung::kFail, kAgain},
      {FailureKind::kRankExited, Rung::kFail, Rung::kFail, kAgain},
      {FailureKind::kRankError, Rung::kFail, Rung::kFail, kAgain},
      {FailureKind::kPeerLost, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kStartFailed, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kStartTimeout, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kPrepareFailed, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kPlanInvalid, Rung::kFail, Rung::kFail, kAgain},
      {FailureKind::kDataInvalid, Rung::kFail, Rung::kFail, kAgain},
      {FailureKind::kDataCorrupt, Rung::kFail, Rung::kFail, kAgain},
      {FailureKind::kDataUnavailable, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kOutputUnavailable, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kOutOfMemory, Rung::kFail, Rung::kFail, kAgain},
      {FailureKind::kNonFinite, Rung::kFail, Rung::kFail, kAgain},
      {FailureKind::kDeviceFailed, Rung::kFail, Rung::kFail, kNoRecovery},
      {FailureKind::kVersionMismatch, Rung::kFail, Rung::kFail, kAgain},
      {FailureKind::kPrepareTimeout, Rung::kFail, Rung::kFail, kNoRecovery},
  };
  ASSERT_EQ(table.size(), job::AllFailures().size());
  for (size_t i = 0; i < table.size(); ++i) {
    const Row& row = table[i];
    EXPECT_EQ(row.kind, job::AllFailures()[i].kind);
    EXPECT_EQ(DecideOn({{row.kind, "b"}}, {}).rung, row.without_ranks) << job::ToString(row.kind);
    const Decision decision = DecideOn({{row.kind, "b"}}, {.assigned = true});
    EXPECT_EQ(decision.rung, row.with_ranks) << job::ToString(row.kind);
    EXPECT_THAT(decision.reason, HasSubstr(row.reason));
    EXPECT_EQ(row.reason == kAgain, !job::TraitsOf(row.kind).retryable) << job::ToString(row.kind);
  }
}

TEST(PolicyTest, NodeLost_Table) {
  const Loss a{FailureKind::kNodeLost, "a"}, b{FailureKind::kNodeLost, "b"};
  struct Row {
    std::vector<Loss> losses;
    Situation situation;
    Rung rung;
    std::string reason;  // part of it
  };
  const std::vector<Row> table = {
      {{b}, {}, Rung::kWait, "no rank had started on node b"},
      {{b}, {.may_wait = false}, Rung::kFail, "may not wait"},
      {{b}, {.back = false}, Rung::kFail, "node b is away"},
      {{b}, {.assigned = true}, Rung::kFail, "may have trained"},
      {{b, a}, {}, Rung::kFail, "ranks on node a"},
      {{b, {FailureKind::kNonFinite, "a"}}, {}, Rung::kFail, "NonFinite would come again"},
  };
  for (const Row& row : table) {
    const Decision decision = DecideOn(row.losses, row.situation);
    EXPECT_EQ(decision.rung, row.rung) << row.reason;
    EXPECT_THAT(decision.reason, HasSubstr(row.reason));
  }
}

TEST(PolicyTest, RanksLost_WhileTheEpochIsTakenUpAgain_StartsItAnew) {
  coordinator::Run run;
  run.teams = {{.node = "b", .devices = {0}, .assigned = true}};
  const Loss loss{FailureKind::kRanksLost, "b"};
  EXPECT_EQ(Decide({}, run, {&loss, 1}, {}).rung, Rung::kFail);
  run.stage = coordinator::Run::Stage::kReattaching;
  const Decision decision = Decide({}, run, {&loss, 1}, {});
  EXPECT_EQ(decision.rung, Rung::kStartAnew);
  EXPECT_THAT(decision.reason, HasSubstr("the ranks on node b had not started"));
}

TEST(PolicyTest, NodeLost_BeforeTheJobHasARun_WaitsForDevices) {
  const Loss loss{FailureKind::kNodeLost, "b"};
  EXPECT_EQ(Decide({}, {}, {&loss, 1}, {}).rung, Rung::kWait);
  EXPECT_EQ(Decide({.may_wait = false}, {}, {&loss, 1}, {}).rung, Rung::kFail);
}

}  // namespace
}  // namespace phalanx::coordinator
