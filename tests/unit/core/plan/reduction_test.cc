#include "core/plan/reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/plan/ruler.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/damaged.h"

namespace phalanx::plan {
namespace {

using support::AJob;

TEST(ReductionTest, DamagedTables_EveryBucketIsSharedByTheReplicasThatThereAre) {
  const job::JobSpec spec =
      AJob()
          .Module("vision", support::ClipVision(), {.tp = 2, .dp = 3})
          .Module("language", support::Llama({.tied_head = true}), {.tp = 3, .dp = 3, .pp = 2})
          .Edge("vision", "language", {.projector = 32})
          .Batch(24, 2);
  int64_t reduced = 0;
  ForEachDamaged(spec, [&](const Plan& plan) {
    ForEachPlace(plan, [&](Rank rank, const Place& place) {
      const ReplicaTable& replicas = plan.replicas(place.module);
      if (!replicas.EqualWidths(place.pp)) return;
      const StageParameters parameters = ParametersOf(plan, place);
      const Reduction reduction = ReductionOf(plan, place, 0, parameters);
      ASSERT_EQ(static_cast<int32_t>(reduction.group.size()), replicas.present_replicas());
      EXPECT_EQ(reduction.group[static_cast<size_t>(reduction.self)], rank);
      std::set<int32_t> seen;
      for (Rank member : reduction.group) {
        const auto other = plan.PlaceOf(member, place.module);
        ASSERT_TRUE(other.has_value());
        EXPECT_EQ(other->tp, place.tp);
        EXPECT_EQ(other->pp, place.pp);
        seen.insert(other->dp);
      }
      EXPECT_EQ(seen.size(), reduction.group.size());
      int64_t end = 0;
      for (const ReducedBucket& bucket : reduction.buckets) {
        EXPECT_TRUE(bucket.even);
        EXPECT_EQ(bucket.own, std::vector<UnitRange>{
                                  EvenShare(bucket.elements, reduction.replicas, reduction.self)});
        for (int32_t home = 0; home < reduction.replicas; ++home) {
          const UnitRange share = EvenShare(bucket.elements, reduction.replicas, home);
          EXPECT_EQ(share.first, end) << "no gap, no overlap";
          end = share.end();
        }
        EXPECT_EQ(end, bucket.elements.end());
      }
      EXPECT_EQ(end, parameters.trained_extent);
      for (const Copy& copy : reduction.copies)
        EXPECT_TRUE(copy.lead == place || copy.follower == place);
      reduced += end;
    });
  });
  EXPECT_GT(reduced, 0);
}

// One rank of a stage: its reduction, and of each element of its buffers which one it is of the
// stage; -1: padding, or led by somebody else.
struct Member {
  Reduction reduction;
  std::vector<int64_t> ids;
};

Member MemberOf(const Plan& plan, const Place& place, int64_t* elements) {
  const StageParameters parameters = ParametersOf(plan, place);
  Member member{.reduction = ReductionOf(plan, place, 0, parameters),
                .ids = std::vector<int64_t>(static_cast<size_t>(parameters.elements), -1)};
  *elements = 0;
  for (const BucketRulers& bucket : RulersOf(plan, place, parameters)) {
    for (const FamilyRuler& ruler : bucket.rulers) {
      const UnitRange led = LedUnits(plan, place, ruler.family);
      int64_t id = *elements + led.first * ruler.unit_elements;
      std::vector<UnitRange> runs;
      bucket.AppendRuns(ruler.family,
                        {led.first * ruler.unit_elements, led.count * ruler.unit_elements}, &runs);
      for (const UnitRange& run : runs) {
        for (int64_t i = run.first; i < run.end(); ++i) member.ids[static_cast<size_t>(i)] = id++;
      }
      *elements += ruler.elements();
    }
  }
  return member;
}

std::vector<int64_t> IdsOf(const Member& member, const std::vector<UnitRange>& runs) {
  std::vector<int64_t> ids;
  for (const UnitRange& run : runs) {
    ids.insert(ids.end(), member.ids.begin() + run.first, member.ids.begin() + run.end());
  }
  return ids;
}

const SharePeer* PeerOf(const ReducedBucket& bucket, int32_t peer) {
  const auto found = std::find_if(bucket.peers.begin(), bucket.peers.end(),
                                  [peer](const SharePeer& each) { return each.peer == peer; });
  return found == bucket.peers.end() ? nullptr : &*found;
}

// What one end gives is what the other takes, and each element of the stage has one home, which has
// a summand of it from every replica.
void ExpectReduced(const std::vector<Member>& members, int64_t elements) {
  std::vector<int> homes(static_cast<size_t>(elements), 0);
  for (const Member& member : members) {
    const int32_t self = member.reduction.self;
    for (size_t b = 0; b < member.reduction.buckets.size(); ++b) {
      const ReducedBucket& bucket = member.reduction.buckets[b];
      EXPECT_FALSE(bucket.even);
      std::vector<int64_t> taken;
      for (const SharePeer& peer : bucket.peers) {
        const Member& other = members[static_cast<size_t>(peer.peer)];
        const SharePeer* back = PeerOf(other.reduction.buckets[b], self);
        ASSERT_NE(back, nullptr);
        const std::vector<int64_t> take = IdsOf(member, peer.take);
        EXPECT_EQ(take, IdsOf(other, back->give));
        EXPECT_EQ(peer.taken, static_cast<int64_t>(take.size()));
        EXPECT_EQ(back->given, peer.taken);
        taken.insert(taken.end(), take.begin(), take.end());
      }
      const std::vector<int64_t> own = IdsOf(member, bucket.own);
      for (const int64_t id : own) {
        ASSERT_GE(id, 0) << "a home leads its shares";
        ++homes[static_cast<size_t>(id)];
      }
      std::vector<UnitRange> summed;
      for (const SummedRun& run : bucket.sums) {
        summed.push_back(run.elements);
        ASSERT_EQ(run.sources.size(), static_cast<size_t>(member.reduction.replicas));
        EXPECT_EQ(std::count(run.sources.begin(), run.sources.end(), -1), 1);
        for (const int64_t source : run.sources) {
          for (int64_t i = 0; source >= 0 && i < run.elements.count; ++i) {
            ASSERT_EQ(taken.at(static_cast<size_t>(source + i)),
                      member.ids[static_cast<size_t>(run.elements.first + i)]);
          }
        }
      }
      EXPECT_EQ(IdsOf(member, summed), own);
      for (const MirrorPeer& mirror : bucket.to_mirrors) {
        if (bucket.even) {
          EXPECT_EQ(mirror.runs.size(), 1u) << "which ranks rely on";
        }
        const Member& other = members[static_cast<size_t>(mirror.peer)];
        const auto& back = other.reduction.buckets[b].from_primaries;
        const auto found = std::find_if(
            back.begin(), back.end(), [self](const MirrorPeer& each) { return each.peer == self; });
        ASSERT_NE(found, back.end());
        const std::vector<int64_t> mirrored = IdsOf(other, found->runs);
        EXPECT_EQ(IdsOf(member, mirror.runs), mirrored);
        for (const int64_t id : mirrored) ++homes[static_cast<size_t>(id)];
      }
    }
  }
  EXPECT_EQ(std::count(homes.begin(), homes.end(), 2), elements)
      << "each element has a home and a mirror";
}

TEST(ReductionTest, UnequalWidths_WhatOneGivesTheOtherTakes) {
  const job::JobSpec spec =
      AJob()
          .Module("vision", support::ClipVision(), {.tp = 2, .dp = 3})
          .Module("language", support::Llama({.tied_head = true}), {.tp = 4, .dp = 3, .pp = 2})
          .Edge("vision", "language", {.projector = 32})
          .Batch(24, 2);
  int stages = 0;
  ForEachDamaged(spec, [&](const Plan& plan) {
    for (const ModulePlan& module : plan.modules) {
      for (int32_t pp = 0; pp < module.replicas.stages(); ++pp) {
        if (module.replicas.EqualWidths(pp)) continue;
        std::vector<Member> members;
        int64_t elements = 0;
        for (const int32_t dp : module.replicas.order()) {
          Place place{
              .module = module.index, .dp = dp, .pp = pp, .width = module.replicas.Width(dp, pp)};
          for (; place.tp < place.width; ++place.tp)
            members.push_back(MemberOf(plan, place, &elements));
        }
        ExpectReduced(members, elements);
        ++stages;
      }
    }
  });
  EXPECT_GT(stages, 100);
}

}  // namespace
}  // namespace phalanx::plan
