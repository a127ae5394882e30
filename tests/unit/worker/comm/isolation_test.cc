// A rank that is cut off from the ranks of other nodes.
#include "worker/comm/isolation.h"

#include <atomic>
#include <chrono>
#include <latch>
#include <optional>
#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/comm/worlds.h"

namespace phalanx::comm {
namespace {

absl::Status Send(Communicator& group, int32_t peer, int64_t value) {
  absl::Status sent = group.Exchange({{.peer = peer, .data = &value, .bytes = 8}}, {});
  return sent.ok() ? group.Flush() : sent;
}
absl::Status Receive(Communicator& group, int32_t peer, int64_t* value) {
  return group.Exchange({}, {{.peer = peer, .data = value, .bytes = 8}});
}

TEST(IsolationTest, Begin_LastsForItsTimeOrForGood) {
  Isolation isolation;
  EXPECT_FALSE(isolation.active());
  isolation.Begin(absl::Hours(1));
  EXPECT_TRUE(isolation.active());
  isolation.Begin(absl::Nanoseconds(1));
  while (isolation.active()) std::this_thread::yield();
  isolation.Begin(std::nullopt);
  EXPECT_TRUE(isolation.active());
}

class CutOffTest : public testing::TestWithParam<Kind> {};

// Ranks 0 and 1 are of one node, rank 2 of another. One object stands for both of the first node.
TEST_P(CutOffTest, Ranks_HearOnlyThoseOfTheirNodeUntilItIsOver) {
  Isolation isolation;
  std::atomic<bool> sent = false;
  std::latch cut(3), done(3);
  WorldOptions options;
  options.isolation = &isolation;
  options.elsewhere = {false, false, true};
  RunWorld(
      GetParam(), 3, Everyone(3),
      [&](Member& me) {
        const auto begin = std::chrono::steady_clock::now();
        if (me.rank == 0) isolation.Begin(absl::Milliseconds(100));
        cut.arrive_and_wait();
        int64_t value = 0;
        if (me.rank == 0) {
          EXPECT_TRUE(Send(me.all(), 1, 5).ok());
          EXPECT_TRUE(Send(me.all(), 2, 6).ok());
          sent = true;
          EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(100))
              << "it was cut off until then";
        } else if (me.rank == 1) {
          EXPECT_TRUE(Receive(me.all(), 0, &value).ok());
          EXPECT_EQ(value, 5);
        } else {
          EXPECT_TRUE(Receive(me.all(), 0, &value).ok());
          EXPECT_EQ(value, 6);
        }
        done.arrive_and_wait();
      },
      options);
  EXPECT_TRUE(sent);
}

TEST_P(CutOffTest, Abort_WakesWhoIsCutOff) {
  Isolation isolation;
  std::latch done(2);
  WorldOptions options;
  options.isolation = &isolation;
  options.elsewhere = {false, true};
  RunWorld(
      GetParam(), 2, Everyone(2),
      [&](Member& me) {
        if (me.rank == 0) {
          isolation.Begin(std::nullopt);
          std::thread other([&] { me.all().Abort(absl::CancelledError("epoch 2 begins")); });
          EXPECT_EQ(Send(me.all(), 1, 1).code(), absl::StatusCode::kCancelled);
          other.join();
        }
        done.arrive_and_wait();
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Transports, CutOffTest,
                         testing::Values(Kind::kGlooTcp, Kind::kGlooSharedMemory),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace phalanx::comm
