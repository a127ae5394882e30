#include "core/plan/message_peers.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/plan/derivation.h"
#include "core/plan/loss.h"
#include "core/plan/part_sizes.h"
#include "gtest/gtest.h"
#include "tests/support/layouts.h"
#include "tests/support/specs.h"
#include "tests/unit/worker/train/plan_of.h"
#include "worker/train/bound_program.h"

namespace phalanx::train {
namespace {

using Use = plan::CommunicatorSpec::Use;
using support::AJob;

// More ranks than all of which would be connected with each other, lanes and widths that differ.
plan::Plan TiedWidePlan() {
  return PlanOf(
      AJob()
          .Module("vision", support::ClipVision(), {.tp = 2, .dp = 3})
          .Module("language", support::Llama({.tied_head = true}), {.tp = 4, .dp = 2, .pp = 2})
          .Edge("vision", "language", {.projector = 16})
          .Batch(14, 4));
}

// By communicator and rank, in world ranks.
using Pairs = std::map<std::pair<size_t, Rank>, std::set<Rank>>;
Pairs PairsOf(const plan::Plan& plan, const std::vector<plan::CommunicatorSpec>& specs) {
  Pairs pairs;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const auto peers = MessagePeers(plan, Rank{rank}, specs);
    EXPECT_EQ(peers.size(), specs.size());
    for (size_t i = 0; i < peers.size(); ++i) {
      for (const int32_t peer : peers[i])
        pairs[{i, Rank{rank}}].insert(specs[i].ranks[static_cast<size_t>(peer)]);
    }
  }
  return pairs;
}

// Lanes have lost ranks, other ones in every module.
std::vector<plan::Plan> DamagedPlans() {
  const plan::Plan healthy = TiedWidePlan();
  std::vector<plan::Plan> plans;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Prng prng(seed);
    plan::Layout layout = healthy.layout;
    for (const plan::ModulePlan& module : healthy.modules)
      support::Damage(prng, healthy, module.index, layout);
    plans.push_back(*plan::Expand(healthy.spec, layout));
  }
  return plans;
}

void ExpectBothNameEachOther(const plan::Plan& plan) {
  const Pairs pairs = PairsOf(plan, plan::Communicators(plan));
  EXPECT_FALSE(pairs.empty());
  for (const auto& [key, peers] : pairs) {
    for (const Rank peer : peers) {
      EXPECT_NE(peer, key.second);
      EXPECT_TRUE(pairs.at({key.first, peer}).contains(key.second));
    }
  }
}

TEST(MessagePeersTest, OfTwoRanks_BothNameEachOther) {
  ExpectBothNameEachOther(TiedWidePlan());
  for (const plan::Plan& plan : DamagedPlans()) ExpectBothNameEachOther(plan);
}

void ExpectCounted(const plan::Plan& plan, plan::PartSizes& sizes) {
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  const std::vector<plan::PeerCounts> counted = plan::CountPeers(plan, sizes);
  ASSERT_EQ(static_cast<int32_t>(counted.size()), plan.world);
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const auto peers = MessagePeers(plan, Rank{rank}, specs);
    std::map<Use, int32_t> named;
    for (size_t i = 0; i < specs.size(); ++i)
      named[specs[i].use] += static_cast<int32_t>(peers[i].size());
    const plan::PeerCounts& counts = counted[static_cast<size_t>(rank)];
    EXPECT_EQ(counts.links, named[Use::kForward]);
    EXPECT_EQ(counts.links, named[Use::kBackward]);
    EXPECT_EQ(counts.control, named[Use::kControl]);
    EXPECT_EQ(counts.tensor, named[Use::kTensor]);
    EXPECT_EQ(counts.data, named[Use::kData]);
  }
}

