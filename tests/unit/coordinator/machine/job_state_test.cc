#include "coordinator/machine/job_state.h"

#include <gtest/gtest.h>

#include "tests/unit/coordinator/machine/harness.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;

JournalRecord RecordOf(decltype(JournalRecord::body) body) {
  return {.time = absl::FromUnixSeconds(5), .job = JobId{1}, .body = std::move(body)};
}

JobState Submitted() {
  JobState state;
  state.id = JobId{1};
  state.Apply(RecordOf(JobSubmitted{AJob("a", 2), ""}));
  return state;
}

TEST(JobStateTest, RecordBeforeTheSubmission_ChangesNothing) {
  JobState state;
  EXPECT_TRUE(state.Apply(RecordOf(PhaseChanged{JobPhase::kRunning, "", {}})).empty());
  EXPECT_EQ(state.phase, JobPhase::kQueued);
}

TEST(JobStateTest, ForbiddenMove_ChangesNothing) {
  JobState state = Submitted();
  EXPECT_TRUE(state.Apply(RecordOf(PhaseChanged{JobPhase::kRunning, "", {}})).empty());
  EXPECT_EQ(state.phase, JobPhase::kQueued);
}

TEST(JobStateTest, OlderEpoch_ChangesNothing) {
  JobState state = Submitted();
  state.Apply(
      RecordOf(EpochPlanned{plan::Layout{.epoch = Epoch{2}, .nodes = {{"n", {0, 1}}}}, "p2"}));
  state.Apply(
      RecordOf(EpochPlanned{plan::Layout{.epoch = Epoch{1}, .nodes = {{"m", {0, 1}}}}, "p1"}));
  EXPECT_EQ(state.epoch, Epoch{2});
  EXPECT_EQ(state.plan_digest, "p2");
}

TEST(JobStateTest, NewEpoch_ForgetsWhoHadSucceeded) {
  JobState state = Submitted();
  state.Apply(
      RecordOf(EpochPlanned{plan::Layout{.epoch = Epoch{1}, .nodes = {{"n", {0, 1}}}}, "p"}));
  state.Apply(RecordOf(RanksSucceeded{Epoch{1}, {0}}));
  state.Apply(
      RecordOf(EpochPlanned{plan::Layout{.epoch = Epoch{2}, .nodes = {{"n", {0, 1}}}}, "p"}));
  state.Apply(RecordOf(RanksSucceeded{Epoch{1}, {1}}));
  EXPECT_TRUE(state.succeeded.empty());
}

// The records of epoch `number`, planned at that second.
void Plan(JobState& state, int64_t number, int64_t second) {
  JournalRecord record =
      RecordOf(EpochPlanned{plan::Layout{.epoch = Epoch{number}, .nodes = {{"n", {0, 1}}}}, "p"});
  record.time = absl::FromUnixSeconds(second);
  state.Apply(record);
  record.time += absl::Seconds(1);
  state.Apply(record);  // with the digest of the data
}

TEST(JobStateTest, Fence_GrowsFromEpochToEpochAlsoWhereTheClockIsSetBack) {
  JobState state = Submitted();
  Plan(state, 1, 100);
  EXPECT_EQ(state.fence, 100'000'000);
  Plan(state, 2, 50);
  EXPECT_EQ(state.fence, 100'000'001);
  Plan(state, 3, 200);
  EXPECT_EQ(state.fence, 200'000'000);
}

TEST(JobStateTest, Fence_OfAStoreThatWasPutBack_IsAboveThoseOfBefore) {
  JobState state = Submitted();
  Plan(state, 1, 100);
  JobState copy = state;
  for (int64_t epoch = 2; epoch <= 9; ++epoch) Plan(state, epoch, 100 + epoch);
  Plan(copy, 2, 200);
  EXPECT_LT(copy.epoch, state.epoch);
  EXPECT_GT(copy.fence, state.fence);
}

TEST(JobStateTest, TerminalPhase_StaysWhateverComes) {
  JobState state = Submitted();
  state.Apply(RecordOf(PhaseChanged{JobPhase::kCancelled, "", {}}));
  for (JobPhase phase : {JobPhase::kQueued, JobPhase::kStarting, JobPhase::kRunning,
                         JobPhase::kSucceeded, JobPhase::kFailed}) {
    state.Apply(RecordOf(PhaseChanged{phase, "", {}}));
  }
  EXPECT_EQ(state.phase, JobPhase::kCancelled);
}

}  // namespace
}  // namespace phalanx::coordinator
