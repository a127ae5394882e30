// Ranks that do not leave an epoch in time are left out of the next.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using QuietTest = RecoveringTest;

TEST_F(QuietTest, RankThatDoesNotLeave_IsLeftOutToo) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Advance(absl::Seconds(4));
  EXPECT_THAT(h_.Commands<Assign>(node_), SizeIs(1));
  h_.Advance(absl::Seconds(2));
  EXPECT_THAT(h_.Commands<Assign>(node_), SizeIs(2));
  EXPECT_THAT(BegunBehind(), ElementsAre(3));
  EXPECT_THAT(Events(job, "RankFailed"),
              ElementsAre(HasSubstr("killed by signal 9"),
                          "rank 2 has not left epoch 1 within 5s, nor is its node heard"));
}

// Nothing keeps its word from coming but itself. Should it come later, it counts.
TEST_F(QuietTest, RankThatDoesNotLeaveWhileItsNodeIsHeard_StandsStill) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.plans_held = true;
  h_.Advance(absl::Seconds(3));
  h_.Feed(HeartbeatReceived{.session = node_});
  h_.Advance(absl::Seconds(3));
  EXPECT_THAT(
      Events(job, "RankFailed"),
      ElementsAre(HasSubstr("killed by signal 9"),
                  "rank 2 has not left epoch 1 within 5s, and its node is heard: it stands still"));
  h_.Report(node_, job, 2, Quiet(4, 2));
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  EXPECT_THAT(Lost(job), ElementsAre(Rank{1}, Rank{2}));
  EXPECT_THAT(BegunBehind(), ElementsAre(4));
}

// The link broke on the way: its last heartbeat is from before that.
TEST_F(QuietTest, RankThatDoesNotLeaveBehindALinkThatBreaks_IsNotSaidToStandStill) {
  const auto [a, b, job] = TrainOnTwoNodes();
  h_.Report(a, job, 1, kKilled);
  h_.Report(a, job, 0, Quiet(3));
  h_.Advance(absl::Seconds(1));
  for (const SessionId node : {a, b}) h_.Feed(HeartbeatReceived{.session = node});
  h_.Advance(absl::Seconds(3));
  h_.Feed(HeartbeatReceived{.session = a});
  h_.Advance(absl::Seconds(1));
  EXPECT_EQ(Events(job, "RankFailed").back(),
            "rank 2 has not left epoch 1 within 5s, nor is its node heard");
}

// The epoch has begun behind an earlier step: what it knows of later ones is thrown away with them.
TEST_F(QuietTest, RankThatLeavesTooLate_IsNotHeardAnyMore) {
  const JobId job = Train();
  h_.Report(node_, job, 1, kKilled);
  h_.Report(node_, job, 0, Quiet(3));
  h_.Advance(absl::Seconds(6));
  ASSERT_THAT(BegunBehind(), ElementsAre(3));
  h_.Report(node_, job, 2, Quiet(7, 2));
  h_.Report(node_, job, 0, RankError{.kind = FailureKind::kPeerLost}, 3);
  h_.Report(node_, job, 0, Quiet(3), 3);
  h_.Advance(absl::Seconds(6));
  EXPECT_NE(h_.State(job).start->step(), 7);
}

}  // namespace
}  // namespace phalanx::coordinator
