// Processes that warm up beside training: transcripts of the machine.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/agent/machine_harness.h"

namespace phalanx::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const PrepareDataCommand kPrepare{JobId{7}, {"text", "/jobs"}};

// job-7 has lost the process of device 2 (rank 3) and trains on with that of device 0.
class WarmingTest : public testing::Test {
 protected:
  void SetUp() override {
    h_.Welcome();
    h_.RunJob(1, {0, 2});
    h_.Feed(ProcessDied{ProcessNumber{2}});
    next_ = h_.AnAssign(2, {0, 2});
    next_.goes_on = true;
    next_.without_work = {3};
    h_.Command(10, next_);
    h_.Feed(EpochStopped{ProcessNumber{1}, Epoch{1}});
  }
  // Asks for the device and has the data found.
  std::vector<std::string> Ask(uint64_t number = 11) {
    h_.Command(number, kPrepare);
    return h_.DataReady(h_.last_request);
  }

  Harness h_;
  AssignCommand next_;
};

TEST_F(WarmingTest, LostDevice_HasAWarmProcessBeforeTheAnswer) {
  EXPECT_THAT(Ask(), IsEmpty()) << "the process before is still to be reaped";
  EXPECT_THAT(h_.Exited(2, 0, 9), Contains("StartProcess p3 job-7/2 rank 3 device 2"));
  EXPECT_THAT(h_.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()}), IsEmpty());
  EXPECT_THAT(h_.Feed(RankHelloReceived{ProcessNumber{3}}),
              ElementsAre("WarmUp p3 job-7/1 rank 3 device 2"));
  EXPECT_THAT(h_.Feed(RankWarmed{ProcessNumber{3}}), ElementsAre("Result 11 OK"));
  // The epoch that has it again finds it.
  AssignCommand back = h_.AnAssign(3, {0, 2});
  back.goes_on = true;
  const std::vector<std::string> said = h_.Command(12, back);
  EXPECT_THAT(said, Contains("RunEpoch p3 job-7/3 rank 3 device 2"));
  EXPECT_THAT(said, Not(Contains(HasSubstr("StartProcess"))));
}

TEST_F(WarmingTest, EpochThatComesFirst_IsRunAtOnce) {
  h_.Exited(2, 0, 9);
  Ask();
  h_.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()});
  h_.Feed(RankHelloReceived{ProcessNumber{3}});
  AssignCommand back = h_.AnAssign(3, {0, 2});
  back.goes_on = true;
  const std::vector<std::string> said = h_.Command(12, back);
  EXPECT_THAT(said, Contains("RunEpoch p3 job-7/3 rank 3 device 2"));
  EXPECT_THAT(said, Contains("Result 11 OK"));
  EXPECT_THAT(h_.Feed(RankWarmed{ProcessNumber{3}}), IsEmpty());
}

// It would begin the epoch where the other did, and cut what has been written since.
TEST_F(WarmingTest, ProcessInPlaceOfOneThatDiedInTheEpoch_RunsNoneBeforeTheNext) {
  h_.Exited(2, 0, 9);
  AssignCommand both = h_.AnAssign(3, {0, 2});
  both.goes_on = true;
  ASSERT_THAT(h_.Command(12, both), Contains("StartProcess p3 job-7/3 rank 3 device 2"));
  h_.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()});
  ASSERT_THAT(h_.Feed(RankHelloReceived{ProcessNumber{3}}),
              Contains("RunEpoch p3 job-7/3 rank 3 device 2"));
  h_.Feed(ProcessDied{ProcessNumber{3}});
  h_.Exited(3, 0, 9);
  EXPECT_THAT(Ask(13), Contains("StartProcess p4 job-7/3 rank 3 device 2"));
  h_.Feed(ProcessStarted{ProcessNumber{4}, absl::OkStatus()});
  EXPECT_THAT(h_.Feed(RankHelloReceived{ProcessNumber{4}}),
              ElementsAre("WarmUp p4 job-7/3 rank 3 device 2"));
  both.epoch = Epoch{4};
  EXPECT_THAT(h_.Command(14, both), Contains("RunEpoch p4 job-7/4 rank 3 device 2"));
}

// Another would run that epoch, since nobody warms it up.
TEST_F(WarmingTest, ProcessThatDiesAsItStarts_LeavesNoneForTheEpochInWhichTheOneBeforeDied) {
  h_.Exited(2, 0, 9);
  AssignCommand both = h_.AnAssign(3, {0, 2});
  both.goes_on = true;
  h_.Command(12, both);
  h_.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()});
  h_.Feed(RankHelloReceived{ProcessNumber{3}});
  h_.Feed(ProcessDied{ProcessNumber{3}});
  h_.Exited(3, 0, 9);
  ASSERT_THAT(Ask(13), Contains("StartProcess p4 job-7/3 rank 3 device 2"));
  h_.Feed(ProcessStarted{ProcessNumber{4}, absl::OkStatus()});
  h_.Feed(ProcessDied{ProcessNumber{4}});
  EXPECT_THAT(h_.Exited(4, 0, 9), ElementsAre("Result 13 OK"));
  both.epoch = Epoch{4};
  EXPECT_THAT(h_.Command(14, both), Contains("StartProcess p5 job-7/4 rank 3 device 2"));
}

