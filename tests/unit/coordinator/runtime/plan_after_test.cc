// Plans of jobs that have a layout already, or begin without some of their ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "coordinator/runtime/planning.h"
#include "core/plan/memory_fit.h"
#include "core/plan/plan.h"
#include "core/schedule/preview.h"
#include "core/wire/job_yaml.h"
#include "tests/unit/coordinator/runtime/planning_jobs.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(PlanJobOfTest, RanksThatAJobBeginsWithout_AreLeftOutOfItsFirstEpoch) {
  const auto request = ReadRequest({kText, "/jobs"}, {Rank{1}, Rank{3}});
  ASSERT_TRUE(request.ok()) << request.status();
  const auto summary = PlanJob(**request, {.placement = kPlacement, .epoch = Epoch{1}});
  ASSERT_TRUE(summary.ok()) << summary.status();
  const plan::Layout& layout = summary->layout;
  EXPECT_EQ(layout.epoch, Epoch{1});
  EXPECT_EQ(layout.nodes, kPlacement);
  EXPECT_THAT(layout.lost, ElementsAre(Rank{1}, Rank{3}));
  EXPECT_THAT(layout.modules[0].changes, ElementsAre(plan::SlotChange{.dp = 1}));
  EXPECT_THAT(layout.modules[1].changes, ElementsAre(plan::SlotChange{.ranks = {Rank{2}}}));
  // What the ranks derive from document and layout.
  const auto read = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  EXPECT_EQ(plan::Expand(read->spec, layout)->digest, summary->digest);
  const auto preview =
      PreviewPlan({kText, "/jobs"}, {Rank{1}, Rank{3}},
                  {{.name = "n", .connected = true, .device_jobs = std::vector<JobId>(4)}});
  ASSERT_TRUE(preview.ok()) << preview.status();
  EXPECT_THAT(preview->lost(), ElementsAre(1, 3));
  // Once there is a layout, it says what is lost.
  const auto again =
      PlanJob(**request, {.placement = kPlacement, .epoch = Epoch{2}, .layout = layout});
  ASSERT_TRUE(again.ok()) << again.status();
  plan::Layout next = layout;
  next.epoch = Epoch{2};
  EXPECT_EQ(again->layout, next);
}

// Nobody of it is lost: the order says who is slow, and the answer what that comes to.
TEST(PlanJobOfTest, SlowPlaces_SayWhoIsDealtOtherwise) {
  const JobRequest request = {
      .document = With("batch: {global: 4, micro: 2}", "batch: {global: 8, micro: 8}")};
  ComputePlan order{.request = std::make_shared<const JobRequest>(request),
                    .placement = kPlacement,
                    .epoch = Epoch{2}};
  order.layout = PlanJob(request, {.placement = kPlacement, .epoch = Epoch{1}})->layout;
  order.slow = plan::SlowPlaces{{Rank{1}, plan::kPaceOfOthers / 2}};
  const absl::StatusOr<PlanSummary> plan = PlanJobOf(order);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.epoch, Epoch{2});
  EXPECT_EQ(plan->layout.slow, *order.slow);
  EXPECT_THAT(plan->dealt, ElementsAre("replica 1 of vision has 2 of 8 samples a step, not 4"));
  const auto read = wire::ReadJobFile(request.document.text, job::Purpose::kSubmit);
  EXPECT_EQ(plan::Expand(read->spec, plan->layout)->digest, plan->digest);
  // It is the only replica of language.
  order.slow = plan::SlowPlaces{{Rank{3}, plan::kPaceOfOthers / 2}};
  EXPECT_THAT(PlanJobOf(order)->dealt, IsEmpty());
  order.layout = plan->layout;
  order.slow = plan::SlowPlaces{};
  order.epoch = Epoch{3};
  const absl::StatusOr<PlanSummary> back = PlanJobOf(order);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(back->dealt, ElementsAre("replica 1 of vision has 4 of 8 samples a step, not 2"));
  EXPECT_THAT(back->layout.slow, IsEmpty());
}

