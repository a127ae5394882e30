#include "core/schedule/admission.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/loss.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/memory_fit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "tests/unit/core/schedule/admitted.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

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

// By what communicators take a plan may fit or not, also beside a spare device.
TEST(AdmissionTest, WhatProcessesTake_HasItsPlaceBesideWhatIsEstimated) {
  const job::JobSpec spec = TwoReplicas();
  constexpr int64_t kLeast = 3'000, kWide = 50'000;
  BytesBeside beside{
      .least = kLeast,
      .process = ProcessBytes{.context = 1'000,
                              .communicators = CommunicatorsBytes{.wide = {.made = kWide}}}};
  const auto admitted = [&](int64_t left, int64_t devices) {
    return AdmitJob(spec, plan::MakeCluster(1, static_cast<int32_t>(devices)),
                    {.devices = std::vector<int64_t>(static_cast<size_t>(devices),
                                                     NeedsOf(spec).narrowed + left)},
                    Epoch{1}, beside);
  };
  // A tensor group and a data group of each rank.
  const int64_t taken = 1'000 + 2 * kWide;
  EXPECT_THAT(admitted(taken, 4)->notes, IsEmpty());
  EXPECT_EQ(admitted(taken - 1, 4)->layout.micro, 4);
  EXPECT_THAT(admitted(taken, 5)->notes, IsEmpty());
  EXPECT_EQ(admitted(taken - 1, 5)->layout.micro, 4);
  beside.process.reset();
  EXPECT_THAT(admitted(kLeast, 4)->notes, IsEmpty());
  EXPECT_EQ(admitted(kLeast - 1, 4)->layout.micro, 4);
}

// Replicas of several widths sum by messages, for which ranks are connected.
TEST(AdmissionTest, WhatProcessesTakeOfAJobThatBeginsWithoutADevice_IsThatOfWhatIsLeft) {
  job::JobSpec spec = TwoReplicas();
  spec.recovery.ladder = {job::Rung::kShrink};
  const plan::Plan healthy = *Admitted(spec, 0);
  const int64_t needed = MostOf(*plan::PlanWithout(healthy, {Rank{0}}));
  const int64_t each_peer = needed / 4;
  const auto without = [&](int64_t peers) {
    const BytesBeside beside{
        .process = ProcessBytes{.communicators = CommunicatorsBytes{
                                    .control = {.made = 1}, .wide = {.each_peer = each_peer}}}};
    const std::vector<int64_t> devices(4, needed + 1 + peers * each_peer);
    return AdmitWithout(healthy, {Rank{0}}, {.devices = devices}, beside).status();
  };
  EXPECT_TRUE(without(2).ok()) << without(2);
  // As many as any rank has that keeps copies alike with the other one of its tensor group.
  EXPECT_THAT(std::string(without(1).message()), HasSubstr("without rank 0, rank "));
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
      .Batch(16, 8)
      .Steps(1000);
  job.spec().checkpoint = job::Checkpoint{.directory = "checkpoints", .every = 50};
  const job::JobSpec spec = job;
  const plan::Plan healthy = *plan::MakePlan(spec, plan::MakeCluster(1, 5), Epoch{1});
  const int64_t needed = MostOf(*plan::PlanWithout(healthy, {Rank{1}})) + kMoveBytes;
  const absl::StatusOr<plan::Plan> plan = Admitted(spec, needed - 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.micro, 4);
  EXPECT_THAT(
      plan->notes,
      ElementsAre(
          HasSubstr("batch.micro is 4 instead of 8: without node-0/1, rank "),
          HasSubstr(
              "losing device node-0/0 makes the job wait for it, which costs up to 50 steps where "
              "it is not back within 10m (recovery.hold): no replica of module vision is left"),
          StartsWith("vision: the loss of its device stops the job: ")));
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
  EXPECT_THAT(
      plan->notes,
      ElementsAre(HasSubstr("losing device node-0/0 makes the job wait for it, which costs all "
                            "steps so far where it is not back within 10m (recovery.hold): "),
                  StartsWith("language: the loss of its device stops the job: ")));
}

TEST(AdmissionTest, CheckpointBehindTheLastStep_SavesNone) {
  AJob job = AJob().Module("language", support::Llama()).Batch(4, 2).Steps(10);
  for (const int64_t every : {9, 10, 100}) {
    job.spec().checkpoint = job::Checkpoint{.directory = "checkpoints", .every = every};
    EXPECT_THAT(
        Admitted(job, 0)->notes,
        ElementsAre(
            HasSubstr(every < 10 ? " costs up to 9 steps where "
                                 : " costs all steps so far where "),
            HasSubstr(every < 10 ? ", then begins again on other devices with its last checkpoint"
                                 : ", then fails, since ")));
  }
}

