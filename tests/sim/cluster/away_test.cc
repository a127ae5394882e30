// The coordinator is away for ten minutes, and somebody is lost meanwhile: once it is back the job
// goes on as its ladder says, or holds or ends, with the cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/base/prng.h"
#include "tests/sim/cluster/cluster.h"

namespace phalanx::sim {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kAway = absl::Minutes(10), kStep = absl::Seconds(1);
constexpr absl::Duration kHold = absl::Minutes(5);
constexpr int32_t kWorld = 4;       // two replicas of two
constexpr size_t kNodeOfRank3 = 1;  // alone there
constexpr uint64_t kMoments = 4;    // in which somebody is lost, for each rung and loss

// What is lost: a process; a daemon with its rank, for good or for a minute of the ten.
enum class Lost : uint8_t { kRank, kNode, kNodeForAMinute };
constexpr Lost kAllLost[] = {Lost::kRank, Lost::kNode, Lost::kNodeForAMinute};

std::string NameOf(Lost lost) {
  return lost == Lost::kRank ? "rank" : lost == Lost::kNode ? "node" : "node for a minute";
}

// A job of one rung trains, the coordinator dies, and so does somebody else at a moment of the ten
// minutes that the seed says.
class Away {
 public:
  // `spares`: devices that idle.
  Away(uint64_t seed, const std::string& ladder, int32_t spares, Lost lost)
      : lost_(lost),
        prng_(seed),
        cluster_(planner_, {.seed = seed,
                            .step_time = kStep,
                            .devices = spares == 0 ? std::vector<int32_t>{3, 1}
                                                   : std::vector<int32_t>{3, 1, spares},
                            .users = false}) {
    const std::string more =
        "  recovery: {ladder: [" + ladder + "], rejoin: manual, hold: 5m}\n" +
        (spares == 0 ? std::string() : "  resources: {spares: " + std::to_string(spares) + "}\n");
    cluster_.RunQuietly(absl::Seconds(10));
    cluster_.Submit(Planner::MakeRequest("{ranks: 4, tp: 2}", more, "job", 2000));
    cluster_.RunQuietly(absl::Minutes(2));
  }

  // Ten minutes without a coordinator.
  void Run() {
    ASSERT_TRUE(cluster_.training().contains(kJob)) << "it does not train in time";
    const absl::Duration before = kAway * prng_.Uniform();
    cluster_.StopCoordinator();
    cluster_.RunQuietly(before);
    lost_at_ = cluster_.training().at(kJob).decided;
    rank_ = lost_ == Lost::kRank ? static_cast<int32_t>(prng_.Below(kWorld)) : kWorld - 1;
    if (lost_ == Lost::kRank) {
      ASSERT_TRUE(cluster_.KillRank(kJob, rank_));
    } else {
      cluster_.KillNode(kNodeOfRank3);
    }
    const absl::Duration after = kAway - before;
    const absl::Duration gone = std::min(absl::Minutes(1), after / 2);
    cluster_.RunQuietly(gone);
    if (lost_ == Lost::kNodeForAMinute) cluster_.StartNode(kNodeOfRank3);
    cluster_.RunQuietly(after - gone);
    decided_ = cluster_.training().at(kJob).decided;
    cluster_.StartCoordinator();
  }

  Cluster& cluster() { return cluster_; }
  int32_t rank() const { return rank_; }        // that was lost
  int64_t lost_at() const { return lost_at_; }  // the last step that was decided before
  int64_t decided() const { return decided_; }  // and before the coordinator was back
  const coordinator::LiveJob* job() const {
    const auto& jobs = cluster_.coordinator().machine().jobs();
    const auto found = jobs.find(kJob);
    return found == jobs.end() ? nullptr : &found->second;
  }
  std::set<int32_t> RanksWithWork() const {
    std::set<int32_t> ranks;
    for (size_t rank = 0; rank < job()->run->ranks.size(); ++rank) {
      if (job()->run->ranks[rank].used) ranks.insert(static_cast<int32_t>(rank));
    }
    return ranks;
  }

  static constexpr JobId kJob{1};