TEST(MessagePeersTest, Counts_AreOfThoseThatAreNamed) {
  plan::PartSizes sizes;
  ExpectCounted(TiedWidePlan(), sizes);
  plan::PartSizes of_damaged;
  for (const plan::Plan& plan : DamagedPlans()) ExpectCounted(plan, of_damaged);
  // Two modules share their ranks, their groups and their mirrors; the third is cut otherwise.
  for (const int32_t copies : {1, 2, 3}) {
    AJob job = AJob()
                   .Module("vision", support::ClipVision(), {.dp = 6, .offset = 0})
                   .Module("audio", support::ClipVision(), {.dp = 6, .offset = 0})
                   .Module("language", support::Llama({.layers = 4}),
                           {.tp = 2, .dp = 3, .pp = 1, .offset = 0})
                   .Edge("vision", "language", {.projector = 16})
                   .Edge("audio", "language", {.projector = 16})
                   .Batch(12, 2);
    job.spec().recovery.state_copies = copies;
    plan::PartSizes of_job;
    ExpectCounted(PlanOf(job), of_job);
  }
  // With each number of samples at once lanes are cut elsewhere.
  plan::PartSizes of_many;
  ExpectCounted(PlanOf(AJob()
                           .Module("vision", support::ClipVision(), {.dp = 32})
                           .Module("language", support::Llama(), {.tp = 2, .dp = 4})
                           .Edge("vision", "language", {.projector = 16})
                           .Batch(256, 32)),
                of_many);
  // The first microbatch has none for some lanes.
  plan::PartSizes of_few;
  ExpectCounted(PlanOf(AJob()
                           .Module("language", support::Llama({.layers = 4, .tied_head = true}),
                                   {.cp = 2, .dp = 6, .pp = 2})
                           .Batch(6, 1)
                           .Schedule(job::ScheduleName::kInterleaved, 2)),
                of_few);
}

// Ranks of an epoch behind the first are connected for the state that moves to them.
TEST(MessagePeersTest, Counts_OfALaterEpoch_HaveThoseWhoseStateMoves) {
  plan::Layout layout = TiedWidePlan().layout;
  layout.epoch = Epoch{2};
  plan::PartSizes sizes;
  ExpectCounted(*plan::Expand(TiedWidePlan().spec, std::move(layout)), sizes);
}

void ExpectAllNamed(const plan::Plan& plan) {
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  std::vector<plan::MicrobatchSamples> microbatches;
  for (int64_t m = 0; m < plan.microbatches; ++m)
    microbatches.push_back(plan::SamplesOfMicrobatch(plan, m));
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    BindingTables tables;
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) {
      tables.part_of[{place.module, 0}] = static_cast<int32_t>(tables.places.size());
      tables.places.push_back(place);
    }
    for (const plan::CommunicatorSpec& spec : specs) {
      auto* table = spec.use == Use::kForward    ? &tables.forward_peers
                    : spec.use == Use::kBackward ? &tables.backward_peers
                                                 : nullptr;
      for (size_t p = 0; table != nullptr && p < spec.ranks.size(); ++p)
        (*table)[spec.ranks[p]] = static_cast<int32_t>(p);
    }
    std::map<bool, std::set<int32_t>> bound;  // by direction
    const auto bind = [&](const schedule::Program& program,
                          const std::vector<plan::MicrobatchSamples>& samples) {
      for (const BoundInstruction& one :
           Bind(plan, Rank{rank}, program, tables, samples).instructions) {
        for (const BoundMessage& message : one.messages) {
          if (message.peer >= 0) bound[schedule::IsForwardMessage(one.op)].insert(message.peer);
        }
      }
    };
    bind(*schedule::BuildStepOf(plan, Rank{rank}), microbatches);
    // Whatever is left of the samples to evaluate.
    const int64_t whole = plan::SamplesAtOnce(plan);
    for (int64_t count = 1; count <= whole; ++count) {
      bind(schedule::BuildEvaluationOf(plan, Rank{rank}, 1), {plan::DealMicrobatch(plan, count)});
    }
    const auto named = MessagePeers(plan, Rank{rank}, specs);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].use != Use::kForward && specs[i].use != Use::kBackward) continue;
      const std::set<int32_t> peers(named[i].begin(), named[i].end());
      for (const int32_t peer : bound[specs[i].use == Use::kForward])
        EXPECT_TRUE(peers.contains(peer)) << "rank " << rank << " peer " << peer;
    }
  }
}