// A device that idles was not fit when rank 1 was lost, or nobody has made a rank ready on it
// since.
TEST(PlanJobOfTest, SlowPlaces_LetNoDeviceThatIdlesTakeOver) {
  const JobRequest request = {.document = With("  batch:", "  resources: {devices: 5}\n  batch:")};
  const Placement placement = {{"n", {0, 1}}, {"m", {4, 2}}, {"o", {0}}};
  ComputePlan order{.request = std::make_shared<const JobRequest>(request),
                    .placement = placement,
                    .epoch = Epoch{2}};
  order.layout = PlanJob(request, {.placement = placement, .epoch = Epoch{1}})->layout;
  order.lost = {Rank{1}};
  order.unfit = {Rank{4}};
  const absl::StatusOr<PlanSummary> left = PlanJobOf(order);
  ASSERT_TRUE(left.ok()) << left.status();
  ASSERT_THAT(left->layout.lost, ElementsAre(Rank{1}));
  order = {.request = order.request,
           .placement = placement,
           .epoch = Epoch{3},
           .layout = left->layout,
           .slow = plan::SlowPlaces{{Rank{0}, plan::kPaceOfOthers / 2}}};
  const absl::StatusOr<PlanSummary> paced = PlanJobOf(order);
  ASSERT_TRUE(paced.ok()) << paced.status();
  EXPECT_THAT(paced->layout.lost, ElementsAre(Rank{1}));
  EXPECT_EQ(paced->layout.nodes, placement);
  EXPECT_EQ(paced->layout.idle, left->layout.idle);
}

TEST(PlanJobOfTest, LayoutForRanksOfTheReleaseBefore_IsOfTheirDerivation) {
  const auto read = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  ComputePlan order{.request = std::make_shared<const JobRequest>(kRequest),
                    .placement = kPlacement,
                    .epoch = Epoch{1}};
  const auto now = PlanJobOf(order);
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_EQ(now->layout.derivation, plan::kDerivation);
  order.derivation = plan::kOldestDerivation;
  const auto old = PlanJobOf(order);
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->layout.derivation, plan::kOldestDerivation);
  EXPECT_EQ(old->digest, plan::Expand(read->spec, old->layout)->digest);
  EXPECT_NE(old->digest, now->digest);
  EXPECT_EQ(old->notes, now->notes);
  // A layout keeps its own as ranks are lost.
  order.layout = Shared<plan::Layout>(old->layout);
  order.derivation = plan::kDerivation;
  order.lost = {Rank{1}};
  order.any_rung = true;
  const auto after = PlanJobOf(order);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->layout.derivation, plan::kOldestDerivation);
}

// Kept by whoever goes on with the same nodes or fewer, and given up for good where a node has
// another one.
TEST(PlanJobOfTest, TableOfProducts_IsOfJobsInBf16OnGpus_AsLongAsAllNodesHaveIt) {
  const JobRequest on_gpus = {
      .document =
          With("  batch:", "  resources: {device: gpu}\n  precision: {compute: bf16}\n  batch:")};
  const auto order = [](const JobRequest& request, std::optional<std::string> products) {
    return ComputePlan{.request = std::make_shared<const JobRequest>(request),
                       .placement = kPlacement,
                       .epoch = Epoch{1},
                       .products = std::move(products)};
  };
  const auto none = PlanJobOf(order(on_gpus, ""));
  const auto plan = PlanJobOf(order(on_gpus, "table@1"));
  ASSERT_TRUE(none.ok() && plan.ok()) << none.status() << plan.status();
  EXPECT_EQ(plan->layout.products, "table@1");
  EXPECT_NE(plan->digest, none->digest);
  EXPECT_EQ(plan->notes, none->notes);
  const auto read = wire::ReadJobFile(on_gpus.document.text, job::Purpose::kSubmit);
  EXPECT_EQ(plan->digest, plan::Expand(read->spec, plan->layout)->digest);
  // Whatever nodes say, others have none.
  EXPECT_EQ(PlanJobOf(order(kRequest, "table@1"))->digest, PlanJobOf(order(kRequest, ""))->digest);

  const auto after = [&](const plan::Layout& layout, std::optional<std::string> products,
                         plan::RankList lost) {
    ComputePlan next = order(on_gpus, std::move(products));
    next.epoch = Epoch{2};
    next.layout = Shared<plan::Layout>(layout);
    next.lost = std::move(lost);
    const auto planned = PlanJobOf(next);
    EXPECT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(planned->digest, plan::Expand(read->spec, planned->layout)->digest);
    return planned->layout.products;
  };
  for (const plan::RankList& lost : {plan::RankList{}, plan::RankList{Rank{1}}}) {
    EXPECT_EQ(after(plan->layout, "table@1", lost), "table@1");
    EXPECT_EQ(after(plan->layout, std::nullopt, lost), "table@1") << "nobody says otherwise";
    EXPECT_EQ(after(plan->layout, "table@2", lost), "");
    EXPECT_EQ(after(plan->layout, "", lost), "");
    EXPECT_EQ(after(none->layout, "table@1", lost), "");
  }
}