 private:
  const Lost lost_;
  Prng prng_;
  Planner planner_;
  Cluster cluster_;
  int32_t rank_ = -1;
  int64_t lost_at_ = 0, decided_ = 0;
};

// The ranks that train on where `lost` is gone.
std::set<int32_t> All(int32_t) { return {0, 1, 2, 3}; }
std::set<int32_t> AllBut(int32_t lost) {
  std::set<int32_t> ranks = All(lost);
  ranks.erase(lost);
  return ranks;
}
// Replicas are 0, 1 and 2, 3.
std::set<int32_t> OtherReplica(int32_t lost) {
  return lost < 2 ? std::set<int32_t>{2, 3} : std::set<int32_t>{0, 1};
}

struct Rung {
  std::string ladder;
  int32_t spares = 0;
  std::set<int32_t> (*left)(int32_t lost) = All;
  std::vector<Lost> goes_on = {Lost::kRank, Lost::kNode, Lost::kNodeForAMinute};
};

void ExpectGoesOn(Away& away, const Rung& rung) {
  away.cluster().RunQuietly(absl::Minutes(2));
  const coordinator::LiveJob* job = away.job();
  ASSERT_TRUE(job != nullptr && job->run.has_value()) << "the job is gone";
  EXPECT_EQ(job->state.phase, job::JobPhase::kRunning);
  EXPECT_EQ(job->state.epoch, Epoch{2});
  EXPECT_FALSE(job->recovery.has_value());
  EXPECT_EQ(away.RanksWithWork(), rung.left(away.rank()));
  const Cluster::Training now = away.cluster().training().at(Away::kJob);
  EXPECT_EQ(now.epoch, Epoch{2});
  EXPECT_GT(now.told, away.decided() + absl::Minutes(1) / kStep / 2) << "it goes on too late";
  EXPECT_EQ(away.cluster().counts().steps_given_up, 0);
  EXPECT_EQ(away.cluster().counts().epochs, 2);
  EXPECT_EQ(away.cluster().counts().recovered, 1);
}

// Of a job that ends there and then, or holds first, which it says.
void ExpectEnds(Away& away, Lost lost, bool holds) {
  away.cluster().RunQuietly(absl::Minutes(1));
  if (holds) {
    ASSERT_NE(away.job(), nullptr);
    EXPECT_EQ(away.job()->state.phase, job::JobPhase::kRunning);
    EXPECT_EQ(away.job()->state.epoch, Epoch{1});
    EXPECT_EQ(away.cluster().coordinator().views().at(Away::kJob).reason, "waits for rank 3");
    away.cluster().RunQuietly(kHold);
  }
  const coordinator::FailureCause* cause = away.cluster().coordinator().CauseOf(Away::kJob);
  ASSERT_NE(cause, nullptr) << "it has not failed";
  EXPECT_EQ(cause->kind, lost == Lost::kRank   ? job::FailureKind::kRankKilled
                         : lost == Lost::kNode ? job::FailureKind::kNodeLost
                                               : job::FailureKind::kRanksLost)
      << cause->message;
  EXPECT_EQ(cause->rank, away.rank());
  EXPECT_EQ(cause->node, away.rank() == kWorld - 1 ? "node-1" : "node-0");
  const std::string says = lost == Lost::kRank   ? "was killed by signal 9 (SIGKILL)"
                           : lost == Lost::kNode ? "node node-1 has been away for "
                                                 : "node node-1 came back without the ranks";
  EXPECT_THAT(cause->message, HasSubstr(says));
  if (holds) {
    EXPECT_THAT(cause->message, HasSubstr("what is left cannot go on, not enough came back within "
                                          "5m, and there is no checkpoint to start again from"));
  }
  EXPECT_EQ(away.cluster().counts().epochs, 1);
  EXPECT_EQ(away.cluster().counts().failed, 1);
}

class CoordinatorAway : public testing::TestWithParam<Rung> {};

TEST_P(CoordinatorAway, WhoIsLostMeanwhile_IsMadeUpForAsTheLadderSays_OrIsTheCause) {
  const Rung& rung = GetParam();
  for (const Lost lost : kAllLost) {
    for (uint64_t seed = 1; seed <= kMoments; ++seed) {
      SCOPED_TRACE(testing::Message() << "lost: " << NameOf(lost) << ", seed " << seed);
      Away away(seed, rung.ladder, rung.spares, lost);
      away.Run();
      if (HasFatalFailure()) return;
      // What no rank has decided nobody decides without it.
      EXPECT_GE(away.decided(), away.lost_at());
      EXPECT_LE(away.decided(), away.lost_at() + 1);
      const bool goes_on = std::count(rung.goes_on.begin(), rung.goes_on.end(), lost) != 0;
      if (goes_on) ExpectGoesOn(away, rung);
      if (!goes_on) ExpectEnds(away, lost, /*holds=*/rung.ladder == "wait");
      ASSERT_FALSE(HasFailure()) << away.cluster().Describe(100);
      ASSERT_TRUE(away.cluster().violations().empty()) << away.cluster().Describe(100);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rungs, CoordinatorAway,
    testing::Values(Rung{.ladder = "spare", .spares = 1}, Rung{.ladder = "shrink", .left = AllBut},
                    Rung{.ladder = "drop-replica", .left = OtherReplica},
                    Rung{.ladder = "restart", .left = OtherReplica},
                    Rung{.ladder = "wait", .goes_on = {Lost::kRank, Lost::kNodeForAMinute}},
                    Rung{.ladder = "", .goes_on = {}}),
    [](const auto& info) {
      std::string name = info.param.ladder.empty() ? "none" : info.param.ladder;
      std::erase(name, '-');
      return name;
    });

}  // namespace
}  // namespace phalanx::sim
