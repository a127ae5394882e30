// What a rank shows to who watches it (core/posix/activity.h) where mirrors are filled, between
// steps.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/posix/activity.h"
#include "tests/oracle/training/cases.h"
#include "worker/train/trainer.h"

namespace phalanx::oracle {
namespace {

TEST(BoundaryTest, WaitForOthersBetweenSteps_IsShown) {
  NamedJob job = Named("alone", support::AJob().Module("language", TinyLanguage()).Batch(4, 2));
  job.spec.steps = 3;
  const plan::Plan plan = *plan::MakePlan(job.spec, plan::MakeCluster(1, 1), Epoch{1});
  const std::unique_ptr<train::SampleSource> source = MakeData(job.data);
  const std::unique_ptr<train::TrainingState> state =
      *train::TrainingState::Create(plan, Rank{0}, {.compute = at::kDouble});
  comm::Communicators communicators(plan::Communicators(plan).size());
  std::atomic<uint64_t> word = 0;
  const ActivityOfThread shown(&word);
  int32_t boundaries = 0;
  const std::unique_ptr<train::Trainer> trainer = *train::Trainer::Create(
      plan, Rank{0}, communicators, *source, *state, {},
      {.wants_boundary = [] { return true; },
       .on_boundary =
           [&] {
             ++boundaries;
             EXPECT_FALSE(ShowsWork(word)) << "how long it may take is not known";
             EXPECT_FALSE(ShowsNeed(word));
             const Waiting for_others(Waiting::kNeed);
             EXPECT_TRUE(ShowsNeed(word));
             return absl::OkStatus();
           }});
  ASSERT_TRUE(trainer->Prepare().ok());
  ASSERT_TRUE(trainer->Run().ok());
  EXPECT_EQ(boundaries, 2);
  EXPECT_FALSE(ShowsWork(word) || ShowsNeed(word));
}

// Once training went on to its last step, and failed there.
TEST(SettledTest, ErrorBehindAStep_EndsTrainingThere) {
  NamedJob job = Named("alone", support::AJob().Module("language", TinyLanguage()).Batch(4, 2));
  job.spec.steps = 5;
  const plan::Plan plan = *plan::MakePlan(job.spec, plan::MakeCluster(1, 1), Epoch{1});
  const std::unique_ptr<train::SampleSource> source = MakeData(job.data);
  const std::unique_ptr<train::TrainingState> state =
      *train::TrainingState::Create(plan, Rank{0}, {.compute = at::kDouble});
  comm::Communicators communicators(plan::Communicators(plan).size());
  int32_t settled = 0;
  const std::unique_ptr<train::Trainer> trainer = *train::Trainer::Create(
      plan, Rank{0}, communicators, *source, *state, {}, {.on_settled = [&]() -> absl::Status {
        return ++settled == 2 ? absl::ResourceExhaustedError("no room") : absl::OkStatus();
      }});
  ASSERT_TRUE(trainer->Prepare().ok());
  EXPECT_EQ(trainer->Run(), absl::ResourceExhaustedError("no room"));
  EXPECT_EQ(settled, 2);
  EXPECT_EQ(state->decided().step, 2);
}

}  // namespace
}  // namespace phalanx::oracle
