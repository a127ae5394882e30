#include "core/schedule/admission.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/plan/loss.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/memory_fit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

AJob TwoReplicas() {
  AJob job =
      AJob().Module("language", support::Llama({.layers = 4}), {.tp = 2, .dp = 2}).Batch(16, 8);
  job.spec().checkpoint = job::Checkpoint{.directory = "checkpoints", .every = 50};
  return job;
}

absl::StatusOr<plan::Plan> Admitted(const job::JobSpec& spec, int64_t memory) {
  const int32_t world = spec.World();
  return AdmitJob(spec, plan::MakeCluster(1, world),
                  std::vector<int64_t>(static_cast<size_t>(world), memory), Epoch{1});
}

int64_t MostOf(const plan::Plan& plan) {
  int64_t most = 0;
  for (const plan::MemoryEstimate& estimate : plan::EstimateMemory(plan))
    most = std::max(most, estimate.total());
  return most;
}

// What the plan and what is left of it without one rank need on the fullest device.
struct Needs {
  int64_t healthy = 0, narrowed = 0;
};
Needs NeedsOf(const job::JobSpec& spec) {
  const plan::Plan plan = *plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  return {MostOf(plan), MostOf(*plan::PlanWithout(plan, {Rank{0}})) + kMoveBytes};
}

TEST(AdmissionTest, MemoryForAnyLoss_IsPlannedAsWritten) {
  const job::JobSpec spec = TwoReplicas();
  const absl::StatusOr<plan::Plan> plan = Admitted(spec, NeedsOf(spec).narrowed);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->notes, IsEmpty());
  EXPECT_EQ(plan->layout.micro, 0);
  EXPECT_EQ(plan->digest, plan::MakePlan(spec, plan::MakeCluster(1, 4), Epoch{1})->digest);
}

TEST(AdmissionTest, UnknownMemory_IsPlannedAsWritten) {
  const absl::StatusOr<plan::Plan> plan = Admitted(TwoReplicas(), 0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->notes, IsEmpty());
}

TEST(AdmissionTest, NarrowedReplicaThatDoesNotFit_LowersTheMicrobatchAndSaysSo) {
  const job::JobSpec spec = TwoReplicas();
  const absl::StatusOr<plan::Plan> plan = Admitted(spec, NeedsOf(spec).narrowed - 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.micro, 4);
  EXPECT_EQ(plan->spec.batch.micro, 4);
  EXPECT_EQ(plan->microbatches, 2);
  EXPECT_THAT(plan->notes, ElementsAre(HasSubstr("batch.micro is 4 instead of 8: without node-0/0, "
                                                 "rank ")));
  // Whoever gets the layout derives the same plan.
  const auto again = plan::Expand(spec, plan->layout);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->digest, plan->digest);
  EXPECT_EQ(again->microbatches, 2);
}

TEST(AdmissionTest, HomesThatWereLowered_StayLoweredInWhatIsLeft) {
  const job::JobSpec spec = TwoReplicas();
  plan::Layout layout = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1})->layout;
  layout.micro = 1;
  layout.modules[0].state_home = job::StateHome::kHost;
  const auto narrowed = plan::PlanWithout(*plan::Expand(spec, layout), {Rank{1}});
  ASSERT_TRUE(narrowed.ok()) << narrowed.status();
  const int64_t memory = MostOf(*narrowed) + kMoveBytes;
  const absl::StatusOr<plan::Plan> plan = Admitted(spec, memory);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->notes,
              ElementsAre(HasSubstr("batch.micro is 1 instead of 8: "),
                          HasSubstr("second home in host memory instead of mirrors: ")));
  const auto left = plan::PlanWithout(*plan, {Rank{1}});
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->layout.modules[0].state_home, job::StateHome::kHost);
  EXPECT_EQ(MostOf(*left), MostOf(*narrowed));
  EXPECT_EQ(left->notes, plan->notes);
}

// The encoder's only rank cannot be lost, whatever is lowered; the language model's ranks can.
TEST(AdmissionTest, LossThatNothingHelps_DoesNotKeepOthersFromBeingTolerated) {
  AJob job;
  job.Module("vision", support::ClipVision())
      .Module("language", support::Llama({.layers = 4}), {.tp = 2, .dp = 2})
      .Edge("vision", "language", {.projector = 32})
      .Batch(16, 8);
  job.spec().checkpoint = job::Checkpoint{.directory = "checkpoints", .every = 50};
  const job::JobSpec spec = job;
  const plan::Plan healthy = *plan::MakePlan(spec, plan::MakeCluster(1, 5), Epoch{1});
  const int64_t needed = MostOf(*plan::PlanWithout(healthy, {Rank{1}})) + kMoveBytes;
  const absl::StatusOr<plan::Plan> plan = Admitted(spec, needed - 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.micro, 4);
  EXPECT_THAT(plan->notes,
              ElementsAre(HasSubstr("batch.micro is 4 instead of 8: without node-0/1, rank "),
                          HasSubstr("losing device node-0/0 costs up to 50 steps: no replica of "
                                    "module vision is left")));
}

TEST(AdmissionTest, NothingThatTolerates_IsPlannedAsWrittenAndSaysWhatItCosts) {
  job::JobSpec spec = TwoReplicas();
  const absl::StatusOr<plan::Plan> plan = Admitted(spec, NeedsOf(spec).healthy);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_FALSE(plan->notes.empty());
  EXPECT_THAT(plan->notes.back(), HasSubstr("losing device node-0/0 costs up to 50 steps: rank "));
}

TEST(AdmissionTest, LastReplicaOfOneRank_CostsAllStepsWithoutCheckpoints) {
  const absl::StatusOr<plan::Plan> plan =
      Admitted(AJob().Module("language", support::Llama()).Batch(4, 2), 0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->notes,
              ElementsAre(HasSubstr("losing device node-0/0 costs all steps so far: ")));
}

// Two nodes of two devices: replicas that are apart, or both on one.
TEST(AdmissionTest, NodeWithAllHomesOfSomeState_IsNamed) {
  const auto notes_of = [](std::array<job::MeshAxis, 4> order, int32_t nodes) {
    AJob job;
    job.Module("language", support::Llama(), {.dp = 2, .pp = 2, .order = order}).Batch(4, 2);
    return AdmitJob(job, plan::MakeCluster(nodes, 4 / nodes), {}, Epoch{1})->notes;
  };
  using A = job::MeshAxis;
  constexpr std::array<A, 4> kApart = {A::kTensor, A::kContext, A::kPipeline, A::kData};
  constexpr std::array<A, 4> kTogether = {A::kTensor, A::kContext, A::kData, A::kPipeline};
  EXPECT_THAT(notes_of(kApart, 2), IsEmpty());
  EXPECT_THAT(notes_of(kTogether, 2),
              ElementsAre("losing node node-0, or another of 2, costs all steps so far: it has all "
                          "homes of the state of module language"));
  EXPECT_THAT(notes_of(kTogether, 1), IsEmpty()) << "it ends with its node anyway";
}

TEST(AdmissionTest, NothingThatFits_IsRefusedAsWritten) {
  const absl::StatusOr<plan::Plan> plan = Admitted(TwoReplicas(), 1000);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.status().message(), HasSubstr("device has 1000 B"));
}

}  // namespace
}  // namespace phalanx::schedule
