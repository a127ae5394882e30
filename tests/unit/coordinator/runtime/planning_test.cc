// Plans of jobs on given devices, and previews of them.
#include "coordinator/runtime/planning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/memory_fit.h"
#include "core/plan/plan.h"
#include "core/schedule/admission.h"
#include "core/wire/job_yaml.h"
#include "tests/unit/coordinator/runtime/planning_jobs.h"

namespace phalanx::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(PlanJobOfTest, AnOpenSchedule_IsChosenAsEveryoneElseDoes) {
  const plan::Plan plan = PlanOf(kOpen);
  EXPECT_NE(plan.spec.schedule.name, job::ScheduleName::k1F1B) << "nothing was chosen";
  const auto summary =
      PlanJob({.document = kOpen},
              {.placement = {{.node = "node-0", .devices = {0, 1, 2, 3}}}, .epoch = Epoch{1}});
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->digest, plan.digest);

  const auto preview = PreviewPlan(
      kOpen, {}, {{.name = "node-0", .connected = true, .device_jobs = std::vector<JobId>(4)}});
  ASSERT_TRUE(preview.ok()) << preview.status();
  EXPECT_EQ(preview->digest(), plan.digest);
  EXPECT_NE(preview->schedule().name(), "auto");
  EXPECT_EQ(std::count_if(preview->candidates().begin(), preview->candidates().end(),
                          [](const auto& candidate) { return candidate.chosen(); }),
            1);
}

TEST(PlanJobOfTest, WhatNoEstimateCounts_HasItsPlaceOnDevicesThatAreKnown) {
  const int64_t beside = schedule::FindProfile("h200")->unestimated_bytes;
  const auto status = [&](int64_t memory, const std::string& name) {
    return PlanJob(kRequest, {.placement = kPlacement,
                              .limits = {.devices = std::vector<int64_t>(4, memory)},
                              .device_names = {name},
                              .epoch = Epoch{1}});
  };
  EXPECT_TRUE(status(beside, "NVIDIA L40S").ok());
  EXPECT_TRUE(status(2 * beside, "NVIDIA H200").ok());
  EXPECT_THAT(Wrong(status(beside, "NVIDIA H200").status()),
              ElementsAre(HasSubstr("device has 1 B for it")));
  // What was decided before stays.
  const absl::StatusOr<PlanSummary> before = status(beside, "NVIDIA L40S");
  ComputePlan order{.placement = kPlacement,
                    .limits = {.devices = std::vector<int64_t>(4, beside)},
                    .device_names = {"NVIDIA H200"},
                    .epoch = Epoch{1},
                    .layout = Shared<plan::Layout>(before->layout)};
  EXPECT_TRUE(PlanJob(kRequest, order).ok());
  order.lost = {Rank{2}};
  EXPECT_TRUE(PlanJob(kRequest, order).ok()) << "who trains goes on";
}

