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
  bool may_queue = false;
  bool may_start_anew = false;
};

// Of a run on nodes a, which has ranks, and b.
Remedy RemedyOf(const std::vector<Loss>& losses, const Situation& situation) {
  Run run;
  run.teams = {{.node = "a", .devices = {0}, .ranks = {0}, .assigned = true},
               {.node = "b", .devices = {0}, .ranks = {1}, .assigned = situation.assigned}};
  NodeTable cluster;
  cluster["a"].session = SessionId{1};
  cluster["b"].session = SessionId{situation.back ? 2u : 0u};
  return RemedyFor({.may_wait = situation.may_wait,
                    .may_queue = situation.may_queue,
                    .may_start_anew = situation.may_start_anew},
                   run, losses, cluster);
}

// The whole policy of this release: of each kind what becomes of a job that has no ranks on a node
// which is back, and of any other.
TEST(PolicyTest, RemedyFor_EveryKind) {
  struct Row {
    FailureKind kind;
    Course without_ranks, with_ranks;
    std::string reason;  // part of what is said of a job with ranks
  };
  constexpr char kAgain[] = "would come again", kNoRecovery[] = "does not go on after";
  const std::vector<Row> table = {
      {FailureKind::kNodeLost, Course::kWait, Course::kFail, "ranks on node b may have trained"},
      {FailureKind::kNodeUnreachable, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kNodeStopped, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kRanksLost, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kRankKilled, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kRankCrashed, Course::kFail, Course::kFail, kAgain},
      {FailureKind::kRankExited, Course::kFail, Course::kFail, kAgain},
      {FailureKind::kRankError, Course::kFail, Course::kFail, kAgain},
      {FailureKind::kPeerLost, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kStartFailed, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kStartTimeout, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kPrepareFailed, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kPlanInvalid, Course::kFail, Course::kFail, kAgain},
      {FailureKind::kDataInvalid, Course::kFail, Course::kFail, kAgain},
      {FailureKind::kDataCorrupt, Course::kFail, Course::kFail, kAgain},
      {FailureKind::kDataUnavailable, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kOutputUnavailable, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kOutOfMemory, Course::kFail, Course::kFail, kAgain},
      {FailureKind::kNonFinite, Course::kFail, Course::kFail, kAgain},
      {FailureKind::kDeviceFailed, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kVersionMismatch, Course::kFail, Course::kFail, kAgain},
      {FailureKind::kPrepareTimeout, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kCheckpointInvalid, Course::kFail, Course::kFail, kAgain},
      {FailureKind::kCheckpointUnavailable, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kTimeLimit, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kRankHung, Course::kFail, Course::kFail, kNoRecovery},
      {FailureKind::kStateLost, Course::kFail, Course::kFail, "no checkpoint"},
      {FailureKind::kNoProgress, Course::kFail, Course::kFail, kNoRecovery},
  };
  ASSERT_EQ(table.size(), job::AllFailures().size());
  for (size_t i = 0; i < table.size(); ++i) {
    const Row& row = table[i];
    EXPECT_EQ(row.kind, job::AllFailures()[i].kind);
    EXPECT_EQ(RemedyOf({{row.kind, "b"}}, {}).course, row.without_ranks) << job::ToString(row.kind);
    const Remedy remedy = RemedyOf({{row.kind, "b"}}, {.assigned = true});
    EXPECT_EQ(remedy.course, row.with_ranks) << job::ToString(row.kind);
    EXPECT_THAT(remedy.reason, HasSubstr(row.reason));
    EXPECT_EQ(row.reason == kAgain, !job::TraitsOf(row.kind).retryable) << job::ToString(row.kind);
  }
}