// Once it was taken for the one in place of a process that the epoch had had: the assignment was
// answered, and no rank ran.
TEST_F(WarmingTest, ProcessThatIsStartedWhileAnEpochWaitsForItsData_RunsThatEpoch) {
  h_.Exited(2, 0, 9);
  AssignCommand both = h_.AnAssign(3, {0, 2});
  both.goes_on = true;
  both.document = {"text of another release", "/jobs"};  // what is prepared is not its data
  h_.Command(12, both);
  const uint64_t data_of_epoch = h_.last_request;
  ASSERT_THAT(Ask(13), Contains("StartProcess p3 job-7/3 rank 3 device 2"));
  EXPECT_THAT(h_.DataReady(data_of_epoch), Contains("StopEpoch p1 2"));
  h_.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()});
  EXPECT_THAT(h_.Feed(RankHelloReceived{ProcessNumber{3}}),
              Contains("RunEpoch p3 job-7/3 rank 3 device 2"));
}

// It may make them wait for the driver until then (machine_wait_test.cc).
TEST_F(WarmingTest, WaitsOfThoseThatTrain_AreSaidOnceItIsWarm) {
  h_.Exited(2, 0, 9);
  Ask();
  h_.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()});
  h_.Feed(RankHelloReceived{ProcessNumber{3}});
  const ProcessRan waits{.process = ProcessNumber{1}, .waits = true};
  h_.Feed(waits);
  h_.Advance(absl::Seconds(2));
  h_.Feed(waits);
  h_.ConfirmAll();
  EXPECT_THAT(h_.Advance(absl::Seconds(2)), Not(Contains(HasSubstr("waits"))));
  h_.Feed(RankWarmed{ProcessNumber{3}});
  h_.ConfirmAll();
  EXPECT_THAT(h_.Advance(absl::Seconds(2)), Contains("Heartbeat [job-7/2@0 waits 2s]"));
}

TEST_F(WarmingTest, ProcessThatEndsWhileItWarmsUp_IsNoRanksDeath) {
  h_.Exited(2, 0, 9);
  Ask();
  h_.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()});
  h_.Feed(RankHelloReceived{ProcessNumber{3}});
  EXPECT_THAT(h_.Feed(ProcessDied{ProcessNumber{3}}), IsEmpty());
  EXPECT_THAT(h_.Exited(3, 0, 11), ElementsAre("Result 11 OK")) << "the epoch starts another";
}

TEST_F(WarmingTest, ProcessThatCannotStart_LeavesItToTheEpoch) {
  h_.Exited(2, 0, 9);
  Ask();
  EXPECT_THAT(h_.Feed(ProcessStarted{ProcessNumber{3}, absl::NotFoundError("no program")}),
              ElementsAre("Result 11 OK"));
}

TEST_F(WarmingTest, QuestionAboutWarmProcesses_IsAnsweredAtOnce) {
  h_.Exited(2, 0, 9);
  Ask();
  h_.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()});
  h_.Feed(RankHelloReceived{ProcessNumber{3}});
  h_.Feed(RankWarmed{ProcessNumber{3}});
  EXPECT_THAT(Ask(12), ElementsAre("Result 12 OK"));
}

TEST_F(WarmingTest, QuestionWhileItWarmsUp_IsAnsweredWithTheFirst) {
  h_.Exited(2, 0, 9);
  Ask();
  EXPECT_THAT(Ask(12), IsEmpty());
  h_.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()});
  h_.Feed(RankHelloReceived{ProcessNumber{3}});
  EXPECT_THAT(h_.Feed(RankWarmed{ProcessNumber{3}}), ElementsAre("Result 11 OK", "Result 12 OK"));
}

TEST_F(WarmingTest, Stop_EndsIt) {
  h_.Exited(2, 0, 9);
  Ask();
  h_.Feed(ProcessStarted{ProcessNumber{3}, absl::OkStatus()});
  h_.Feed(RankHelloReceived{ProcessNumber{3}});
  const std::vector<std::string> said =
      h_.Command(12, StopCommand{JobId{7}, Epoch{2}, absl::Seconds(10), "the job ended"});
  EXPECT_THAT(said, Contains("Quit p3"));
  EXPECT_THAT(said, Contains("Result 11 ABORTED"));
}

// It may be another job's by now.
TEST_F(WarmingTest, DeviceThatTheJobHasGivenBack_GetsNoProcess) {
  h_.Exited(2, 0, 9);
  AssignCommand without = h_.AnAssign(3, {0});
  without.goes_on = true;
  h_.Command(11, without);
  EXPECT_THAT(Ask(12), ElementsAre("Result 12 OK"));
}

TEST_F(WarmingTest, DeviceThatIsGivenBackBeforeItIsFree_GetsNoProcess) {
  Ask();
  AssignCommand without = h_.AnAssign(3, {0});
  without.goes_on = true;
  h_.Command(12, without);
  const std::vector<std::string> said = h_.Exited(2, 0, 9);
  EXPECT_THAT(said, Contains("Result 11 OK"));
  EXPECT_THAT(said, Not(Contains(HasSubstr("StartProcess"))));
}

// Its coordinator may have given the device to another job meanwhile.
TEST_F(WarmingTest, ProcessThatWarmsUp_IsSaidWhenTheSessionIsOpenedAgain) {
  h_.Exited(2, 0, 9);
  AssignCommand without = h_.AnAssign(3, {0, 2});
  without.goes_on = true;
  without.without_work = {2, 3};
  h_.Command(11, without);
  h_.Exited(1, 0, 0);
  Ask(12);
  h_.Break();
  EXPECT_THAT(h_.Welcome(), Contains(HasSubstr("running [job-7/3]")));
}

TEST_F(WarmingTest, JobThatBeginsOrWaits_WarmsNothingUp) {
  Harness h;
  h.Welcome();
  h.Command(1, kPrepare);
  EXPECT_THAT(h.DataReady(1), ElementsAre("Result 1 OK"));
}

}  // namespace
}  // namespace phalanx::agent
