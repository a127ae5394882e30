#include "core/job/job_phase.h"

#include "gtest/gtest.h"

namespace phalanx::job {
namespace {

constexpr JobPhase kPhases[] = {JobPhase::kQueued,    JobPhase::kStarting, JobPhase::kRunning,
                                JobPhase::kSucceeded, JobPhase::kFailed,   JobPhase::kCancelled};

TEST(JobPhaseTest, TerminalPhases_AreNeverLeft) {
  for (const JobPhase from : kPhases) {
    for (const JobPhase to : kPhases) {
      EXPECT_FALSE(IsTerminal(from) && MayMove(from, to)) << ToString(from) << ToString(to);
    }
  }
}

TEST(JobPhaseTest, LivePhases_GoForwardOrEnd) {
  EXPECT_TRUE(MayMove(JobPhase::kQueued, JobPhase::kStarting));
  EXPECT_TRUE(MayMove(JobPhase::kStarting, JobPhase::kRunning));
  EXPECT_TRUE(MayMove(JobPhase::kRunning, JobPhase::kSucceeded));
  EXPECT_TRUE(MayMove(JobPhase::kRunning, JobPhase::kQueued)) << "to start again";
  EXPECT_TRUE(MayMove(JobPhase::kStarting, JobPhase::kQueued)) << "to start once more";
  EXPECT_FALSE(MayMove(JobPhase::kQueued, JobPhase::kRunning));
  EXPECT_FALSE(MayMove(JobPhase::kStarting, JobPhase::kSucceeded));
  EXPECT_FALSE(MayMove(JobPhase::kRunning, JobPhase::kStarting));
  for (const JobPhase from : {JobPhase::kQueued, JobPhase::kStarting, JobPhase::kRunning}) {
    EXPECT_TRUE(MayMove(from, JobPhase::kFailed));
    EXPECT_TRUE(MayMove(from, JobPhase::kCancelled));
    EXPECT_FALSE(MayMove(from, from));
  }
}

TEST(JobPhaseTest, Names_ReadBack) {
  for (const JobPhase phase : kPhases) EXPECT_EQ(ParseJobPhase(ToString(phase)), phase);
  EXPECT_EQ(ParseJobPhase("running"), std::nullopt);
}

}  // namespace
}  // namespace phalanx::job