TEST(PolicyTest, NodeLost_Table) {
  const Loss a{FailureKind::kNodeLost, "a"}, b{FailureKind::kNodeLost, "b"};
  struct Row {
    std::vector<Loss> losses;
    Situation situation;
    Course course;
    std::string reason;  // part of it
  };
  const std::vector<Row> table = {
      {{b}, {}, Course::kWait, "no rank had started on node b"},
      {{b}, {.may_wait = false}, Course::kFail, "may not wait"},
      {{b}, {.back = false}, Course::kQueue, "no rank had started on node b, which is away"},
      {{b}, {.assigned = true}, Course::kFail, "may have trained"},
      {{b}, {.assigned = true, .may_queue = true}, Course::kQueue, "waits for devices again"},
      {{b}, {.back = false, .may_queue = true}, Course::kQueue, "waits for devices again"},
      {{{FailureKind::kDeviceFailed, "b"}},
       {.assigned = true, .may_queue = true},
       Course::kQueue,
       "waits for devices again"},
      {{{FailureKind::kStartTimeout, "b"}},
       {.assigned = true, .may_queue = true},
       Course::kQueue,
       "waits for devices again"},
      {{{FailureKind::kPrepareTimeout, "b"}},
       {.may_queue = true},
       Course::kQueue,
       "waits for devices again"},
      {{{FailureKind::kCheckpointUnavailable, "b"}},
       {.assigned = true, .may_queue = true},
       Course::kQueue,
       "waits for devices again"},
      {{{FailureKind::kOutOfMemory, "b"}},
       {.assigned = true, .may_queue = true},
       Course::kFail,
       "would come again"},
      {{b, a}, {}, Course::kFail, "ranks on node a"},
      {{b, {FailureKind::kNonFinite, "a"}}, {}, Course::kFail, "NonFinite would come again"},
  };
  for (const Row& row : table) {
    const Remedy remedy = RemedyOf(row.losses, row.situation);
    EXPECT_EQ(remedy.course, row.course) << row.reason;
    EXPECT_THAT(remedy.reason, HasSubstr(row.reason));
  }
}

TEST(PolicyTest, RanksLost_WhileTheEpochIsTakenUpAgain_StartsItAnew) {
  coordinator::Run run;
  run.teams = {{.node = "b", .devices = {0}, .assigned = true}};
  const Loss loss{FailureKind::kRanksLost, "b"};
  EXPECT_EQ(RemedyFor({}, run, {&loss, 1}, {}).course, Course::kFail);
  run.stage = coordinator::Run::Stage::kReattaching;
  const Remedy remedy = RemedyFor({}, run, {&loss, 1}, {});
  EXPECT_EQ(remedy.course, Course::kStartAnew);
  EXPECT_THAT(remedy.reason, HasSubstr("the ranks on node b had not started"));
}

TEST(PolicyTest, PeerLost_WhereRanksMayHaveWaitedForACoordinator_StartsAnew) {
  const Loss b{FailureKind::kPeerLost, "b"}, killed{FailureKind::kRankKilled, "b"};
  const Situation waited{.assigned = true, .may_start_anew = true};
  const Remedy remedy = RemedyOf({b}, waited);
  EXPECT_EQ(remedy.course, Course::kStartAnew);
  EXPECT_THAT(remedy.reason, HasSubstr("a coordinator that was away, and none has trained"));
  EXPECT_EQ(RemedyOf({killed}, waited).course, Course::kFail);
  // Several of them have waited for one node.
  const Loss unreachable{FailureKind::kNodeUnreachable, "b"};
  EXPECT_EQ(RemedyOf({unreachable}, waited).course, Course::kStartAnew);
  EXPECT_EQ(RemedyOf({unreachable}, {.assigned = true}).course, Course::kFail);
}

TEST(PolicyTest, StartFailed_WhereANodeHasSeenALaterEpoch_StartsAnew) {
  coordinator::Run run;
  run.teams = {{.node = "b", .devices = {0}, .assigned = true}};
  run.epoch_seen = Epoch{3};
  const Loss loss{FailureKind::kStartFailed, "b"};
  const Remedy remedy = RemedyFor({}, run, {&loss, 1}, {});
  EXPECT_EQ(remedy.course, Course::kStartAnew);
  EXPECT_THAT(remedy.reason, HasSubstr("node b has seen epoch 3 of the job"));
}

TEST(PolicyTest, NodeLost_BeforeTheJobHasARun_WaitsForDevices) {
  const Loss loss{FailureKind::kNodeLost, "b"};
  EXPECT_EQ(RemedyFor({}, {}, {&loss, 1}, {}).course, Course::kWait);
  EXPECT_EQ(RemedyFor({.may_wait = false}, {}, {&loss, 1}, {}).course, Course::kFail);
}

}  // namespace
}  // namespace phalanx::coordinator