// 32 MiB beside what is estimated.
TEST(PlanJobOfTest, TableOfProducts_NeedsRoomOnDevices) {
  const JobRequest request = {
      .document =
          With("  batch:", "  resources: {device: gpu}\n  precision: {compute: bf16}\n  batch:")};
  const auto read = wire::ReadJobFile(request.document.text, job::Purpose::kSubmit);
  ComputePlan order{.request = std::make_shared<const JobRequest>(request),
                    .placement = kPlacement,
                    .epoch = Epoch{1}};
  for (const plan::MemoryEstimate& need :
       plan::EstimateMemory(*plan::MakePlan(read->spec, plan::ClusterOf(kPlacement), Epoch{1})))
    order.limits.devices.push_back(need.total() + (int64_t{31} << 20));
  EXPECT_TRUE(PlanJobOf(order).ok()) << PlanJobOf(order).status();
  order.products = "table@1";
  EXPECT_FALSE(PlanJobOf(order).ok());
  for (int64_t& device : order.limits.devices) device += int64_t{1} << 20;
  EXPECT_TRUE(PlanJobOf(order).ok()) << PlanJobOf(order).status();
}

// Rank 2 has the language model to itself then.
TEST(PlanJobOfTest, WhatIsLeftBeyondItsMemory_IsRefusedWithWhatIsLost_AsThePreviewDoes) {
  std::vector<int64_t> memory(4, 0);
  memory[2] = Needs()[2];
  const auto request = ReadRequest({kText, "/jobs"}, {Rank{1}, Rank{3}});
  ASSERT_TRUE(request.ok()) << request.status();
  const absl::Status refused =
      PlanJob(**request,
              {.placement = kPlacement, .limits = {.devices = memory}, .epoch = Epoch{1}})
          .status();
  EXPECT_THAT(Wrong(refused),
              ElementsAre(AllOf(
                  StartsWith("spec.modules: without ranks 1, 3, rank 2 needs "),
                  EndsWith(absl::StrCat(
                      ", device has ", plan::FormatBytes(memory[2]),
                      " for it; replica 0 of module language is 1 wide there instead of 2")))));
  const auto read = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  const auto preview = schedule::PreviewJob(read->spec, plan::MakeCluster(1, 4),
                                            {.devices = memory}, plan::RankList{Rank{1}, Rank{3}});
  EXPECT_EQ(preview.status(), refused);
}

TEST(PlanJobOfTest, AnyRung_IsNotOfTheLadderAndTheDigestStillOfTheDocument) {
  const JobRequest waits{.document = With("  data:", "  recovery: {ladder: [wait]}\n  data:")};
  const auto first = PlanJob(waits, {.placement = kPlacement, .epoch = Epoch{1}});
  ASSERT_TRUE(first.ok()) << first.status();
  const plan::RankList lost = {Rank{3}};
  const auto plan_of = [&](bool any_rung) {
    return PlanJob(waits, {.placement = kPlacement,
                           .epoch = Epoch{2},
                           .layout = first->layout,
                           .lost = lost,
                           .any_rung = any_rung});
  };
  EXPECT_THAT(plan_of(false).status().message(), HasSubstr("recovery.ladder"));
  const auto saved = plan_of(true);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->layout.epoch, Epoch{2});
  EXPECT_THAT(saved->layout.lost, ElementsAre(Rank{3}));
  const auto read = wire::ReadJobFile(waits.document.text, job::Purpose::kSubmit);
  EXPECT_EQ(plan::Expand(read->spec, saved->layout)->digest, saved->digest);
}

