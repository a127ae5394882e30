// Where state is lost, training goes back to a checkpoint, or to its beginning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class GoBackTest : public RecoveringTest {
 protected:
  void TrainOn(const std::function<void(JobRequest&)>& alter) {
    node_ = h_.Open("n", 2);
    JobRequest request = *AJobThatRecovers("a", 2);
    request.waits = request.restarts = true;
    alter(request);
    job_ = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
    h_.commands.clear();
  }
  void Write(int64_t step) {
    Step(job_, step, 1);
    for (const int32_t rank : {0, 1}) {
      h_.Report(node_, job_, rank,
                RankCheckpointPart{step, {.file = absl::StrCat("rank-", rank), .bytes = 1}, 0.5});
    }
  }
  void Publish(int64_t step) {
    h_.Report(node_, job_, 0, RankCheckpointPublished{step, absl::StrCat("/c/step-", step), ""});
  }
  void MissState() {
    h_.Report(node_, job_, 0, RankError{.kind = FailureKind::kStateLost, .message = "no home"},
              h_.State(job_).epoch.value);
  }
  // Rank 1 is killed, and what it had, behind a step that is decided, is nowhere else.
  void LoseState(int64_t decided) {
    h_.Report(node_, job_, 1, kKilled);
    h_.Report(node_, job_, 0, Quiet(decided));
    ASSERT_EQ(h_.State(job_).epoch, Epoch{2});
    ASSERT_EQ(h_.State(job_).start->step(), decided);
    MissState();
  }
  void ExpectItBeginsAnew(const std::string& says) {
    ASSERT_EQ(h_.State(job_).epoch, Epoch{3});
    const Assign assigned = h_.Commands<Assign>(node_).back().second;
    EXPECT_FALSE(assigned.goes_on);
    EXPECT_FALSE(assigned.checkpoint.has_value());
    h_.Report(node_, job_, 0, RankReady{}, 3);
    EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
    EXPECT_THAT(Events(job_, "Recovered"), ElementsAre(HasSubstr(says)));
  }
  JobId job_;
};

TEST_F(GoBackTest, WithoutACheckpoint_StateThatIsLostIsTheEnd) {
  TrainOn([](JobRequest& request) { request.checkpoints = true; });
  LoseState(7);
  ASSERT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job_).failure->kind, FailureKind::kStateLost);
}

// Nothing is lost with the state of the beginning.
TEST_F(GoBackTest, StateThatIsLostBeforeAnyStep_IsMadeAnew) {
  TrainOn([](JobRequest&) {});
  LoseState(0);
  ExpectItBeginsAnew("back after");
}

// That costs no more steps than the way back from one checkpoint to that before.
TEST_F(GoBackTest, StateThatIsLostBeforeTheFirstCheckpoint_IsMadeAnew) {
  TrainOn([](JobRequest& request) { request.checkpoints = request.begins_anew = true; });
  Step(job_, 6, 1);
  LoseState(7);
  ExpectItBeginsAnew("steps 1 to 6 redone");
}

// Nobody is left in whose stead they could stay out.
TEST_F(GoBackTest, CheckpointThatIsGoneWhenAllHaveComeBack_IsTheEnd) {
  TrainOn([](JobRequest& request) {
    request.document.text = "needs every rank";
    request.checkpoints = true;
  });
  Write(6);
  Publish(6);
  h_.Report(node_, job_, 1, kKilled);
  h_.Report(node_, job_, 0, kKilled, h_.State(job_).epoch.value);
  MissState();
  ASSERT_EQ(h_.Phase(job_), JobPhase::kRunning);
  ASSERT_FALSE(h_.State(job_).goes_on());
  h_.Report(node_, job_, 1,
            RankError{.kind = FailureKind::kCheckpointUnavailable, .message = "is no folder"},
            h_.State(job_).epoch.value);
  ASSERT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job_).failure->kind, FailureKind::kCheckpointUnavailable);
  EXPECT_THAT(h_.State(job_).failure->message, HasSubstr("is no folder"));
}

// Its folder is there, whoever ended the epoch meanwhile.
TEST_F(GoBackTest, CheckpointThatIsPublishedWhileItsEpochEnds_IsGoneBackTo) {
  TrainOn([](JobRequest& request) { request.checkpoints = true; });
  Write(6);
  h_.Report(node_, job_, 1, kKilled);
  Publish(6);
  EXPECT_THAT(Events(job_, "CheckpointPublished"), ElementsAre(HasSubstr("/c/step-6")));
  h_.Report(node_, job_, 0, Quiet(7));
  MissState();
  ASSERT_EQ(h_.State(job_).epoch, Epoch{3});
  EXPECT_EQ(h_.Commands<Assign>(node_).back().second.checkpoint->path, "/c/step-6");
}

// It loses its state behind two checkpoints.
class EarlierCheckpointTest : public GoBackTest {
 protected:
  void SetUp() override {
    TrainOn([](JobRequest& request) { request.checkpoints = true; });
    for (const int64_t step : {3, 6}) {
      Write(step);
      Publish(step);
    }
    LoseState(7);
    ASSERT_EQ(h_.State(job_).epoch, Epoch{3});
    ASSERT_EQ(h_.State(job_).checkpoint->path, "/c/step-6");
  }
  void FindDamage(int64_t epoch, FailureKind kind = FailureKind::kCheckpointInvalid) {
    h_.Report(node_, job_, 0, RankError{.kind = kind, .message = "/c is damaged"}, epoch);
  }
};

TEST_F(EarlierCheckpointTest, DamagedOne_IsPassedOver) {
  FindDamage(3);
  ASSERT_EQ(h_.Phase(job_), JobPhase::kRunning);
  EXPECT_THAT(Events(job_, "CheckpointGivenUp"),
              ElementsAre("rank 0: /c is damaged; training goes back to the one before, of step "
                          "3"));
  ASSERT_EQ(h_.State(job_).epoch, Epoch{4});
  EXPECT_EQ(h_.Commands<Assign>(node_).back().second.checkpoint->path, "/c/step-3");
  h_.Report(node_, job_, 0, RankReady{}, 4);
  EXPECT_THAT(Events(job_, "Recovered"), ElementsAre(HasSubstr("steps 4 to 6 redone")));
  EXPECT_EQ(h_.State(job_).last_checkpoint->step, 3);
}

TEST_F(EarlierCheckpointTest, SeveralRanksThatFindIt_PassOverOne) {
  h_.plans_held = true;
  FindDamage(3);
  FindDamage(3, FailureKind::kCheckpointUnavailable);
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  EXPECT_EQ(h_.Phase(job_), JobPhase::kRunning);
  EXPECT_THAT(Events(job_, "CheckpointGivenUp"), SizeIs(1));
}

TEST_F(EarlierCheckpointTest, OldestThatIsGone_IsTheEnd) {
  FindDamage(3);
  FindDamage(4, FailureKind::kCheckpointUnavailable);
  ASSERT_EQ(h_.Phase(job_), JobPhase::kFailed);
  EXPECT_EQ(h_.State(job_).failure->kind, FailureKind::kCheckpointUnavailable);
}

TEST_F(EarlierCheckpointTest, CoordinatorThatRestarts_KnowsWhichIsTheLast) {
  FindDamage(3);
  h_.Restart();
  EXPECT_EQ(h_.State(job_).checkpoint->path, "/c/step-3");
  EXPECT_EQ(h_.State(job_).last_checkpoint->step, 3);
}

}  // namespace
}  // namespace phalanx::coordinator