// Each device has another size, so none is like another; the encoder is on the last.
TEST(AdmissionTest, LargePlanOnUnequalDevices_TellsOfEveryKindOfStage) {
  AJob job;
  job.Module("language", support::Llama(), {.dp = 2048})
      .Module("vision", support::ClipVision())
      .Edge("vision", "language", {.projector = 32})
      .Batch(2048, 1);
  plan::MemoryLimits limits;
  for (int64_t i = 0; i < 2049; ++i) limits.devices.push_back((int64_t{80} << 30) + (i << 20));
  const auto plan = AdmitJob(job, plan::MakeCluster(1, 2049), limits, Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->notes, Contains(StartsWith(
                               "losing device node-0/2048 makes the job wait for it, which costs "
                               "all steps so far where it is not back within 10m (recovery.hold): "
                               "no replica of module vision is left")));
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

// Three replicas on nodes of their own; two of them are in one rack, which has more than half.
TEST(AdmissionTest, FailureDomainWithAllHomesOfSomeState_IsNamed) {
  const job::JobSpec spec = AJob().Module("language", support::Llama(), {.dp = 3}).Batch(3, 1);
  const auto notes_of = [&spec](std::vector<std::string> domains) {
    plan::Cluster cluster = plan::MakeCluster(3, 1);
    for (size_t i = 0; i < domains.size(); ++i) cluster.devices[i].domain = domains[i];
    return AdmitJob(spec, cluster, {}, Epoch{1})->notes;
  };
  EXPECT_THAT(notes_of({"rack-1", "rack-2", "rack-2"}),
              ElementsAre("losing failure domain rack-2 costs all steps so far: it has all homes "
                          "of some state of module language"));
  EXPECT_THAT(notes_of({"rack-1", "rack-2", "rack-3"}), IsEmpty());
  EXPECT_THAT(notes_of({"rack-1", "", ""}), IsEmpty()) << "these fail alone";
  EXPECT_THAT(notes_of({"rack-1", "rack-1", "rack-1"}), IsEmpty())
      << "it ends with its rack anyway";
}

TEST(AdmissionTest, NothingThatFits_IsRefusedAsWritten) {
  const absl::StatusOr<plan::Plan> plan = Admitted(TwoReplicas(), 1000);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.status().message(), HasSubstr("device has 1000 B for it"));
}

// Ranks of the same stage, but those beside the last two devices have less to take over with.
TEST(AdmissionTest, DevicesOfUnequalMemory_AreOfSeveralKinds) {
  const job::JobSpec spec = TwoReplicas().Batch(2, 1);
  const int64_t narrowed = NeedsOf(spec).narrowed, less = narrowed - 1;
  const auto notes_of = [&spec](std::vector<int64_t> devices) {
    return AdmitJob(spec, plan::MakeCluster(1, 4), {.devices = std::move(devices)}, Epoch{1})
        ->notes;
  };
  EXPECT_THAT(notes_of({narrowed, narrowed, narrowed, narrowed}), IsEmpty());
  EXPECT_THAT(notes_of({0, 0, narrowed, narrowed}), IsEmpty());
  const auto lowered = ElementsAre(HasSubstr(" instead of mirrors: without node-0/2, rank 3 "));
  EXPECT_THAT(notes_of({narrowed, narrowed, less, less}), lowered);
  EXPECT_THAT(notes_of({0, 0, 0, less}), lowered);
}

// Ranks 0 and 2 of two replicas lead the same units; without rank 1 all of them are of rank 0.
TEST(AdmissionTest, NodeWithAllHomesOfSomeStateOfUnequalWidths_IsNamed) {
  const job::JobSpec spec =
      AJob().Module("language", support::Llama({.layers = 4}), {.tp = 2, .dp = 2}).Batch(4, 1);
  const auto note = HasSubstr(": it has all homes of the state of module language");
  const plan::Plan split = *AdmitJob(
      spec, {{{NodeName("a"), 0}, {NodeName("a"), 1}, {NodeName("a"), 2}, {NodeName("b"), 0}}}, {},
      Epoch{1});
  EXPECT_THAT(split.notes, ElementsAre(AllOf(StartsWith("losing node a costs "), note)));
  EXPECT_THAT(AdmitWithout(split, {Rank{1}}, {})->notes,
              ElementsAre(AllOf(StartsWith("losing node a costs "), note)));
  const plan::Plan apart = *AdmitJob(spec, plan::MakeCluster(2, 2), {}, Epoch{1});
  EXPECT_THAT(AdmitWithout(apart, {Rank{1}}, {})->notes, IsEmpty());
}

