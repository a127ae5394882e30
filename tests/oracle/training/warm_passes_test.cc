// What ranks run before the first step of an epoch for the sake of kernels alone.
#include "worker/train/warm_passes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tests/oracle/training/cases.h"
#include "tests/oracle/training/epochs.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::Layout;

class WarmPassesTest : public testing::Test {
 protected:
  void Make(const Layout& layout, int64_t batch) {
    AJob job = AJob().Module("language", TinyLanguage({.layers = 2}), layout).Batch(batch, 2);
    job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
    NamedJob named = Named("warm", std::move(job));
    named.spec.steps = 20;
    epochs_.emplace(named.spec, named.data);
    epochs_->RunSteps(1);
  }
  // Microbatches that each rank's process has run alone.
  std::vector<int64_t> Alone() const {
    std::vector<int64_t> counts;
    for (int32_t rank = 0; rank < epochs_->world(); ++rank)
      counts.push_back(epochs_->warm(rank).microbatches());
    return counts;
  }
  std::vector<int64_t> Programs() const {
    std::vector<int64_t> counts;
    for (int32_t rank = 0; rank < epochs_->world(); ++rank)
      counts.push_back(epochs_->warm(rank).programs());
    return counts;
  }

  std::optional<EpochsInProcess> epochs_;
};

using Counts = std::vector<int64_t>;

TEST_F(WarmPassesTest, NewProcesses_RunEveryMicrobatchAndTheProgramOnce) {
  Make({.dp = 2}, 6);  // a replica's microbatches: of two samples, and of one
  EXPECT_EQ(Alone(), (Counts{2, 2}));
  EXPECT_EQ(Programs(), (Counts{1, 1}));
  epochs_->RunSteps(1);  // another epoch of the same layout
  EXPECT_EQ(Alone(), (Counts{2, 2}));
  EXPECT_EQ(Programs(), (Counts{1, 1}));
}

TEST_F(WarmPassesTest, LossOfAReplicaAndItsReturn_NobodyWhoWasThereRunsAnything) {
  Make({.dp = 3, .pp = 2}, 12);
  const Counts before = Alone();
  ASSERT_TRUE(epochs_->Lose({Rank{1}}));
  epochs_->RunSteps(1);
  Counts after = before;
  after[1] = 0;  // another process, which has run nothing
  EXPECT_EQ(Alone(), after);
  ASSERT_TRUE(epochs_->ReturnAll());
  epochs_->RunSteps(1);
  EXPECT_EQ(Alone(), before);
  // The program only where it was run first.
  EXPECT_EQ(Programs(), (Counts{1, 0, 1, 1, 1, 1}));
}

TEST_F(WarmPassesTest, NarrowerStage_OnlyWhoeverHasNewShapesRunsThem) {
  Make({.tp = 2, .dp = 2}, 12);
  const Counts before = Alone();
  ASSERT_TRUE(epochs_->Lose({Rank{1}}));
  epochs_->RunSteps(1);
  EXPECT_GT(Alone()[0], before[0]) << "its matrices are of another width";
  EXPECT_EQ(Alone()[2], before[2]);
  EXPECT_EQ(Alone()[3], before[3]);
  const Counts narrow = Alone();
  ASSERT_TRUE(epochs_->ReturnAll());
  epochs_->RunSteps(1);
  // It has a tensor group again, and has nobody of it run with it.
  EXPECT_EQ(Alone()[1], before[1]);
  EXPECT_EQ(Alone()[0], narrow[0]);
  ASSERT_TRUE(epochs_->Lose({Rank{1}}));
  epochs_->RunSteps(1);
  EXPECT_EQ(Alone()[0], narrow[0]) << "it has run those shapes before";
  EXPECT_EQ(Programs(), (Counts{1, 0, 1, 1}));
}

}  // namespace
}  // namespace phalanx::oracle