TEST(PlanJobOfTest, RankThatReturnsOnALentDevice_IsThereAndNothingElseChanges) {
  const absl::StatusOr<PlanSummary> whole =
      PlanJob(kRequest, {.placement = kPlacement, .epoch = Epoch{1}});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const plan::RankList hit = {Rank{3}};
  const auto without = PlanJob(
      kRequest, {.placement = kPlacement, .epoch = Epoch{2}, .layout = whole->layout, .lost = hit});
  ASSERT_TRUE(without.ok()) << without.status();
  const std::map<Rank, plan::Device> lent = {{Rank{3}, {"spares", 5}}};
  // It is the device of which the limit is.
  std::vector<int64_t> memory = Needs();
  const auto again = PlanJob(kRequest, {.placement = kPlacement,
                                        .limits = {.devices = memory},
                                        .epoch = Epoch{3},
                                        .layout = without->layout,
                                        .returned = hit,
                                        .lent = lent});
  ASSERT_TRUE(again.ok()) << again.status();
  plan::Layout expected = whole->layout;
  expected.epoch = Epoch{3};
  plan::Cluster cluster = plan::ClusterOf(kPlacement);
  cluster.devices[3] = {"spares", 5};
  expected.nodes = plan::PlacementOf(cluster);
  EXPECT_EQ(again->layout, expected);
  const auto read = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  EXPECT_EQ(plan::Expand(read->spec, again->layout)->digest, again->digest);
  // All wait for it: it is lost and there at once.
  const auto at_once = PlanJob(kRequest, {.placement = kPlacement,
                                          .epoch = Epoch{3},
                                          .layout = whole->layout,
                                          .lost = hit,
                                          .returned = hit,
                                          .lent = lent});
  ASSERT_TRUE(at_once.ok()) << at_once.status();
  EXPECT_EQ(at_once->layout, expected);
}

// What may still be where it was does not come along.
TEST(PlanJobOfTest, PlaceThatMoves_MustNotBeTheOnlyOneWithState) {
  const auto planned = [](const std::string& parallel, const plan::RankList& lost) {
    const std::string text = absl::StrCat(
        "metadata: {name: demo}\nspec:\n  steps: 10\n  modules:\n    - name: language\n",
        "      architecture: {family: llama, hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, "
        "mlp_size: 128, vocabulary: 256, context: 64, block: 32}\n      parallel: ",
        parallel, "\n  batch: {global: 4, micro: 1}\n",
        "  data: {shards: \"a-{0..1}.tar\", tokenizer: t.model}\n");
    auto request = std::make_shared<JobRequest>();
    request->document = {text, "/jobs"};
    const auto whole = PlanJob(*request, {.placement = kPlacement, .epoch = Epoch{1}});
    EXPECT_TRUE(whole.ok()) << whole.status();
    ComputePlan order{.request = request,
                      .placement = kPlacement,
                      .epoch = Epoch{2},
                      .layout = whole->layout,
                      .lost = lost,
                      .returned = lost,
                      .stateless = lost};
    for (const Rank rank : lost) order.lent[rank] = {"spares", rank.value};
    return PlanJobOf(order).status();
  };
  EXPECT_TRUE(planned("{ranks: 4, tp: 2}", {Rank{2}}).ok());
  EXPECT_TRUE(planned("{ranks: 4, tp: 2}", {Rank{2}, Rank{3}}).ok()) << "the other has it all";
  EXPECT_TRUE(absl::IsDataLoss(planned("{ranks: 4, tp: 2}", {Rank{0}, Rank{2}})));
  EXPECT_TRUE(absl::IsDataLoss(planned("{ranks: 2, tp: 2}", {Rank{1}})));
}

