// Who gives state to whom.
#include "worker/train/transfers.h"

#include <algorithm>
#include <map>

#include "core/plan/derivation.h"
#include "core/plan/loss.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"

namespace phalanx::train {
namespace {

using support::AJob;
using support::Llama;

bool Holds(const std::map<Rank, Holdings>& holdings, Rank rank, const RulerName& name, int64_t at) {
  const auto held = holdings.find(rank);
  if (held == holdings.end()) return false;
  const auto ranges = held->second.state.find(name);
  return ranges != held->second.state.end() &&
         std::any_of(ranges->second.begin(), ranges->second.end(),
                     [at](const auto& range) { return range.first <= at && at < range.end(); });
}

// Six replicas on three nodes, with a home of everything on each, of which one is lost.
class TransfersTest : public testing::Test {
 protected:
  void SetUp() override {
    AJob job = AJob().Module("language", Llama({.layers = 2}), {.dp = 6}).Batch(60, 1);
    job.spec().recovery.state_copies = 3;
    job.spec().recovery.ladder = {job::Rung::kDropReplica};
    const auto healthy = plan::MakePlan(job.Build(), plan::MakeCluster(3, 2), Epoch{1});
    ASSERT_TRUE(healthy.ok()) << healthy.status();
    auto next = plan::LayoutAfter(*healthy, {.lost = {Rank{1}}, .spares = false});
    ASSERT_TRUE(next.ok()) << next.status();
    after_ = *plan::Expand(healthy->spec, std::move(next->layout));
    for (const int32_t rank : {0, 2, 3, 4, 5}) {
      before_[Rank{rank}] = {};
      then_[Rank{rank}] = {};
    }
    FillHoldings(*healthy, 0, &before_);
    FillHoldings(after_, 0, &then_);
  }

  // Elements that come from another node though somebody of the same node is to hold them no
  // longer.
  int64_t FromAfar(const Transfers& transfers) const {
    int64_t count = 0;
    for (const BucketTransfers& bucket : transfers.buckets) {
      for (const StateTransfer& transfer : bucket.transfers) {
        if (after_.FailTogether(transfer.from, transfer.to)) continue;
        const RulerName name{bucket.part, bucket.bucket, transfer.family};
        for (int64_t at = transfer.elements.first; at < transfer.elements.end(); ++at) {
          count += std::any_of(before_.begin(), before_.end(), [&](const auto& one) {
            return after_.FailTogether(one.first, transfer.to) &&
                   Holds(before_, one.first, name, at) && !Holds(then_, one.first, name, at);
          });
        }
      }
    }
    return count;
  }

  plan::Plan after_;
  std::map<Rank, Holdings> before_, then_;
};

// A rank lets go of what it gave when the other has it. So a node that has a copy before and
// behind the change is never without, whichever nodes are lost on the way.
TEST_F(TransfersTest, NodeThatHasACopy_IsNeverWithout) {
  const auto transfers = TransfersInto(after_, before_, 1 << 20);
  ASSERT_TRUE(transfers.ok()) << transfers.status();
  EXPECT_EQ(FromAfar(*transfers), 0);
}

TEST_F(TransfersTest, WhoHoldsTheLaterHalf_GivesIt_ThoughTheFormerComesFromAfar) {
  for (auto& [name, ranges] : before_.at(Rank{4}).state) {
    for (plan::UnitRange& range : ranges)
      range = {range.first + range.count / 2, range.count - range.count / 2};
  }
  const auto transfers = TransfersInto(after_, before_, 1 << 20);
  ASSERT_TRUE(transfers.ok()) << transfers.status();
  EXPECT_EQ(FromAfar(*transfers), 0);
}

TEST_F(TransfersTest, UnderTheDerivationBefore_TheFirstWhoHoldsItGives) {
  after_.layout.derivation = plan::kDerivationOfLeavingGivers - 1;
  const auto transfers = TransfersInto(after_, before_, 1 << 20);
  ASSERT_TRUE(transfers.ok()) << transfers.status();
  EXPECT_GT(FromAfar(*transfers), 0);
  for (const BucketTransfers& bucket : transfers->buckets) {
    for (const StateTransfer& transfer : bucket.transfers) {
      const RulerName name{bucket.part, bucket.bucket, transfer.family};
      for (Rank rank{0}; rank < transfer.from; ++rank.value)
        EXPECT_FALSE(Holds(before_, rank, name, transfer.elements.first));
    }
  }
}

}  // namespace
}  // namespace phalanx::train
