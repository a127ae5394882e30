// Where a rank is told to fail, and how it does.
#include "worker/train/fault_points.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/job/failure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

using job::FaultKind;
using job::FaultPhase;
using job::InjectedFault;
using ::testing::ElementsAre;
using ::testing::ExitedWithCode;
using ::testing::IsEmpty;
using ::testing::KilledBySignal;

class FaultPointsTest : public testing::Test {
 protected:
  bool Fails(FaultPhase phase, int64_t step) { return !points_.Reach(phase, step).ok(); }

  std::vector<std::string> told_;
  FaultPoints points_{[this](const InjectedFault& fault, FaultPhase phase, int64_t step) {
    told_.push_back(absl::StrCat(job::ToString(fault.kind), " ", job::ToString(phase), " ", step));
  }};
};

TEST_F(FaultPointsTest, WithoutAFault_NothingComesAbout) {
  EXPECT_FALSE(points_.armed());
  EXPECT_FALSE(Fails(FaultPhase::kForward, 1));
  EXPECT_FALSE(points_.Spoils(FaultPhase::kRecord, 1));
  EXPECT_EQ(points_.SlowFactor(1), 1);
  EXPECT_FALSE(FaultPoints::None().armed());
}

TEST_F(FaultPointsTest, OutOfMemory_IsTheErrorOfARealOneAndComesOnce) {
  points_.Inject({.kind = FaultKind::kOom});
  EXPECT_TRUE(points_.armed());
  const absl::Status status = points_.Reach(FaultPhase::kForward, 3);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(job::KindIn(status), job::FailureKind::kOutOfMemory);
  EXPECT_THAT(told_, ElementsAre("oom forward 3"));
  EXPECT_FALSE(points_.armed());
  EXPECT_FALSE(Fails(FaultPhase::kForward, 4));
}

TEST_F(FaultPointsTest, Phase_IsWaitedForFromItsStepOn) {
  points_.Inject({.kind = FaultKind::kOom, .at_step = 5, .phase = FaultPhase::kGather});
  EXPECT_FALSE(Fails(FaultPhase::kGather, 4));
  EXPECT_FALSE(Fails(FaultPhase::kForward, 5));
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_TRUE(Fails(FaultPhase::kGather, 6)) << "or a later one";
}

TEST_F(FaultPointsTest, AnyPhase_IsNoneOfAThreadThatDoesNotTrain) {
  points_.Inject({.kind = FaultKind::kOom});
  EXPECT_FALSE(Fails(FaultPhase::kCheckpoint, 4));
  EXPECT_TRUE(Fails(FaultPhase::kRecovery, 0));
}

TEST_F(FaultPointsTest, NextFault_TakesThePlaceOfOneThatWaits) {
  points_.Inject({.kind = FaultKind::kOom, .at_step = 5});
  points_.Inject({.kind = FaultKind::kNan, .at_step = 7});
  EXPECT_FALSE(Fails(FaultPhase::kForward, 6));
  EXPECT_TRUE(points_.Spoils(FaultPhase::kRecord, 7));
}

TEST_F(FaultPointsTest, Nan_SpoilsOneRecord) {
  points_.Inject({.kind = FaultKind::kNan, .at_step = 4});
  EXPECT_FALSE(points_.Spoils(FaultPhase::kRecord, 3));
  EXPECT_FALSE(Fails(FaultPhase::kRecord, 4));
  EXPECT_FALSE(points_.Spoils(FaultPhase::kForward, 4)) << "no phase is named";
  EXPECT_TRUE(points_.Spoils(FaultPhase::kRecord, 4));
  EXPECT_FALSE(points_.Spoils(FaultPhase::kRecord, 5));
  EXPECT_THAT(told_, ElementsAre("nan record 4"));
}

TEST_F(FaultPointsTest, NanInAPhase_SpoilsThatAlone) {
  points_.Inject({.kind = FaultKind::kNan, .phase = FaultPhase::kBackward});
  EXPECT_FALSE(Fails(FaultPhase::kBackward, 4)) << "it is asked for where it can be";
  EXPECT_FALSE(points_.Spoils(FaultPhase::kForward, 4));
  EXPECT_FALSE(points_.Spoils(FaultPhase::kRecord, 4));
  EXPECT_TRUE(points_.Spoils(FaultPhase::kBackward, 5));
  EXPECT_FALSE(points_.Spoils(FaultPhase::kBackward, 5));
  EXPECT_THAT(told_, ElementsAre("nan backward 5"));
  EXPECT_FALSE(points_.armed());
}

TEST_F(FaultPointsTest, Slow_LastsAndIsToldOnce) {
  points_.Inject({.kind = FaultKind::kSlow, .at_step = 2, .factor = 3});
  EXPECT_EQ(points_.SlowFactor(1), 1);
  EXPECT_EQ(points_.SlowFactor(2), 3);
  EXPECT_EQ(points_.SlowFactor(9), 3);
  EXPECT_FALSE(Fails(FaultPhase::kForward, 9));
  EXPECT_THAT(told_, ElementsAre("slow  2"));
}

