// Devices that a job gave back on a node that it keeps: nobody gets them while its processes of
// before may be on them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "tests/unit/coordinator/machine/lending.h"

namespace phalanx::coordinator {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A job of three ranks: two on node "m", whose place on device 0 moves to the node in reserve.
class LeftoversTest : public LoanTest {
 protected:
  // Ranks 0 and 1 on "m", rank 2 on "n".
  JobId TrainOnTwo() {
    KeepOneInReserve();
    m_ = h_.Open("m", 2);
    node_ = h_.Open("n", 1);
    const JobId job = h_.Submit(std::make_shared<const JobRequest>(Borrowing("a", 3)));
    for (const SessionId session : {m_, node_}) h_.Prepare(session);
    for (const SessionId session : {m_, node_}) h_.Answer<Assign>(session);
    h_.Ready(m_, job, 0, 2);
    h_.Ready(node_, job, 2, 3);
    EXPECT_EQ(h_.Phase(job), job::JobPhase::kRunning);
    return job;
  }
  // Rank 0 dies, and goes on on "s", for people have "m" cordoned until that is planned.
  JobId MoveRankThatDied() {
    const JobId job = TrainOnTwo();
    h_.Report(m_, job, 0, kKilled);
    h_.Report(m_, job, 1, Quiet(3, 1));
    h_.Report(node_, job, 2, Quiet(3, 2));
    h_.Report(m_, job, 1, RankReady{}, 2);
    h_.Report(node_, job, 2, RankReady{}, 2);
    Mark("m", NodeMark{.reason = "new fan"});
    StepOfLast(job, 4, 2);
    h_.Prepare(spares_);
    Mark("m", std::nullopt);
    EXPECT_EQ(h_.State(job).epoch, Epoch{3});
    EXPECT_EQ(Placed(job), "1 on s, 1 on m, 1 on n");
    EXPECT_EQ(Holder("m", 0), JobId{});
    return job;
  }
  // Rank 2 reports steps.
  void StepOfLast(JobId job, int64_t step, int64_t epoch) {
    h_.Feed(RankReported{node_, job, Epoch{epoch}, 2,
                         StepReport{.step = step, .epoch = Epoch{epoch}}, Behind(step)});
  }
  SessionId m_;
};

TEST_F(LeftoversTest, DeviceThatAPlaceHadOnANodeOfItsJob_IsFreeOnceTheNodeHasItsAssignment) {
  MoveRankThatDied();
  ASSERT_THAT(h_.Commands<Assign>(m_), SizeIs(3));
  EXPECT_EQ(h_.Free("m"), 0);
  const JobId other = h_.Submit(AJob("b", 1));
  EXPECT_EQ(Holder("m", 0), JobId{}) << "a process of the rank may be on it";
  EXPECT_THAT(h_.Explain(other), Contains("node m matches but is still ending ranks of before"));
  h_.Answer<Assign>(m_);
  EXPECT_EQ(Holder("m", 0), other);
}

TEST_F(LeftoversTest, AnswerToTheAssignmentBefore_FreesNoDevice) {
  MoveRankThatDied();
  const uint64_t before = h_.Commands<Assign>(m_)[1].first;
  h_.Feed(CommandFinished{.session = m_, .command_number = before});
  EXPECT_EQ(h_.Free("m"), 0);
}

// Its worker did not hear that the job has gone on elsewhere: it says of which epoch its processes
// are, and not on which devices.
TEST_F(LeftoversTest, NodeThatIsBackWithRanksOfBefore_GetsNothingOnFreeDevicesUntilTheyAreTold) {
  const JobId job = MoveRankThatDied();
  h_.Feed(SessionClosed{m_});
  m_ = h_.Open("m", 2, 1, {{job, Epoch{2}}}, 3);
  EXPECT_EQ(h_.Free("m"), 0);
  const JobId other = h_.Submit(AJob("b", 1));
  EXPECT_EQ(Holder("m", 0), JobId{});
  h_.Answer<Assign>(m_);
  EXPECT_EQ(Holder("m", 0), other);
}

TEST_F(LeftoversTest, NodeThatIsBackAfterARestartOfTheCoordinator_GetsNothingUntilTheyAreTold) {
  const JobId job = MoveRankThatDied();
  h_.Restart();
  EXPECT_EQ(Holder("m", 0), JobId{});
  node_ = h_.Open("n", 1, 1, {{job, Epoch{2}}}, 9);
  spares_ = h_.Open("s", 1, 2, {{job, Epoch{3}}}, 9);
  m_ = h_.Open("m", 2, 1, {{job, Epoch{2}}}, 9);
  EXPECT_EQ(h_.Free("m"), 0);
  const JobId other = h_.Submit(AJob("b", 1));
  EXPECT_EQ(Holder("m", 0), JobId{});
  ASSERT_THAT(h_.Commands<Assign>(m_), SizeIs(1));
  h_.Answer<Assign>(m_);
  EXPECT_EQ(Holder("m", 0), other);
}

// Of which nothing may be on the devices that it does not list.
TEST_F(LeftoversTest, NodeThatIsBackWithoutRanksOfBefore_HasFreeDevices) {
  const JobId job = MoveRankThatDied();
  h_.Feed(SessionClosed{m_});
  m_ = h_.Open("m", 2, 1, {{job, Epoch{3}}}, 9);
  EXPECT_EQ(h_.Free("m"), 1);
  h_.Feed(SessionClosed{m_});
  h_.Open("m", 2, 2);
  EXPECT_EQ(h_.Free("m"), 1) << "another process";
}

// The end of the job says so, too: its stop is answered when its processes are gone.
TEST_F(LeftoversTest, JobThatEndsMeanwhile_LeavesNothingBehind) {
  const JobId job = MoveRankThatDied();
  ASSERT_TRUE(h_.Cancel(job).ok());
  EXPECT_EQ(h_.Free("m"), 0);
  h_.Answer<StopRanks>(m_);
  EXPECT_EQ(h_.Free("m"), 2);
  EXPECT_THAT(h_.NodeNamed("m").leftovers, IsEmpty());
}

}  // namespace
}  // namespace phalanx::coordinator
