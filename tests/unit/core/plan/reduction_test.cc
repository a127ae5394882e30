#include "core/plan/reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

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
        ASSERT_EQ(bucket.shares.size(), reduction.group.size());
        for (size_t home = 0; home < bucket.shares.size(); ++home) {
          EXPECT_EQ(bucket.shares[home].home, static_cast<int32_t>(home));
          EXPECT_EQ(bucket.shares[home].elements.first, end) << "no gap, no overlap";
          end = bucket.shares[home].elements.end();
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

}  // namespace
}  // namespace phalanx::plan
