#include "worker/comm/releases.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace phalanx::comm {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

// Communicators that are given up: each waits for its turn, and is freed at once.
class GivenUp {
 public:
  GivenUp(Releases& releases, int count) {
    for (int i = 0; i < count; ++i) releases.Begin();
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([&releases] {
        { const Releases::Turn turn(releases); }
        releases.End();
      });
    }
  }

 private:
  std::vector<std::jthread> threads_;
};

TEST(ReleasesTest, WhileAPeerMayBeWaitedFor_NothingIsFreed) {
  Releases releases({.held_max = absl::ZeroDuration()});
  std::optional<PeerKernels> training(releases);
  const GivenUp given_up(releases, 3);
  EXPECT_TRUE(releases.AwaitStops(DeadlineIn(kLong)));
  EXPECT_FALSE(releases.AwaitFreed(DeadlineIn(absl::Milliseconds(20))));
  training.reset();
  EXPECT_TRUE(releases.AwaitFreed(DeadlineIn(kLong)));
}

TEST(ReleasesTest, AtABoundary_TurnsAreGivenUntilTheBudgetIsSpent) {
  Releases releases({.held_max = absl::ZeroDuration()});
  PeerKernels training(releases);
  EXPECT_FALSE(training.MayFree());
  EXPECT_EQ(training.Free(kLong), 0);
  const GivenUp given_up(releases, 3);
  ASSERT_TRUE(releases.AwaitStops(DeadlineIn(kLong)));
  EXPECT_TRUE(training.MayFree());
  EXPECT_EQ(training.Free(absl::ZeroDuration()), 1) << "one at least";
  EXPECT_TRUE(training.MayFree());
  EXPECT_EQ(training.Free(kLong), 2);
  EXPECT_FALSE(training.MayFree());
  EXPECT_TRUE(releases.AwaitFreed(DeadlineIn(kLong)));
}

TEST(ReleasesTest, AtABoundaryBesideFirstUsesOfOthers_NothingIsFreed) {
  Releases releases({.held_max = absl::ZeroDuration()});
  PeerKernels training(releases);
  std::optional<PeerKernels> first_use(releases);
  const GivenUp given_up(releases, 1);
  ASSERT_TRUE(releases.AwaitStops(DeadlineIn(kLong)));
  EXPECT_FALSE(training.MayFree());
  EXPECT_EQ(training.Free(kLong), 0);
  first_use.reset();
  EXPECT_EQ(training.Free(kLong), 1);
}

// Nobody has taken the turn that is given yet.
TEST(ReleasesTest, FirstUseOfOthersBesideATurnThatIsGiven_BeginsBehindIt) {
  for (int i = 0; i < 200; ++i) {
    Releases releases({.held_max = kLong});
    PeerKernels training(releases);
    std::atomic<bool> in_use = false, beside = false;
    releases.Begin();
    std::jthread given_up([&] {
      const Releases::Turn turn(releases);
      if (in_use) beside = true;
    });
    ASSERT_TRUE(releases.AwaitStops(DeadlineIn(kLong)));
    std::jthread first_use([&] {
      const PeerKernels kernels(releases);
      in_use = true;
      in_use = false;
    });
    training.Free(kLong);
    first_use.join();
    training.Free(kLong);
    given_up.join();
    EXPECT_FALSE(beside);
  }
}

TEST(ReleasesTest, WhereNobodyTrains_TheyAreHeldBackForAWhile) {
  Releases releases({.held_max = absl::Milliseconds(50)});
  const auto begin = std::chrono::steady_clock::now();
  const GivenUp given_up(releases, 2);
  EXPECT_TRUE(releases.AwaitFreed(DeadlineIn(kLong)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
}

TEST(ReleasesTest, WhoeverAsksForAll_WaitsForNoTurn) {
  Releases releases({.held_max = kLong});
  const PeerKernels training(releases);
  const GivenUp given_up(releases, 3);
  EXPECT_TRUE(releases.FreeAll(DeadlineIn(kLong)));
}

TEST(ReleasesTest, WorkThatMayWaitForPeers_BeginsBehindWhatIsBeingFreed) {
  Releases releases({.held_max = absl::ZeroDuration()});
  releases.Begin();
  std::optional<Releases::Turn> turn(releases);
  bool begun = false;
  Mutex mutex;
  std::jthread training([&] {
    const PeerKernels kernels(releases);
    MutexLock lock(&mutex);
    begun = true;
  });
  {
    MutexLock lock(&mutex);
    EXPECT_FALSE(begun);
  }
  turn.reset();
  training.join();
  MutexLock lock(&mutex);
  EXPECT_TRUE(begun);
  EXPECT_NE(releases.End(), "");
}

TEST(ReleasesTest, OnceAllAreFreed_ItIsTold) {
  Releases releases({.held_max = absl::ZeroDuration()});
  releases.Begin();
  releases.Begin();
  EXPECT_FALSE(releases.AwaitStops(DeadlineIn(absl::ZeroDuration())));
  std::jthread first([&] { const Releases::Turn turn(releases); });
  std::jthread second([&] { const Releases::Turn turn(releases); });
  EXPECT_TRUE(releases.AwaitStops(DeadlineIn(kLong)));
  EXPECT_EQ(releases.End(), "");
  EXPECT_EQ(releases.End().substr(0, 31), "2 communicators given back with");
  EXPECT_TRUE(releases.FreeAll(DeadlineIn(absl::ZeroDuration())));
}

}  // namespace
}  // namespace phalanx::comm