// One of three replicas is on devices which have no room for it narrowed; then that one is gone,
// then another one too.
TEST(AdmissionTest, RisksOfWhatIsLeft_AreItsOwn) {
  AJob job = AJob().Module("language", support::Llama({.layers = 4}), {.tp = 2, .dp = 3});
  job.Batch(6, 1).spec().recovery.state_home = job::StateHome::kMirror;
  job.spec().modules[0].recompute = job::Recompute::kFull;  // so that nothing can be lowered
  const int64_t narrowed = NeedsOf(job).narrowed, less = narrowed - 1, enough = 2 * narrowed;
  const plan::MemoryLimits limits = {.devices = {less, less, enough, enough, enough, enough}};
  const plan::Plan healthy = *AdmitJob(job, plan::MakeCluster(1, 6), limits, Epoch{1});
  EXPECT_THAT(healthy.notes,
              Contains(StartsWith("losing device node-0/0 costs all steps so far: rank 1 ")));
  const plan::Plan two = *AdmitWithout(healthy, {Rank{0}, Rank{1}}, limits);
  EXPECT_THAT(two.notes, Not(Contains(HasSubstr("losing device"))));
  const std::vector<Rank> lost = {Rank{0}, Rank{1}, Rank{2}, Rank{3}};
  const plan::Plan one = *AdmitWithout(healthy, lost, limits);
  EXPECT_THAT(one.notes, Contains(StartsWith("losing device node-0/4 costs all steps so far: ")));
}

// Whichever replica it is: the one that is narrow now has no rung left.
// Nodes of unequal size: whichever rank goes, no other gets more mirrors than the rest.
TEST(AdmissionTest, JobThatToleratesOneLoss_ToleratesAnyOther) {
  support::AJob job;
  job.Module("language",
             support::Llama({.hidden_size = 1024,
                             .layers = 4,
                             .heads = 8,
                             .kv_heads = 8,
                             .mlp_size = 4096,
                             .block = 128,
                             .vocabulary = 32000}),
             {.dp = 9})
      .Batch(72, 1);
  job.spec().recovery.state_home = job::StateHome::kMirror;
  const plan::Cluster cluster = plan::MakeCluster(3, 4);
  const plan::Plan healthy = *plan::MakePlan(job, cluster, Epoch{1});
  const int64_t memory = MostOf(*plan::PlanWithout(healthy, {Rank{0}})) + kMoveBytes;
  const plan::MemoryLimits limits{.devices = std::vector<int64_t>(12, memory)};
  const plan::Plan admitted = *AdmitJob(job, cluster, limits, Epoch{1});
  EXPECT_THAT(admitted.notes, IsEmpty());
  for (int32_t lost = 0; lost < 9; ++lost) {
    const auto left = AdmitWithout(admitted, {Rank{lost}}, limits);
    EXPECT_TRUE(left.ok()) << lost << ": " << left.status();
  }
}

TEST(AdmissionTest, NarrowReplicaThatCannotShrinkAgain_IsNamed) {
  AJob job = TwoReplicas();
  job.spec().recovery.ladder = {job::Rung::kShrink};
  const plan::Plan healthy = *Admitted(job, 0);
  EXPECT_THAT(healthy.notes, IsEmpty());
  for (const auto& [lost, next] : {std::pair(0, 1), {1, 0}, {2, 3}, {3, 2}}) {
    EXPECT_THAT(AdmitWithout(healthy, {Rank{lost}}, {})->notes,
                ElementsAre(StartsWith(absl::StrCat("losing device node-0/", next,
                                                    " costs up to 50 steps: recovery.ladder "))));
  }
}

// A job may begin where state could not have moved to.
TEST(AdmissionTest, LossWhoseMovesDoNotFit_IsToldWhereAJobBeginsWithoutTheDevice) {
  const job::JobSpec spec = TwoReplicas();
  const plan::Plan healthy = *Admitted(spec, 0);
  const int64_t narrowed = NeedsOf(spec).narrowed;
  const auto notes_of = [&](int64_t memory) {
    return AdmitWithout(healthy, {Rank{0}}, {.devices = std::vector<int64_t>(4, memory)})->notes;
  };
  const auto note =
      Contains(StartsWith("losing these devices while the job runs costs up to 50 steps: rank 1 "));
  EXPECT_THAT(notes_of(narrowed), Not(note));
  EXPECT_THAT(notes_of(narrowed - 1), note);
}

TEST(AdmissionTest, MirrorsThatTheJobAsksForWithoutRoom_AreNamed) {
  AJob job = TwoReplicas().Batch(2, 1);
  job.spec().recovery.state_home = job::StateHome::kMirror;
  plan::Layout layout = plan::MakePlan(job, plan::MakeCluster(1, 4), Epoch{1})->layout;
  layout.modules[0].recompute = job::Recompute::kFull;
  const int64_t mirrored = MostOf(*plan::Expand(job, layout));
  EXPECT_TRUE(Admitted(job, mirrored).ok());
  layout.modules[0].state_copies = 1;
  const int64_t alone = MostOf(*plan::Expand(job, layout));
  for (const int64_t memory : {mirrored - 1, alone}) {
    const absl::Status refused = Admitted(job, memory).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(StartsWith("spec.recovery.state_home: mirror: rank 0 "),
                      EndsWith("; with state_copies 1 there is room")));
  }
  EXPECT_THAT(std::string(Admitted(job, alone - 1).status().message()),
              Not(HasSubstr("state_home")));
}

}  // namespace
}  // namespace phalanx::schedule
