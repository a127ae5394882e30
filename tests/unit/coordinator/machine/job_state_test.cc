#include "coordinator/machine/job_state.h"

#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;

JournalRecord Of(decltype(JournalRecord::body) body) {
  return {.time = absl::FromUnixSeconds(5), .job = JobId{1}, .body = std::move(body)};
}

JobState Submitted() {
  JobState state;
  state.id = JobId{1};
  state.Apply(Of(JobSubmitted{AJob("a", 2), ""}));
  return state;
}

TEST(JobStateTest, RecordBeforeTheSubmission_ChangesNothing) {
  JobState state;
  EXPECT_TRUE(state.Apply(Of(PhaseChanged{JobPhase::kRunning, "", {}})).empty());
  EXPECT_EQ(state.phase, JobPhase::kQueued);
}

TEST(JobStateTest, ForbiddenMove_ChangesNothing) {
  JobState state = Submitted();
  EXPECT_TRUE(state.Apply(Of(PhaseChanged{JobPhase::kRunning, "", {}})).empty());
  EXPECT_EQ(state.phase, JobPhase::kQueued);
}

TEST(JobStateTest, OlderEpoch_ChangesNothing) {
  JobState state = Submitted();
  state.Apply(Of(EpochPlanned{plan::Layout{.epoch = Epoch{2}, .nodes = {{"n", {0, 1}}}}, "p2"}));
  state.Apply(Of(EpochPlanned{plan::Layout{.epoch = Epoch{1}, .nodes = {{"m", {0, 1}}}}, "p1"}));
  EXPECT_EQ(state.epoch, Epoch{2});
  EXPECT_EQ(state.plan_digest, "p2");
}

TEST(JobStateTest, NewEpoch_ForgetsWhoHadSucceeded) {
  JobState state = Submitted();
  state.Apply(Of(EpochPlanned{plan::Layout{.epoch = Epoch{1}, .nodes = {{"n", {0, 1}}}}, "p"}));
  state.Apply(Of(RanksSucceeded{Epoch{1}, {0}}));
  state.Apply(Of(EpochPlanned{plan::Layout{.epoch = Epoch{2}, .nodes = {{"n", {0, 1}}}}, "p"}));
  state.Apply(Of(RanksSucceeded{Epoch{1}, {1}}));
  EXPECT_TRUE(state.succeeded.empty());
}

TEST(JobStateTest, TerminalPhase_StaysWhateverComes) {
  JobState state = Submitted();
  state.Apply(Of(PhaseChanged{JobPhase::kCancelled, "", {}}));
  for (JobPhase phase : {JobPhase::kQueued, JobPhase::kStarting, JobPhase::kRunning,
                         JobPhase::kSucceeded, JobPhase::kFailed}) {
    state.Apply(Of(PhaseChanged{phase, "", {}}));
  }
  EXPECT_EQ(state.phase, JobPhase::kCancelled);
}

}  // namespace
}  // namespace phalanx::coordinator