TEST(MessagePeersTest, ThoseOfEveryBoundProgram_AreNamed) {
  ExpectAllNamed(TiedWidePlan());
  for (const plan::Plan& plan : DamagedPlans()) ExpectAllNamed(plan);
}

// Norms stand on both tensor ranks, the embedding at both ends; of three replicas one mirrors
// another, and has the third as its mirror.
TEST(MessagePeersTest, HoldersOfCopies_TalkOnTheGroupThatKeepsThemAlike) {
  const plan::Plan plan = PlanOf(
      AJob()
          .Module("language", support::Llama({.tied_head = true}), {.tp = 2, .dp = 3, .pp = 2})
          .Batch(6, 1));
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const plan::Place place = plan.PlacesOf(Rank{rank})[0];
    plan::Place other_end = place;
    other_end.pp = 1 - place.pp;
    const auto peers = MessagePeers(plan, Rank{rank}, specs);
    for (size_t i = 0; i < specs.size(); ++i) {
      const plan::RankList& ranks = specs[i].ranks;
      const bool member = std::find(ranks.begin(), ranks.end(), Rank{rank}) != ranks.end();
      std::vector<int32_t> expected;
      if (member && specs[i].use == Use::kTensor) expected = {1 - place.tp};
      if (member && specs[i].use == Use::kData) {
        expected = {0, 1, 2};
        expected.erase(expected.begin() + place.dp);
      }
      if (specs[i].use == Use::kControl) expected = {plan.RankOf(other_end).value};
      if (specs[i].use == Use::kForward || specs[i].use == Use::kBackward) continue;
      EXPECT_EQ(peers[i], expected) << specs[i].name << " rank " << rank;
    }
  }
}

TEST(MessagePeersTest, DataGroupsWithoutMirrors_OrWhereAllMirrorAll_HaveCollectivesAlone) {
  for (const int copies : {1, 2}) {
    AJob job = AJob().Module("language", support::Llama(), {.tp = 2, .dp = 2}).Batch(4, 1);
    job.spec().recovery.state_copies = copies;
    const plan::Plan plan = PlanOf(job);
    const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
    const auto peers = MessagePeers(plan, Rank{0}, specs);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].use != Use::kData) continue;
      EXPECT_TRUE(peers[i].empty()) << "homes: " << copies;
    }
  }
}

// Ranks of the release before, which may be in the epoch, send mirrors their sums.
TEST(MessagePeersTest, WhereAllMirrorAll_RanksOfTheReleaseBeforeTalkOnTheirDataGroup) {
  const job::JobSpec spec =
      AJob().Module("language", support::Llama(), {.tp = 2, .dp = 2}).Batch(4, 1);
  plan::Layout layout = PlanOf(spec).layout;
  layout.derivation = plan::kDerivationOfUpdatesEverywhere - 1;
  const plan::Plan plan = *plan::Expand(spec, layout);
  const plan::Place place = plan.PlacesOf(Rank{0})[0];
  EXPECT_FALSE(ReductionOf(plan, place, 0, ParametersOf(plan, place, 0)).for_all);
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  const auto peers = MessagePeers(plan, Rank{0}, specs);
  int groups = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].use != Use::kData || specs[i].ranks.front() != Rank{0}) continue;
    EXPECT_EQ(peers[i], std::vector<int32_t>{1});
    ++groups;
  }
  EXPECT_EQ(groups, 1);
}