TEST(PlanJobOfTest, DevicesOfUnknownMemory_HoldAnything) {
  const absl::StatusOr<PlanSummary> plan = PlanJob(
      kRequest, {.placement = kPlacement, .limits = {.devices = {0, 0, 0, 0}}, .epoch = Epoch{1}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->digest, PlanJob(kRequest, {.placement = kPlacement, .epoch = Epoch{1}})->digest);
  EXPECT_THAT(plan->layout.idle, IsEmpty());
}

TEST(PlanJobOfTest, RanksOfNoModule_AreIdle) {
  const Document document = With("ranks: 2, tp: 2}", "ranks: 2, tp: 2}\n      offset: 4");
  const Placement placement = {{"n", {0, 1, 2, 3, 4, 5, 6}}};
  EXPECT_THAT(
      PlanJob({.document = document}, {.placement = placement, .epoch = Epoch{1}})->layout.idle,
      ElementsAre(Rank{2}, Rank{3}, Rank{6}));
}

TEST(PlanJobOfTest, DevicesThatHoldTheirRanksToTheByte_AreTaken) {
  EXPECT_TRUE(PlanJob(kRequest,
                      {.placement = kPlacement, .limits = {.devices = Needs()}, .epoch = Epoch{1}})
                  .ok());
}

TEST(PlanJobOfTest, DeviceThatIsTooSmall_IsRefusedInOneSentence) {
  const std::vector<int64_t> needs = Needs();
  std::vector<int64_t> memory = needs;
  memory[3] = needs[3] / 2;
  const absl::Status status =
      PlanJob(kRequest, {.placement = kPlacement, .limits = {.devices = memory}, .epoch = Epoch{1}})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_THAT(Wrong(status), ElementsAre(StartsWith("spec.modules: rank 3 needs ")));
  EXPECT_EQ(status.message(), Wrong(status)[0]) << "what becomes the job's failure";
  EXPECT_THAT(Wrong(status)[0], ::testing::EndsWith(" is the largest term), device has " +
                                                    plan::FormatBytes(memory[3]) + " for it"));
}

TEST(PlanJobOfTest, NotesOfThePlan_ComeAlong) {
  const auto read = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  const auto admitted =
      schedule::AdmitJob(read->spec, plan::ClusterOf(kPlacement), {.devices = Needs()}, Epoch{1});
  ASSERT_TRUE(admitted.ok()) << admitted.status();
  ASSERT_THAT(admitted->notes, Contains(HasSubstr("losing device ")));
  EXPECT_EQ(PlanJob(kRequest,
                    {.placement = kPlacement, .limits = {.devices = Needs()}, .epoch = Epoch{1}})
                ->notes,
            admitted->notes);
}

// The encoder's state is mirrored on n, the language model's second home is memory of m; and so the
// state of both is copied.
TEST(PlanJobOfTest, HostMemoryOfEachNode_ComesAlong_AndItsLimitsAreKept) {
  const absl::StatusOr<PlanSummary> plan =
      PlanJob(kRequest, {.placement = kPlacement, .epoch = Epoch{1}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->host_memory, ElementsAre(::testing::Gt(0), ::testing::Gt(0)));
  const int64_t need = plan->host_memory[1];
  EXPECT_EQ(PlanJob(kRequest,
                    {.placement = kPlacement, .limits = {.nodes = {0, need}}, .epoch = Epoch{1}})
                ->digest,
            plan->digest);
  const PlanSummary less = *PlanJob(
      kRequest, {.placement = kPlacement, .limits = {.nodes = {0, need - 1}}, .epoch = Epoch{1}});
  EXPECT_THAT(less.host_memory, IsEmpty());
  EXPECT_THAT(less.notes, Contains(HasSubstr("module language has no second home: m needs ")));
  NodeView small = ANode("m", {});
  small.host_memory = need - 1;
  const auto preview = PreviewPlan({kText, "/jobs"}, {}, {ANode("a", {}), small});
  ASSERT_TRUE(preview.ok()) << preview.status();
  EXPECT_THAT(preview->notes(),
              Contains(HasSubstr("module language has no second home: m needs ")));
  // What was decided stays, where the job has not asked for it: its ranks find out.
  const auto again = PlanJob(kRequest, {.placement = kPlacement,
                                        .limits = {.nodes = {0, need - 1}},
                                        .epoch = Epoch{2},
                                        .layout = plan->layout});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->host_memory, plan->host_memory);
}

TEST(PreviewPlanTest, AxisThatIsNotTrainedYet_IsPlannedWithItsGroups_AndRefusedAtSubmit) {
  const Document document = With("ranks: 2, tp: 2}", "ranks: 2, cp: 2}");
  const auto plan = PreviewPlan(document, {}, {ANode("m", {}), ANode("n", {})});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto& groups = plan->modules(1).groups();
  const auto cp = std::find_if(groups.begin(), groups.end(),
                               [](const auto& named) { return named.name() == "cp"; });
  ASSERT_NE(cp, groups.end());
  ASSERT_EQ(cp->groups_size(), 1);
  EXPECT_THAT(cp->groups(0).ranks(), ElementsAre(2, 3));
  EXPECT_THAT(
      Wrong(ReadRequest(document).status()),
      ElementsAre("spec.modules[1].parallel.cp: 2: this release does not train with context "
                  "parallelism yet"));
}

// Two ranks of vision, on which the planner lays the language model, too.
Document OnTheRanksOfVision() {
  Document document = With("parallel: {ranks: 2, tp: 2}", "parallel: auto");
  document.text += "  resources: {devices: 2}\n";
  return document;
}

TEST(PreviewPlanTest, OpenLayout_TakesTheDevicesOfTheJob_WhateverItsModulesWouldTakeApart) {
  const auto plan = PreviewPlan(OnTheRanksOfVision(), {}, {ANode("a", {})});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->world(), 2);
  ASSERT_EQ(plan->placement().nodes_size(), 1);
  EXPECT_EQ(plan->placement().nodes(0).devices_size(), 2);
}

TEST(PreviewPlanTest, OpenLayout_ForWhichThereAreNotEnoughDevices_IsRefusedBeforeAnySearch) {
  bool asked = false;
  const auto preview = [&asked](std::vector<NodeView> nodes) {
    return PreviewPlan(
               OnTheRanksOfVision(), {}, nodes,
               [](const std::string&) { return std::optional<job::DataShape>(); },
               [&asked] {
                 asked = true;
                 return absl::CancelledError("nobody waits");
               })
        .status();
  };
  NodeView small = ANode("a", {});
  small.device_jobs.resize(1);
  EXPECT_EQ(preview({small}), absl::ResourceExhaustedError("the job needs 2 devices; the connected "
                                                           "nodes that match have 1"));
  EXPECT_FALSE(asked);
  EXPECT_EQ(preview({ANode("a", {})}), absl::CancelledError("nobody waits"));
}

TEST(PreviewPlanTest, NodesWhoseDevicesAreTooSmall_AreRefusedLikewise) {
  const std::vector<int64_t> needs = Needs();
  EXPECT_TRUE(PreviewPlan({kText, "/jobs"}, {},
                          {ANode("m", {needs[0], needs[1]}), ANode("n", {needs[2], needs[3]})})
                  .ok());
  EXPECT_THAT(
      Wrong(
          PreviewPlan({kText, "/jobs"}, {}, {ANode("m", {}), ANode("n", {needs[2], 1})}).status()),
      ElementsAre(StartsWith("spec.modules: rank 3 needs ")));
}

}  // namespace
}  // namespace phalanx::coordinator
