// Layouts after losses, spares and returns: core/plan/loss.h beyond what loss_test.cc has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/base/violation.h"
#include "core/plan/loss.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using job::Rung;
using job::StateHome;
using support::AJob;
using support::ClipVision;
using support::Llama;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// On nodes of so many devices.
Plan PlanOn(const job::JobSpec& spec, int32_t nodes, int32_t per_node) {
  auto plan = MakePlan(spec, MakeCluster(nodes, per_node), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan();
}

// The plan of the next epoch, and what was taken.
struct Next {
  Plan plan;
  std::vector<Taken> taken;
};
Next NextAfter(const Plan& running, const Change& change) {
  auto next = LayoutAfter(running, change);
  EXPECT_TRUE(next.ok()) << next.status();
  if (!next.ok()) return {};
  auto plan = Expand(running.spec, next->layout);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return {plan.ok() ? *std::move(plan) : Plan(), next->taken};
}

// Back on the devices that they had.
Change Back(const Plan& plan, const RankList& places) {
  Change change;
  for (Rank place : places) change.returned[place] = plan.DeviceOf(place);
  return change;
}

std::vector<std::string> Told(const std::vector<Taken>& taken) {
  constexpr const char* kNames[] = {"spare", "shrink", "drop-replica", "restart", "wait"};
  std::vector<std::string> told;
  for (const Taken& one : taken) {
    told.push_back(absl::StrCat(one.module, " ", one.replica, " ",
                                kNames[static_cast<size_t>(one.rung)], ": ", one.why));
  }
  return told;
}

AJob Language(const support::Layout& layout, std::vector<Rung> ladder = job::AllRungs()) {
  AJob job;
  job.Module("language", Llama(), layout);
  job.spec().recovery.ladder = std::move(ladder);
  return job;
}

// ---- Spares ----

TEST(SpareTest, DeviceBeyondTheRanks_TakesOver_AndTheRankStays) {
  const Plan healthy = PlanOn(Language({.tp = 2, .dp = 2}), 1, 5);
  const Next next = NextAfter(healthy, {.lost = Ranks({1})});
  EXPECT_THAT(next.plan.layout.modules, ElementsAre(healthy.layout.modules[0]));
  EXPECT_EQ(next.plan.layout.lost, Ranks({4}));
  EXPECT_THAT(next.plan.layout.idle, IsEmpty());
  EXPECT_EQ(next.plan.DeviceOf(Rank{1}), (Device{"node-0", 4}));
  EXPECT_EQ(next.plan.DeviceOf(Rank{4}), (Device{"node-0", 1}));
  EXPECT_THAT(Told(next.taken), ElementsAre("0 0 spare: node-0/4 takes over rank 1"));
}

TEST(SpareTest, WithoutLeave_StaysIdle) {
  const Plan healthy = PlanOn(Language({.tp = 2, .dp = 2}), 1, 5);
  const Next next = NextAfter(healthy, {.lost = Ranks({1}), .spares = false});
  EXPECT_EQ(next.plan.layout.idle, Ranks({4}));
  EXPECT_THAT(Told(next.taken),
              ElementsAre("0 0 shrink: stage 0 goes on with 1 of 2 tensor ranks"));
}

TEST(SpareTest, Ladder_SaysWhen) {
  const auto told = [](std::vector<Rung> ladder, const std::vector<int32_t>& lost) {
    const Plan healthy = PlanOn(Language({.tp = 2, .dp = 2}, std::move(ladder)), 1, 5);
    return Told(NextAfter(healthy, {.lost = Ranks(lost)}).taken);
  };
  using enum Rung;
  const std::string one_of_two = "0 0 shrink: stage 0 goes on with 1 of 2 tensor ranks";
  const std::string spare = "0 0 spare: node-0/4 takes over rank 0";
  EXPECT_THAT(told({kShrink, kSpare}, {0}), ElementsAre(one_of_two));
  EXPECT_THAT(told({kSpare, kShrink}, {0}), ElementsAre(spare));
  EXPECT_THAT(told({kShrink, kSpare}, {0, 1}), ElementsAre(spare, one_of_two))
      << "it cannot shrink, and with the spare it can";
  EXPECT_THAT(told({kShrink, kDropReplica, kSpare}, {0, 1}),
              ElementsAre("0 0 drop-replica: stage 0 has no rank left"));
  EXPECT_THAT(told({kSpare, kDropReplica}, {0, 1}),
              ElementsAre("0 0 drop-replica: stage 0 has no rank left"))
      << "one of two would not do";
  EXPECT_THAT(told({kDropReplica, kSpare}, {0, 1, 2}),
              ElementsAre("0 0 drop-replica: stage 0 has no rank left",
                          "0 1 spare: node-0/4 takes over rank 2"))
      << "a replica must be left";
}

TEST(SpareTest, NothingThatTakesOver_IsSaid) {
  const Plan healthy = PlanOn(Language({.tp = 2, .dp = 2}, {Rung::kSpare}), 1, 4);
  const absl::Status status = LayoutAfter(healthy, {.lost = Ranks({1})}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      status.message(),
      "recovery.ladder allows no rung for module language, replica 0; no idle device can take "
      "over");
}

TEST(SpareTest, NodeThatIsLost_IsReplacedByOneThatIdles) {
  const Plan healthy = PlanOn(Language({.tp = 2, .dp = 2, .pp = 2}), 3, 4);
  const Next next = NextAfter(healthy, {.lost = Ranks({0, 1, 2, 3})});
  EXPECT_THAT(next.plan.layout.modules[0].changes, IsEmpty());
  EXPECT_EQ(
      next.plan.layout.nodes,
      (Placement{{"node-2", {0, 1, 2, 3}}, {"node-1", {0, 1, 2, 3}}, {"node-0", {0, 1, 2, 3}}}));
  EXPECT_EQ(next.plan.layout.lost, Ranks({8, 9, 10, 11}));
}

TEST(SpareTest, FewSpares_ServeTheReplicaThatLacksLeast) {
  const Plan healthy = PlanOn(Language({.tp = 2, .dp = 3}), 1, 7);
  const Next next = NextAfter(healthy, {.lost = Ranks({0, 1, 4})});
  EXPECT_THAT(Told(next.taken), ElementsAre("0 0 drop-replica: stage 0 has no rank left",
                                            "0 2 spare: node-0/6 takes over rank 4"));
}

TEST(SpareTest, WhatTwoReplicasHaveLeft_MakesOne) {
  const Plan healthy = PlanOn(Language({.dp = 2, .pp = 2}), 1, 4);
  const auto at = [&](int32_t dp, int32_t pp) { return healthy.replicas(0).At(dp, pp, 0, 0); };
  const Next next = NextAfter(healthy, {.lost = {at(0, 0), at(1, 1)}});
  EXPECT_TRUE(next.plan.replicas(0).Present(0));
  EXPECT_FALSE(next.plan.replicas(0).Present(1));
  EXPECT_EQ(next.plan.DeviceOf(at(0, 0)), healthy.DeviceOf(at(1, 0)));
  // Without it there is nothing to go on with but what is left of both, in another shape.
  Change change{.lost = {at(0, 0), at(1, 1)}, .spares = false, .restart = false};
  EXPECT_EQ(LayoutAfter(healthy, change).status().code(), absl::StatusCode::kFailedPrecondition);
  change.restart = true;
  EXPECT_TRUE(NextAfter(healthy, change).plan.modules[0].lowered());
}

TEST(SpareTest, OnesThatIdleForParity_StayWithTheirReplica) {
  AJob job = Language({.tp = 4, .dp = 3});
  job.spec().recovery.widths = job::Widths::kParity;
  const Next next = NextAfter(PlanOn(job, 1, 12), {.lost = Ranks({0, 1, 4})});
  EXPECT_EQ(next.plan.layout.idle, Ranks({7}));
  EXPECT_EQ(next.plan.layout.lost, Ranks({0, 1, 4}));
  EXPECT_THAT(Told(next.taken),
              ElementsAre("0 0 shrink: stage 0 goes on with 2 of 4 tensor ranks",
                          "0 1 shrink: stage 0 goes on with 2 of 4 tensor ranks"));
}

TEST(SpareTest, OneThatWouldNarrowOthers_IsNotTaken) {
  AJob job = Language({.tp = 4, .dp = 3});
  job.spec().recovery.widths = job::Widths::kParity;
  const Plan healthy = PlanOn(job, 1, 13);
  // Replica 0 with one rank would narrow replica 1 from 2.
  const Next next = NextAfter(healthy, {.lost = Ranks({0, 1, 2, 3, 4, 5})});
  EXPECT_FALSE(next.plan.replicas(0).Present(0));
  EXPECT_EQ(next.plan.replicas(0).Width(1, 0), 3);
}

TEST(SpareTest, DeviceThatIsBack_TakesOverWhereItIsOfUse) {
  // Replica 0 is left out; when one of its two is back, it stands in for replica 1's.
  const Plan healthy =
      PlanOn(Language({.tp = 2, .dp = 2}, {Rung::kSpare, Rung::kDropReplica}), 1, 4);
  const Next dropped = NextAfter(healthy, {.lost = Ranks({0, 1})});
  EXPECT_FALSE(dropped.plan.replicas(0).Present(0));
  Change change = Back(dropped.plan, Ranks({0}));
  change.lost = Ranks({3});
  const Next next = NextAfter(dropped.plan, change);
  EXPECT_THAT(next.plan.layout.modules[0].changes,
              ElementsAre(SlotChange{.dp = 0, .pp = 0, .ranks = {}}));
  EXPECT_EQ(next.plan.DeviceOf(Rank{3}), healthy.DeviceOf(Rank{0}));
  EXPECT_EQ(next.plan.layout.lost, Ranks({0, 1}));
}

// ---- Returns ----

TEST(ReturnTest, All_RestoreTheAdmittedLayout) {
  const Plan healthy = PlanOn(Language({.tp = 2, .dp = 2, .pp = 2}), 2, 4);
  const Next lost = NextAfter(healthy, {.lost = Ranks({0, 1, 6}), .spares = false});
  Next back = NextAfter(lost.plan, Back(lost.plan, Ranks({0, 1, 6})));
  EXPECT_EQ(back.plan.layout.epoch, Epoch{3});
  EXPECT_THAT(back.taken, IsEmpty());
  back.plan.layout.epoch = Epoch{1};
  EXPECT_EQ(back.plan.layout, healthy.layout);
  EXPECT_EQ(back.plan.digest, healthy.digest);
}

TEST(ReturnTest, Homes_AreThoseOfAdmissionAgain) {
  AJob job = Language({.dp = 3});
  job.spec().recovery.state_copies = 3;
  const Plan healthy = PlanOn(job, 3, 1);
  const Plan one = NextAfter(healthy, {.lost = Ranks({0, 1})}).plan;
  EXPECT_EQ(one.layout.modules[0].state_home, StateHome::kHost);
  EXPECT_EQ(one.layout.modules[0].state_copies, 2);
  EXPECT_EQ(one.layout.modules[0].admitted_homes, (HomeChoice{StateHome::kMirror, 3}));
  const Plan two = NextAfter(one, Back(one, Ranks({1}))).plan;
  EXPECT_EQ(two.layout.modules[0].state_home, StateHome::kMirror);
  EXPECT_EQ(two.layout.modules[0].state_copies, 2);
  const Plan all = NextAfter(two, Back(two, Ranks({0}))).plan;
  EXPECT_EQ(all.layout.modules[0].state_copies, 3);
  EXPECT_EQ(all.layout.modules[0].admitted_homes, std::nullopt);
}

TEST(ReturnTest, LayoutThatForgotItsAdmittedHomes_KeepsThoseThatItHas) {
  const Plan healthy = PlanOn(Language({.dp = 2}), 2, 1);
  Layout old = NextAfter(healthy, {.lost = Ranks({0})}).plan.layout;
  old.modules[0].admitted_homes.reset();
  const Plan one = *Expand(healthy.spec, old);
  const Plan two = NextAfter(one, Back(one, Ranks({0}))).plan;
  EXPECT_EQ(two.layout.modules[0].state_home, StateHome::kHost);
}

TEST(ReturnTest, AnotherDevice_TakesThePlace) {
  const Plan healthy = PlanOn(Language({.tp = 2, .dp = 2}), 2, 2);
  const Next lost = NextAfter(healthy, {.lost = Ranks({1, 2})});
  // A new one, and one of another place, which is left with a device that is gone.
  const Next one = NextAfter(lost.plan, {.returned = {{Rank{1}, {"new", 3}}}});
  EXPECT_EQ(one.plan.layout.nodes, (Placement{{"node-0", {0}}, {"new", {3}}, {"node-1", {0, 1}}}));
  EXPECT_EQ(one.plan.layout.lost, Ranks({2}));
  const Next other = NextAfter(lost.plan, {.returned = {{Rank{1}, {"node-1", 0}}}});
  EXPECT_EQ(other.plan.layout.nodes,
            (Placement{{"node-0", {0}}, {"node-1", {0}}, {"node-0", {1}}, {"node-1", {1}}}));
  EXPECT_EQ(other.plan.layout.lost, Ranks({2}));
  // At once with its loss.
  const Next at_once =
      NextAfter(healthy, {.lost = Ranks({1}), .returned = {{Rank{1}, {"new", 3}}}});
  EXPECT_THAT(at_once.plan.layout.lost, IsEmpty());
  EXPECT_EQ(at_once.plan.layout.modules, healthy.layout.modules);
  EXPECT_THAT(at_once.taken, IsEmpty());
}

TEST(ReturnTest, Parity_NarrowestThatIsBack_GivesTheOthersTheirRanksBack) {
  AJob job = Language({.tp = 4, .dp = 3});
  job.spec().recovery.widths = job::Widths::kParity;
  const Plan lost = NextAfter(PlanOn(job, 1, 12), {.lost = Ranks({1, 4, 5})}).plan;
  EXPECT_EQ(lost.layout.idle, Ranks({3}));
  const Next next = NextAfter(lost, Back(lost, Ranks({4, 5})));
  EXPECT_EQ(next.plan.replicas(0).Ranks(0, 0), Ranks({0, 2, 3}));
  EXPECT_EQ(next.plan.replicas(0).Width(1, 0), 4);
  EXPECT_THAT(next.plan.layout.idle, IsEmpty());
  const Next half = NextAfter(lost, Back(lost, Ranks({4})));
  EXPECT_EQ(half.plan.replicas(0).Ranks(0, 0), Ranks({0, 2, 3}));
  EXPECT_EQ(half.plan.replicas(0).Ranks(1, 0), Ranks({4, 6, 7}));
}

TEST(ReturnTest, BadChanges_AreNamedAllAtOnce) {
  const Plan healthy = PlanOn(Language({.tp = 2, .dp = 3}), 2, 3);
  const Plan plan = NextAfter(healthy, {.lost = Ranks({1, 4}), .spares = false}).plan;
  const auto rules = [&plan](const Change& change) {
    std::vector<std::string> told;
    for (const Violation& violation : ViolationsOf(LayoutAfter(plan, change).status()))
      told.push_back(ToString(violation));
    return told;
  };
  EXPECT_THAT(rules({}), ElementsAre("lost: must name a rank, where none is back"));
  EXPECT_THAT(rules({.lost = RankList(7, Rank{0})}),
              ElementsAre("lost: 7 ranks: must be no more than the places of the job, 6"));
  EXPECT_THAT(
      rules({.lost = Ranks({1, 6, 2, 2, 3, 5}),
             .returned = {{Rank{-1}, {"node-0", 0}},
                          {Rank{0}, {"node-0", 0}},
                          {Rank{1}, {"node-0", 2}},
                          {Rank{3}, {"node-1", 0}},
                          {Rank{4}, {"", 0}},
                          {Rank{5}, {"node-0", 0}}}}),
      ElementsAre("lost: 1: is lost already", "lost: 6: must be a place of the job, below 6",
                  "lost: 2: is named twice", "returned: -1: must be a place of the job, below 6",
                  "returned: 0: is not lost",
                  "returned: 1: is on node-0/2, which place 2 loses now",
                  "returned: 3: is lost on the same device, node-1/0",
                  "returned: 4: must be on a device of a node",
                  "returned: 5: is on node-0/0, the device of place 0, which is not lost"));
  EXPECT_THAT(rules({.returned = {{Rank{1}, {"new", 0}}, {Rank{4}, {"new", 0}}}}),
              ElementsAre("returned: 4: is on new/0, as place 1 is"));
  EXPECT_THAT(rules({.returned = {{Rank{1}, {"node-1", 1}}, {Rank{4}, {"node-1", 1}}}}),
              ElementsAre("returned: 4: is on node-1/1, as place 1 is"));
}

// ---- Any history ----

struct Drawn {
  job::JobSpec spec;
  int32_t nodes = 1, per_node = 1;
};

Drawn Draw(Prng& prng) {
  const auto below = [&prng](uint64_t bound) { return static_cast<int32_t>(prng.Below(bound)); };
  using enum Rung;
  const std::vector<std::vector<Rung>> ladders = {job::AllRungs(),
                                                  {kShrink, kDropReplica},
                                                  {kSpare, kDropReplica},
                                                  {kShrink, kSpare, kDropReplica},
                                                  {kDropReplica, kSpare}};
  const int32_t tp = 1 + below(4), dp = 1 + below(4), pp = 1 + below(3), world = tp * dp * pp;
  AJob job;
  const bool apart = below(3) == 0;
  job.Module("vision", ClipVision(),
             {.tp = tp % 2 == 0 ? 2 : 1, .dp = tp % 2 == 0 ? world / 2 : world});
  support::Layout language = {.tp = tp, .dp = dp, .pp = pp};
  if (!apart) language.offset = 0;
  job.Module("language", Llama({.layers = 6}), language);
  job.Edge("vision", "language");
  job::Recovery& recovery = job.spec().recovery;
  recovery.ladder = ladders[prng.Below(ladders.size())];
  recovery.widths = below(2) == 0 ? job::Widths::kOwn : job::Widths::kParity;
  recovery.state_home = below(2) == 0 ? StateHome::kAuto : StateHome::kMirror;
  recovery.state_copies = 1 + below(3);
  Drawn drawn{.spec = job, .per_node = 1 + below(5)};
  const int32_t places = drawn.spec.World() + (below(2) == 0 ? 0 : below(5));
  drawn.nodes = (places + drawn.per_node - 1) / drawn.per_node;
  return drawn;
}

// That it follows from the lost places alone, which the healthy plan has not, and that each device
// and each place is somewhere once.
void ExpectSound(const Plan& healthy, const Plan& plan) {
  Layout expected = healthy.layout;
  if (!plan.layout.lost.empty())
    expected = LayoutAfter(healthy, {.lost = plan.layout.lost, .spares = false})->layout;
  Layout actual = plan.layout;
  actual.epoch = expected.epoch;
  actual.nodes = expected.nodes;  // devices change places
  for (size_t m = 0; m < actual.modules.size(); ++m) {
    if (!actual.modules[m].order.empty() || !expected.modules[m].order.empty()) {
      EXPECT_LT(plan.replicas(static_cast<int32_t>(m)).present_replicas(),
                plan.replicas(static_cast<int32_t>(m)).replicas());
    }
    actual.modules[m].order = expected.modules[m].order;
  }
  EXPECT_EQ(actual, expected);
  std::set<std::pair<NodeName, int32_t>> devices;
  int32_t working = 0;
  for (Rank place{0}; place.value < static_cast<int32_t>(plan.node_of.size()); ++place.value) {
    const Device device = plan.DeviceOf(place);
    EXPECT_TRUE(devices.insert({device.node, device.index}).second) << "place " << place.value;
    working += place.value < plan.world && !plan.PlacesOf(place).empty() ? 1 : 0;
  }
  EXPECT_EQ(devices.size(), healthy.node_of.size());
  EXPECT_EQ(static_cast<size_t>(working) + plan.layout.lost.size() + plan.layout.idle.size(),
            healthy.node_of.size());
}

class History {
 public:
  History(Prng& prng, const Plan& healthy) : prng_(prng), healthy_(healthy), plan_(healthy) {}

  const Plan& plan() const { return plan_; }
  int32_t took_over() const { return took_over_; }

  // Returns whether training can go on.
  bool Lose() {
    Change change;
    std::set<Rank> gone(plan_.layout.lost.begin(), plan_.layout.lost.end());
    for (Rank place{0}; place.value < static_cast<int32_t>(plan_.node_of.size()); ++place.value) {
      if (!gone.contains(place) && prng_.Below(7) == 0) change.lost.push_back(place);
    }
    return !change.lost.empty() && Take(change);
  }
  // Some of those that are lost, or all; on other devices one time in four.
  bool Return(bool all) {
    Change change;
    for (Rank place : plan_.layout.lost) {
      if (!all && prng_.Below(2) == 0) continue;
      change.returned[place] = plan_.DeviceOf(place);
      if (prng_.Below(4) == 0) change.returned[place] = {"new", next_device_++};
    }
    return !change.returned.empty() && Take(change);
  }

 private:
  bool Take(const Change& change) {
    const auto next = LayoutAfter(plan_, change);
    if (!next.ok()) {
      EXPECT_EQ(next.status().code(), absl::StatusCode::kFailedPrecondition) << next.status();
      return false;
    }
    auto plan = Expand(healthy_.spec, next->layout);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return false;
    EXPECT_EQ(plan->epoch().value, plan_.epoch().value + 1);
    std::set<std::pair<int32_t, int32_t>> told;
    for (const Taken& taken : next->taken) {
      told.insert({taken.module, taken.replica});
      took_over_ += taken.rung == Rung::kSpare ? 1 : 0;
      EXPECT_FALSE(taken.why.empty());
    }
    for (const ModulePlan& module : plan->modules) {
      for (const SlotChange& slot : plan->layout.modules[static_cast<size_t>(module.index)].changes)
        EXPECT_TRUE(told.contains({module.index, slot.dp}));
    }
    plan_ = *std::move(plan);
    ExpectSound(healthy_, plan_);
    return true;
  }

  Prng& prng_;
  const Plan& healthy_;
  Plan plan_;
  int32_t next_device_ = 0, took_over_ = 0;
};

TEST(NextLayoutTest, AnyHistory_ComesToWhatItsLostPlacesSay_AndBackToTheAdmittedLayout) {
  int32_t changes = 0, took_over = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Prng prng(seed);
    const Drawn drawn = Draw(prng);
    const Plan healthy = PlanOn(drawn.spec, drawn.nodes, drawn.per_node);
    History history(prng, healthy);
    for (int loss = 0; loss < 3; ++loss) changes += history.Lose() ? 1 : 0;
    for (int step = 0; step < 3; ++step)
      changes += (step == 1 ? history.Lose() : history.Return(false)) ? 1 : 0;
    history.Return(true);
    took_over += history.took_over();
    Layout back = history.plan().layout;
    back.epoch = healthy.layout.epoch;
    back.nodes = healthy.layout.nodes;
    EXPECT_EQ(back, healthy.layout);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(changes, 1500);
  EXPECT_GT(took_over, 300);
}

TEST(NextLayoutTest, ThreeLosses_OneAfterAnotherOrAtOnce_LeaveTheSame) {
  int32_t compared = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Prng prng(seed);
    const Drawn drawn = Draw(prng);
    const Plan healthy = PlanOn(drawn.spec, drawn.nodes, drawn.per_node);
    Plan plan = healthy;
    RankList all;
    for (int loss = 0; loss < 3; ++loss) {
      RankList lost;
      for (Rank place{0}; place.value < static_cast<int32_t>(plan.node_of.size()); ++place.value) {
        if (std::find(all.begin(), all.end(), place) == all.end() && prng.Below(8) == 0)
          lost.push_back(place);
      }
      auto next = LayoutAfter(plan, {.lost = lost, .spares = false});
      if (!next.ok()) continue;
      plan = *Expand(healthy.spec, std::move(next->layout));
      all.insert(all.end(), lost.begin(), lost.end());
    }
    if (all.empty()) continue;
    ++compared;
    Layout at_once = LayoutAfter(healthy, {.lost = all, .spares = false})->layout;
    at_once.epoch = plan.layout.epoch;
    for (size_t m = 0; m < at_once.modules.size(); ++m)
      at_once.modules[m].order = plan.layout.modules[m].order;
    EXPECT_EQ(at_once, plan.layout);
  }
  EXPECT_GT(compared, 300);
}

}  // namespace
}  // namespace phalanx::plan