// Of three ranks of a stage the one that is alone in its replica talks to both others, and they to
// it alone.
TEST(MessagePeersTest, ReplicasOfUnequalWidths_TalkOnTheirDataGroup) {
  const plan::Plan healthy =
      PlanOf(AJob().Module("language", support::Llama(), {.tp = 2, .dp = 2}).Batch(4, 1));
  const auto plan =
      plan::Expand(healthy.spec, plan::LayoutAfter(healthy, {.lost = {Rank{3}}})->layout);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(*plan);
  const auto data = std::find_if(specs.begin(), specs.end(),
                                 [](const auto& spec) { return spec.use == Use::kData; });
  ASSERT_NE(data, specs.end());
  ASSERT_EQ(data->ranks, (plan::RankList{Rank{0}, Rank{1}, Rank{2}}));
  const auto index = static_cast<size_t>(data - specs.begin());
  EXPECT_EQ(MessagePeers(*plan, Rank{0}, specs)[index], std::vector<int32_t>{2});
  EXPECT_EQ(MessagePeers(*plan, Rank{1}, specs)[index], std::vector<int32_t>{2});
  EXPECT_EQ(MessagePeers(*plan, Rank{2}, specs)[index], (std::vector<int32_t>{0, 1}));
}

// Ranks give each other state on their way into every epoch but the first.
TEST(MessagePeersTest, RanksOfAStage_AreConnectedForTheirState_BeforeItMoves) {
  const plan::Plan healthy =
      PlanOf(AJob().Module("language", support::Llama(), {.tp = 2, .dp = 2, .pp = 2}).Batch(4, 1));
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(healthy);
  const auto control = static_cast<size_t>(plan::FindCommunicator(
      specs, Use::kControl,
      {Rank{0}, Rank{1}, Rank{2}, Rank{3}, Rank{4}, Rank{5}, Rank{6}, Rank{7}}));
  const auto of_stage = [&](Rank rank) {
    const plan::Place place = healthy.PlacesOf(rank)[0];
    std::vector<int32_t> others;
    for (int32_t other = 0; other < healthy.world; ++other) {
      if (Rank{other} != rank && healthy.PlacesOf(Rank{other})[0].pp == place.pp)
        others.push_back(other);
    }
    return others;
  };
  plan::Layout next = healthy.layout;
  next.epoch = Epoch{2};
  const plan::Plan later = *plan::Expand(healthy.spec, next);
  for (Rank rank{0}; rank.value < healthy.world; ++rank.value) {
    EXPECT_TRUE(MessagePeers(healthy, rank, specs)[control].empty());
    EXPECT_EQ(MessagePeers(later, rank, specs)[control], of_stage(rank));
    EXPECT_EQ(of_stage(rank).size(), 3);
  }
  // Ranks of the release before, which may be in the epoch, connect nobody for it.
  next.derivation = plan::kDerivationOfConnectedState - 1;
  const plan::Plan before = *plan::Expand(healthy.spec, next);
  EXPECT_TRUE(MessagePeers(before, Rank{0}, specs)[control].empty());
}

TEST(MessagePeersTest, RanksOfALargeStage_AreConnectedWithTheirNeighbours) {
  plan::Layout layout =
      PlanOf(AJob().Module("language", support::Llama(), {.dp = 40}).Batch(40, 1)).layout;
  layout.epoch = Epoch{2};
  const plan::Plan plan = *plan::Expand(
      AJob().Module("language", support::Llama(), {.dp = 40}).Batch(40, 1).Build(), layout);
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  const auto control = std::find_if(specs.begin(), specs.end(),
                                    [](const auto& spec) { return spec.use == Use::kControl; });
  const auto peers = [&](int32_t rank) {
    return MessagePeers(plan, Rank{rank}, specs)[static_cast<size_t>(control - specs.begin())];
  };
  EXPECT_EQ(peers(0), (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(peers(20),
            (std::vector<int32_t>{12, 13, 14, 15, 16, 17, 18, 19, 21, 22, 23, 24, 25, 26, 27, 28}));
  ExpectBothNameEachOther(plan);
}

}  // namespace
}  // namespace phalanx::train
