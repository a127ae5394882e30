// Second homes of optimizer state and copies for checkpoints in the memory of nodes.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/loss.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/memory_fit.h"
#include "core/schedule/admission.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "tests/unit/core/schedule/admitted.h"

namespace phalanx::schedule {
namespace {

using support::AJob;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// A module of one replica on two nodes of two devices, so its second home is host memory.
AJob OnTwoNodes(job::StateHome home = job::StateHome::kAuto) {
  AJob job = AJob().Module("language", support::Llama(), {.tp = 4}).Batch(4, 2).Steps(20);
  job.spec().recovery.state_home = home;
  return job;
}
absl::StatusOr<plan::Plan> AdmittedOnHosts(const job::JobSpec& spec, std::vector<int64_t> nodes,
                                           std::vector<int64_t> devices = {}) {
  const auto count = static_cast<int32_t>(nodes.size());
  return AdmitJob(spec, plan::MakeCluster(count, spec.World() / count),
                  {.devices = std::move(devices), .nodes = std::move(nodes)}, Epoch{1});
}
std::vector<int64_t> HostNeeds(const plan::Plan& plan) {
  std::vector<int64_t> needs;
  for (const plan::HostEstimate& node : plan::HostMemoryOf(plan, plan::EstimateMemory(plan)))
    needs.push_back(node.total());
  return needs;
}
// Enough for whatever is left without a device.
constexpr int64_t kEnough = int64_t{1} << 40;
std::string Gives(int64_t bytes) { return plan::FormatBytes(bytes); }

TEST(HostMemoryTest, NodesOfUnknownMemory_AndThoseWithEnough_HoldSecondHomes) {
  const plan::Plan unknown = *AdmittedOnHosts(OnTwoNodes(), {0, 0});
  EXPECT_EQ(unknown.layout.modules[0].state_home, job::StateHome::kHost);
  EXPECT_EQ(unknown.layout.modules[0].state_copies, 2);
  for (const std::vector<int64_t>& nodes : {std::vector{kEnough, kEnough}, {0, kEnough}}) {
    const absl::StatusOr<plan::Plan> plan = AdmittedOnHosts(OnTwoNodes(), nodes);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->digest, unknown.digest);
    EXPECT_EQ(plan->notes, unknown.notes);
  }
}

TEST(HostMemoryTest, SecondHomeWithoutRoom_IsLeftOutAndWhatALossCostsIsSaid) {
  const int64_t need = HostNeeds(*AdmittedOnHosts(OnTwoNodes(), {0, 0}))[1];
  const absl::StatusOr<plan::Plan> plan = AdmittedOnHosts(OnTwoNodes(), {kEnough, need - 1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.modules[0].state_copies, 1);
  EXPECT_THAT(HostNeeds(*plan), ElementsAre(0, 0));
  EXPECT_THAT(
      plan->notes,
      ElementsAre(
          absl::StrCat("optimizer state of module language has no second home: node-1 "
                       "needs ",
                       Gives(need), " of host memory for second homes of optimizer state and has ",
                       Gives(need - 1)),
          "losing device node-0/0 costs all steps so far: a part of the optimizer state "
          "has no second home",
          "language: the loss of any one device ends the job: its state has one home "
          "(state_copies: 1), and it writes no checkpoint before its last step"));
}

// While any is there, ranks copy the state of all modules.
TEST(HostMemoryTest, OfSeveralSecondHomes_AllAreLeftOut) {
  AJob job = AJob()
                 .Module("vision", support::ClipVision(), {.tp = 2, .offset = 0})
                 .Module("language", support::Llama({.layers = 8}), {.tp = 2, .offset = 0})
                 .Edge("vision", "language", {.projector = 32})
                 .Batch(4, 2);
  const int64_t has = HostNeeds(*AdmittedOnHosts(job, {0}))[0] - 1;
  const absl::StatusOr<plan::Plan> plan = AdmittedOnHosts(job, {has});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.modules[0].state_copies, 1);
  EXPECT_EQ(plan->layout.modules[1].state_copies, 1);
  EXPECT_THAT(HostNeeds(*plan), ElementsAre(0));
  EXPECT_THAT(plan->notes, Contains(HasSubstr("module vision has no second home: node-0 needs ")));
  EXPECT_THAT(plan->notes,
              Contains(HasSubstr("module language has no second home: node-0 needs ")));
}

TEST(HostMemoryTest, SecondHomeThatTheJobAsksFor_IsRefused) {
  const job::JobSpec spec = OnTwoNodes(job::StateHome::kHost);
  const std::vector<int64_t> needs = HostNeeds(*AdmittedOnHosts(spec, {0, 0}));
  EXPECT_TRUE(AdmittedOnHosts(spec, needs).ok());
  const absl::Status refused = AdmittedOnHosts(spec, {needs[0] - 1, needs[1]}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            absl::StrCat("spec.recovery.state_home: host: node-0 needs ", Gives(needs[0]),
                         " of host memory for second homes of optimizer state and has ",
                         Gives(needs[0] - 1)));
}

TEST(HostMemoryTest, CheckpointsWithoutRoom_AreRefused) {
  AJob job = TwoReplicas();
  const int64_t need = HostNeeds(*Admitted(job, 0))[0];
  ASSERT_GT(need, 0);
  EXPECT_TRUE(AdmittedOnHosts(job, {need}).ok());
  EXPECT_EQ(AdmittedOnHosts(job, {need - 1}).status().message(),
            absl::StrCat("spec.checkpoint: node-0 needs ", Gives(need),
                         " of host memory for the copy that checkpoints are written from and has ",
                         Gives(need - 1)));
  job.spec().checkpoint.reset();
  EXPECT_TRUE(AdmittedOnHosts(job, {1}).ok()) << "mirrors take none";
}

// Node 1 keeps two thirds of the state then, instead of a half.
TEST(HostMemoryTest, LossThatLeavesNoRoom_IsSaid) {
  const job::JobSpec spec = OnTwoNodes(job::StateHome::kHost);
  const plan::Plan healthy = *AdmittedOnHosts(spec, {0, 0});
  const int64_t left = HostNeeds(*plan::PlanWithout(healthy, {Rank{0}}))[1];
  ASSERT_GT(left, HostNeeds(healthy)[1]);
  const auto of_nodes = HasSubstr("losing node node-0, or another of 2, costs all steps so far");
  EXPECT_THAT(AdmittedOnHosts(spec, {left, left})->notes, ElementsAre(of_nodes));
  EXPECT_THAT(
      AdmittedOnHosts(spec, {left, left - 1})->notes,
      ElementsAre(
          absl::StrCat("losing device node-0/0 costs all steps so far: node-1 needs ", Gives(left),
                       " of host memory for second homes of optimizer state and has ",
                       Gives(left - 1)),
          of_nodes));
  // Without being asked for them it goes on without them.
  EXPECT_THAT(AdmittedOnHosts(OnTwoNodes(), {left, left - 1})->notes,
              ElementsAre(HasSubstr("without device node-0/0 some optimizer state has no second "
                                    "home: node-1 needs "),
                          of_nodes));
}

// The job as it is once everything that spares devices is lowered but recompute: second homes in
// host memory, one sample a microbatch.
plan::Layout Moved(const job::JobSpec& spec) {
  plan::Layout layout = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1})->layout;
  layout.micro = 1;
  layout.modules[0].state_home = job::StateHome::kHost;
  return layout;
}
AJob TwoReplicasWithoutCheckpoints() {
  AJob job = TwoReplicas().Steps(20);
  job.spec().checkpoint.reset();
  return job;
}