TEST_F(FaultPointsTest, SlowForATime_EndsThen) {
  points_.Inject({.kind = FaultKind::kSlow, .factor = 3, .duration = absl::Nanoseconds(1)});
  const auto begin = std::chrono::steady_clock::now();
  while (points_.SlowFactor(1) > 1) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
  EXPECT_FALSE(points_.armed());
}

TEST_F(FaultPointsTest, SlowFromAPhaseOn_BeginsWhereThatIsReached) {
  points_.Inject(
      {.kind = FaultKind::kSlow, .at_step = 5, .phase = FaultPhase::kRecovery, .factor = 3});
  EXPECT_EQ(points_.SlowFactor(7), 1);
  EXPECT_FALSE(Fails(FaultPhase::kRecovery, 4));
  EXPECT_FALSE(Fails(FaultPhase::kForward, 7));
  EXPECT_EQ(points_.SlowFactor(7), 1);
  EXPECT_FALSE(Fails(FaultPhase::kRecovery, 6));
  EXPECT_EQ(points_.SlowFactor(7), 3);
  EXPECT_EQ(points_.SlowFactor(4), 3) << "of a step that is begun again";
  EXPECT_FALSE(Fails(FaultPhase::kRecovery, 8)) << "it has begun";
  EXPECT_THAT(told_, ElementsAre("slow recovery 6"));
}

TEST_F(FaultPointsTest, Hang_EndsNoEarlierThanItIsTo) {
  const auto begin = std::chrono::steady_clock::now();
  points_.Inject({.kind = FaultKind::kHang, .duration = absl::Milliseconds(20)});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_FALSE(Fails(FaultPhase::kReduce, 1));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
}

TEST_F(FaultPointsTest, Partition_IsToldAndLeftToTheDaemon) {
  points_.Inject({.kind = FaultKind::kPartition, .phase = FaultPhase::kBackward});
  EXPECT_FALSE(Fails(FaultPhase::kBackward, 8));
  EXPECT_THAT(told_, ElementsAre("partition backward 8"));
  EXPECT_FALSE(points_.armed());
}

TEST_F(FaultPointsTest, Mute_ComesInAStepAndIsLeftToWhoIsTold) {
  points_.Inject({.kind = FaultKind::kMute});
  EXPECT_FALSE(Fails(FaultPhase::kRecovery, 7));
  EXPECT_FALSE(Fails(FaultPhase::kCheckpoint, 7));
  EXPECT_THAT(told_, IsEmpty()) << "no message of a step is there";
  EXPECT_FALSE(Fails(FaultPhase::kForward, 8));
  EXPECT_THAT(told_, ElementsAre("mute forward 8"));
  EXPECT_FALSE(points_.armed());
}

using FaultPointsDeathTest = FaultPointsTest;

TEST_F(FaultPointsDeathTest, Kill_IsSigkillAtThePointOrAtOnce) {
  points_.Inject({.kind = FaultKind::kKill, .phase = FaultPhase::kOptimizer});
  EXPECT_FALSE(Fails(FaultPhase::kForward, 1));
  EXPECT_EXIT(Fails(FaultPhase::kOptimizer, 1), KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(points_.Inject({.kind = FaultKind::kKill}), KilledBySignal(SIGKILL), "");
}

TEST_F(FaultPointsDeathTest, Exit_HasStatusOneAtThePointOrAtOnce) {
  points_.Inject({.kind = FaultKind::kExit, .at_step = 2});
  EXPECT_EXIT(Fails(FaultPhase::kForward, 2), ExitedWithCode(1), "");
  EXPECT_EXIT(points_.Inject({.kind = FaultKind::kExit}), ExitedWithCode(1), "");
}

// Runs `body` in a process of its own; returns it once it has stopped.
template <typename Body>
pid_t Stopped(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    body();
    _exit(7);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, WUNTRACED), pid);
  EXPECT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP) << status;
  return pid;
}

TEST_F(FaultPointsTest, StopForATime_GoesOnByItself) {
  points_.Inject({.kind = FaultKind::kStop,
                  .at_step = 2,
                  .phase = FaultPhase::kReduce,
                  .duration = absl::Milliseconds(30)});
  const pid_t pid = Stopped([&] { points_.Reach(FaultPhase::kReduce, 2).IgnoreError(); });
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST_F(FaultPointsTest, StopForGood_WaitsForSigcont) {
  const pid_t pid = Stopped([&] { points_.Inject({.kind = FaultKind::kStop}); });
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, WNOHANG), 0);
  kill(pid, SIGCONT);
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

}  // namespace
}  // namespace phalanx::train
