// Every loss and what becomes of the job.
#include "coordinator/machine/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using ::testing::HasSubstr;

struct Case {
  std::string what;
  std::vector<Loss> losses;
  bool assigned, back, may_wait;
  Rung rung;
  std::string reason;  // part of it
};

// A run on nodes a and b; `assigned` and `back` say of b whether it has ranks and a session.
Decision DecideOn(const Case& c) {
  Run run;
  run.parts = {{.node = "a", .devices = {0}, .assigned = true},
               {.node = "b", .devices = {0}, .first_rank = 1, .assigned = c.assigned}};
  NodeTable cluster;
  cluster["a"].session = SessionId{1};
  cluster["b"].session = SessionId{c.back ? 2u : 0u};
  return Decide({.may_wait = c.may_wait}, run, c.losses, cluster);
}

TEST(PolicyTest, Decide_Table) {
  const Loss b{FailureKind::kNodeLost, "b"};
  const std::vector<Case> cases = {
      {"no rank had started, and the node is back",
       {b},
       false,
       true,
       true,
       Rung::kWait,
       "no rank had started on node b"},
      {"the job may not wait", {b}, false, true, false, Rung::kFail, "may not wait"},
      {"the node is away", {b}, false, false, true, Rung::kFail, "node b is away"},
      {"its ranks may have trained", {b}, true, true, true, Rung::kFail, "may have trained"},
      {"one of two nodes had ranks",
       {b, {FailureKind::kNodeLost, "a"}},
       false,
       true,
       true,
       Rung::kFail,
       "ranks on node a"},
      {"a killed rank",
       {{FailureKind::kRankKilled, "b"}},
       true,
       true,
       true,
       Rung::kFail,
       "does not recover from RankKilled"},
      {"a full disk",
       {{FailureKind::kOutputUnavailable, "b"}},
       true,
       true,
       true,
       Rung::kFail,
       "OutputUnavailable"},
      {"what would come again",
       {b, {FailureKind::kNonFinite, "a"}},
       false,
       true,
       true,
       Rung::kFail,
       "NonFinite would come again"},
  };
  for (const Case& c : cases) {
    const Decision decision = DecideOn(c);
    EXPECT_EQ(decision.rung, c.rung) << c.what;
    EXPECT_THAT(decision.reason, HasSubstr(c.reason)) << c.what;
  }
}

TEST(PolicyTest, KindThatIsNotRetryable_AlwaysFails) {
  for (const job::FailureTraits& failure : job::AllFailures()) {
    if (failure.retryable) continue;
    const Decision decision = DecideOn(
        {.losses = {{failure.kind, "b"}}, .assigned = false, .back = true, .may_wait = true});
    EXPECT_EQ(decision.rung, Rung::kFail) << failure.name;
  }
}

}  // namespace
}  // namespace phalanx::coordinator
