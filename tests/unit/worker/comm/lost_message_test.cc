// A message that is lost on its way out: its receiver waits, and nobody else sees anything.
#include "worker/comm/lost_message.h"

#include <latch>
#include <thread>

#include "gtest/gtest.h"
#include "tests/unit/worker/comm/worlds.h"

namespace phalanx::comm {
namespace {

TEST(LostMessageTest, LoseNext_TakesOne) {
  LostMessage lost;
  EXPECT_FALSE(lost.Take());
  lost.LoseNext();
  EXPECT_TRUE(lost.Take());
  EXPECT_FALSE(lost.Take());
  lost.LoseNext();
  lost.Forget();
  EXPECT_FALSE(lost.Take());
}

class MuteTest : public testing::TestWithParam<Kind> {};

// One object stands for both ranks: rank 0 is the one that sends.
TEST_P(MuteTest, Message_IsNeverThereAndItsSenderGoesOn) {
  LostMessage lost;
  std::latch sent(2), done(2);
  WorldOptions options;
  options.lost = &lost;
  RunWorld(
      GetParam(), 2, Everyone(2),
      [&](Member& me) {
        if (me.rank == 0) {
          const int64_t value = 7;
          lost.LoseNext();
          EXPECT_TRUE(me.all().Exchange({{.peer = 1, .data = &value, .bytes = 8}}, {}).ok());
          EXPECT_TRUE(me.all().Flush().ok()) << "it takes the message to be complete";
          EXPECT_FALSE(lost.Take()) << "one is lost";
          EXPECT_TRUE(me.all().Exchange({{.peer = 1, .data = &value, .bytes = 8}}, {}).ok());
          EXPECT_TRUE(me.all().Check().ok());
          sent.arrive_and_wait();
        } else {
          sent.arrive_and_wait();
          int64_t value = 0;
          std::thread waits([&] {
            EXPECT_EQ(me.all().Exchange({}, {{.peer = 0, .data = &value, .bytes = 8}}).code(),
                      absl::StatusCode::kCancelled)
                << "the message behind it does not take its place";
          });
          me.all().Abort(absl::CancelledError("epoch 2 begins"));
          waits.join();
          EXPECT_EQ(value, 0);
        }
        done.arrive_and_wait();
      },
      options);
}

TEST_P(MuteTest, Collective_WaitsForWhoWasNotGivenIt) {
  LostMessage lost;
  std::latch summed(2), done(2);
  WorldOptions options;
  options.lost = &lost;
  RunWorld(
      GetParam(), 2, Everyone(2),
      [&](Member& me) {
        double value = me.rank + 1;
        if (me.rank == 0) {
          lost.LoseNext();
          // The other rank comes in below, so its summand is there.
          EXPECT_TRUE(me.all().AllReduceSum(&value, 1, DType::kFp64).ok());
          EXPECT_EQ(value, 3);
          summed.arrive_and_wait();
        } else {
          std::thread waits([&] {
            EXPECT_EQ(me.all().AllReduceSum(&value, 1, DType::kFp64).code(),
                      absl::StatusCode::kCancelled);
          });
          summed.arrive_and_wait();
          me.all().Abort(absl::CancelledError("epoch 2 begins"));
          waits.join();
        }
        done.arrive_and_wait();
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Transports, MuteTest,
                         testing::Values(Kind::kGlooTcp, Kind::kGlooSharedMemory),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace phalanx::comm