// Two replicas of two stages, of which one rank trains alone: the layout with the other replica has
// no work for it, the one with everybody has.
TEST(PlanJobOfTest, LayoutThatNobodyHasToLeave_KeepsAllState) {
  const std::string text =
      absl::StrReplaceAll(kOpen.text, {{"ranks: 4, pp: 4", "ranks: 4, pp: 2"},
                                       {"schedule: {name: auto}", "schedule: {name: 1f1b}"}});
  const auto request = ReadRequest({text, "/jobs"});
  ASSERT_TRUE(request.ok()) << request.status();
  ComputePlan order{.request = *request, .placement = kPlacement, .epoch = Epoch{1}};
  order.layout = PlanJobOf(order)->layout;
  order.lost = {Rank{0}, Rank{1}, Rank{2}};
  const absl::StatusOr<PlanSummary> alone = PlanJobOf(order);
  ASSERT_TRUE(alone.ok()) << alone.status();
  order = {.request = *request, .placement = kPlacement, .epoch = Epoch{2}};
  order.layout = alone->layout;
  order.returned = {Rank{0}, Rank{2}};
  ASSERT_TRUE(PlanJobOf(order).ok()) << "somebody has to leave";
  order.kept = {.layout = alone->layout};
  const absl::Status lost = PlanJobOf(order).status();
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(lost.message(), HasSubstr("rank 3 alone has some of the state of module language"));
  order.returned = {Rank{0}, Rank{1}, Rank{2}};
  const absl::StatusOr<PlanSummary> all = PlanJobOf(order);
  ASSERT_TRUE(all.ok()) << all.status();
  // One of them is lost again before anybody has left the layout that trains.
  order.layout = all->layout;
  order.returned.clear();
  order.lost = {Rank{1}};
  EXPECT_TRUE(absl::IsDataLoss(PlanJobOf(order).status()));
  order.lost = {Rank{0}, Rank{1}, Rank{2}};
  EXPECT_TRUE(PlanJobOf(order).ok());
}

// The same in each place but for the names of nodes, which digests have in them.
TEST(PlanJobOfTest, LayoutWithoutRanks_IsTheOneThatPlanWithoutAServerShows) {
  const std::string replicas = absl::StrReplaceAll(
      kOpen.text,
      {{"ranks: 4, pp: 4", "ranks: 8, tp: 2, pp: 2"}, {"heads: 4", "heads: 4, block: 32"}});
  const std::string parity =
      absl::StrReplaceAll(replicas, {{"  data:", "  recovery: {widths: parity}\n  data:"}});
  // Two replicas of eight, and examples 1.5 of the prior art.
  const std::string wide = absl::StrReplaceAll(
      parity, {{"ranks: 8, tp: 2, pp: 2", "ranks: 16, tp: 8"},
               {"heads: 4, block: 32, mlp_size: 128", "heads: 8, block: 8, mlp_size: 128"}});
  struct Case {
    std::string text;
    plan::RankList lost;
    int64_t memory;
    plan::RankList idle = {};
  };
  const std::vector<Case> cases = {{kText, {Rank{1}, Rank{3}}, 0},
                                   {kText, {Rank{0}}, int64_t{1} << 30},
                                   {kText, {}, 0},
                                   {replicas, {Rank{2}}, 0},
                                   {replicas, {Rank{2}}, int64_t{1} << 27},
                                   {parity, {Rank{0}, Rank{6}}, 0},
                                   {wide, {}, 0},
                                   {wide, {Rank{2}, Rank{5}, Rank{9}, Rank{11}}, 0},
                                   {wide, {Rank{2}, Rank{5}, Rank{9}}, 0, {Rank{15}}},
                                   {wide, {Rank{7}}, 0},
                                   {wide, {Rank{6}, Rank{7}, Rank{15}}, 0, {Rank{14}}},
                                   {wide, {Rank{5}, Rank{2}}, 0}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.text);
    const auto read = wire::ReadJobFile(one.text, job::Purpose::kSubmit);
    ASSERT_TRUE(read.ok()) << read.status();
    const int32_t devices = read->spec.World();
    const std::vector<int64_t> memory(static_cast<size_t>(devices), one.memory);
    const plan::Cluster cluster = plan::MakeCluster(1, devices);
    auto shown = schedule::PreviewJob(read->spec, cluster, {.devices = memory}, one.lost);
    ASSERT_TRUE(shown.ok()) << shown.status();
    plan::Placement placement = plan::PlacementOf(cluster);
    placement.front().node = "here";
    const auto request = ReadRequest({one.text, "/jobs"}, one.lost);
    ASSERT_TRUE(request.ok()) << request.status();
    auto committed = PlanJob(
        **request, {.placement = placement, .limits = {.devices = memory}, .epoch = Epoch{1}});
    ASSERT_TRUE(committed.ok()) << committed.status();
    EXPECT_NE(committed->digest, shown->plan.digest);
    committed->layout.nodes = shown->plan.layout.nodes;
    EXPECT_EQ(committed->layout, shown->plan.layout);
    EXPECT_EQ(committed->layout.idle, one.idle);
    EXPECT_EQ(plan::Expand(read->spec, committed->layout)->digest, shown->plan.digest);
  }
}

}  // namespace
}  // namespace phalanx::coordinator