// As in AdmissionTest.HomesThatWereLowered_...: the devices hold the narrowed plan with second
// homes in host memory alone.
TEST(HostMemoryTest, MirrorsWithoutRoom_MoveToHostMemoryWhereThatHasRoomAlone) {
  const job::JobSpec spec = TwoReplicasWithoutCheckpoints();
  const plan::Plan moved = *plan::Expand(spec, Moved(spec));
  const int64_t memory = MostOf(*plan::PlanWithout(moved, {Rank{1}})) + kMoveBytes;
  const std::vector<int64_t> devices(4, memory);
  const int64_t need = HostNeeds(moved)[0];
  const plan::Plan with_room = *AdmittedOnHosts(spec, {need}, devices);
  EXPECT_EQ(with_room.layout.modules[0].state_home, job::StateHome::kHost);
  EXPECT_EQ(with_room.layout.modules[0].state_copies, 2);
  EXPECT_THAT(with_room.notes, Contains(HasSubstr("second home in host memory instead")));
  const plan::Plan without = *AdmittedOnHosts(spec, {need - 1}, devices);
  EXPECT_EQ(without.layout.modules[0].state_home, job::StateHome::kMirror);
  EXPECT_THAT(without.notes, Not(Contains(HasSubstr("host memory"))));
  // What was said of the homes is not true any more where what is left has none there.
  const plan::Plan left = *AdmitWithout(with_room, {Rank{1}}, {.devices = devices, .nodes = {1}});
  EXPECT_EQ(left.layout.modules[0].state_copies, 1);
  EXPECT_THAT(left.notes, Contains(HasSubstr("module language has no second home: node-0 needs ")));
  EXPECT_THAT(left.notes, Not(Contains(HasSubstr("second home in host memory instead"))));
}

// Devices that hold one home alone: mirrors do not fit, whatever is lowered.
TEST(HostMemoryTest, MirrorsWithoutRoomAnywhere_AreLeftOut) {
  const job::JobSpec spec = TwoReplicasWithoutCheckpoints();
  plan::Layout layout = Moved(spec);
  layout.modules[0].recompute = job::Recompute::kFull;
  const plan::Plan moved = *plan::Expand(spec, layout);
  const std::vector<int64_t> devices(4, MostOf(moved));
  const absl::StatusOr<plan::Plan> plan = AdmittedOnHosts(spec, {HostNeeds(moved)[0] - 1}, devices);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.modules[0].state_copies, 1);
  EXPECT_THAT(plan->notes,
              Contains(HasSubstr("optimizer state of module language has no second home: as "
                                 "written the job does not fit, and node-0 needs ")));
  EXPECT_THAT(plan->notes, Contains(HasSubstr("losing device ")));
}

TEST(HostMemoryTest, LastReplicaOfAJobThatBeginsWithoutTheOthers_HasASecondHomeWhereThereIsRoom) {
  const job::JobSpec spec = AJob().Module("language", support::Llama(), {.dp = 2}).Batch(4, 2);
  const plan::Plan healthy = *AdmittedOnHosts(spec, {1});
  const absl::StatusOr<plan::Plan> with = AdmitWithout(healthy, {Rank{0}}, {.nodes = {kEnough}});
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->layout, plan::PlanWithout(healthy, {Rank{0}})->layout);
  EXPECT_EQ(with->layout.modules[0].state_copies, 2);
  const absl::StatusOr<plan::Plan> without = AdmitWithout(healthy, {Rank{0}}, {.nodes = {1}});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->layout.modules[0].state_copies, 1);
  EXPECT_EQ(without->layout.modules[0].admitted_homes,
            (plan::HomeChoice{job::StateHome::kMirror, 2}));
  EXPECT_THAT(without->notes,
              Contains(HasSubstr("optimizer state of module language has no second home: node-0 "
                                 "needs ")));
}

}  // namespace
}  // namespace phalanx::schedule
