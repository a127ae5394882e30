#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/posix/activity.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/comm/worlds.h"

namespace phalanx::comm {
namespace {

class MessageTest : public testing::TestWithParam<Kind> {};

Outgoing Out(int32_t peer, const std::vector<int64_t>& data) {
  return {.peer = peer, .data = data.data(), .bytes = static_cast<int64_t>(data.size() * 8)};
}
Incoming In(int32_t peer, std::vector<int64_t>& data) {
  return {.peer = peer, .data = data.data(), .bytes = static_cast<int64_t>(data.size() * 8)};
}

TEST_P(MessageTest, Exchange_OfEveryPairAtOnce_CannotDeadlock) {
  constexpr int32_t kWorld = 4;
  for (const size_t count : {size_t{1}, size_t{100'000}}) {
    RunWorld(GetParam(), kWorld, Everyone(kWorld), [&](Member& me) {
      std::vector<std::vector<int64_t>> sent(kWorld), received(kWorld);
      std::vector<Outgoing> sends;
      std::vector<Incoming> receives;
      for (int32_t peer = 0; peer < kWorld; ++peer) {
        if (peer == me.rank) continue;
        sent[peer].assign(count, me.rank * 10 + peer);
        received[peer].assign(count, -1);
        sends.push_back(Out(peer, sent[peer]));
        receives.push_back(In(peer, received[peer]));
      }
      ASSERT_TRUE(me.all().Exchange(sends, receives).ok());
      ASSERT_TRUE(me.all().Flush().ok());
      for (int32_t peer = 0; peer < kWorld; ++peer) {
        if (peer == me.rank) continue;
        EXPECT_EQ(received[peer], std::vector<int64_t>(count, peer * 10 + me.rank));
      }
    });
  }
}

// Where all ranks show it for long, nobody gets any further.
TEST(MessageWaitTest, WhoWaitsForAPeer_ShowsThatItNeedsIt) {
  for (const Kind kind : {Kind::kGlooTcp, Kind::kGlooSharedMemory}) {
    std::atomic<uint64_t> word = 0;
    RunWorld(kind, 2, Everyone(2), [&](Member& me) {
      std::vector<int64_t> data(1, me.rank);
      if (me.rank == 0) {
        const absl::Time end = absl::Now() + absl::Seconds(30);
        while (!ShowsNeed(word) && absl::Now() < end) std::this_thread::yield();
        EXPECT_TRUE(ShowsNeed(word)) << NameOf(kind);
        ASSERT_TRUE(me.all().Exchange({Out(1, data)}, {}).ok());
        ASSERT_TRUE(me.all().Flush().ok());
        return;
      }
      const ActivityOfThread shown(&word);
      const Working working;
      ASSERT_TRUE(me.all().Exchange({}, {In(0, data)}).ok());
      EXPECT_TRUE(ShowsWork(word)) << NameOf(kind);
      EXPECT_EQ(data[0], 0);
    });
  }
}

TEST_P(MessageTest, SeveralMessagesToOnePeer_ArriveInOrder) {
  RunWorld(GetParam(), 2, Everyone(2), [&](Member& me) {
    constexpr int64_t kCount = 100;
    std::vector<int64_t> values(kCount);
    if (me.rank == 0) {
      std::iota(values.begin(), values.end(), 0);
      for (int64_t& value : values) {
        ASSERT_TRUE(me.all().Exchange({{.peer = 1, .data = &value, .bytes = 8}}, {}).ok());
      }
      ASSERT_TRUE(me.all().Flush().ok());
    } else {
      for (int64_t i = 0; i < kCount; i += 2) {  // two receives a call, of what were two sends
        ASSERT_TRUE(me.all()
                        .Exchange({}, {{.peer = 0, .data = &values[i], .bytes = 8},
                                       {.peer = 0, .data = &values[i + 1], .bytes = 8}})
                        .ok());
      }
      for (int64_t i = 0; i < kCount; ++i) EXPECT_EQ(values[i], i);
    }
  });
}

TEST_P(MessageTest, SendsUnmatchedUntilLater_DoNotHoldUpCollectives) {
  RunWorld(GetParam(), 3, Everyone(3), [&](Member& me) {
    std::vector<int64_t> payload(50'000, me.rank);
    if (me.rank == 0) {
      ASSERT_TRUE(me.all().Exchange({Out(1, payload), Out(2, payload)}, {}).ok());
    }
    for (int round = 0; round < 5; ++round) {
      std::vector<int64_t> sum(10'000, 1);
      ASSERT_TRUE(me.all().AllReduceSum(sum.data(), 10'000, DType::kInt64).ok());
      ASSERT_EQ(sum, std::vector<int64_t>(10'000, 3));
    }
    if (me.rank != 0) {
      ASSERT_TRUE(me.all().Exchange({}, {In(0, payload)}).ok());
      EXPECT_EQ(payload, std::vector<int64_t>(50'000, 0));
    }
    ASSERT_TRUE(me.all().Flush().ok());
  });
}

// Both have read all of it before they answer, so nothing waits here.
TEST_P(MessageTest, WhatASendKeeps_IsLetGoAtTheExchangeAfterItWasTaken) {
  RunWorld(GetParam(), 2, Everyone(2), [&](Member& me) {
    const int32_t peer = 1 - me.rank;
    std::vector<std::weak_ptr<const void>> kept;
    std::vector<int64_t> received(100'000), word(1);
    for (int round = 0; round < 4; ++round) {
      auto sent = std::make_shared<const std::vector<int64_t>>(received.size(), me.rank);
      kept.push_back(sent);
      Outgoing out = Out(peer, *sent);
      out.keep = std::move(sent);
      ASSERT_TRUE(me.all().Exchange({std::move(out)}, {In(peer, received)}).ok());
      ASSERT_EQ(received, std::vector<int64_t>(received.size(), peer));
      ASSERT_TRUE(me.all().AllReduceSum(word.data(), 1, DType::kInt64).ok());
      for (int before = 0; before < round; ++before)
        EXPECT_TRUE(kept[static_cast<size_t>(before)].expired()) << before << " of " << round;
    }
    ASSERT_TRUE(me.all().Flush().ok());
    EXPECT_TRUE(kept.back().expired());
  });
}

TEST_P(MessageTest, MessagesOfNoBytes_AreSkippedOnBothEnds) {
  RunWorld(GetParam(), 2, Everyone(2), [&](Member& me) {
    int64_t value = me.rank + 1, other = 0;
    const int32_t peer = 1 - me.rank;
    ASSERT_TRUE(
        me.all()
            .Exchange({{.peer = peer}, {.peer = peer, .data = &value, .bytes = 8}, {.peer = peer}},
                      {{.peer = peer, .data = &other, .bytes = 8}, {.peer = peer}})
            .ok());
    EXPECT_EQ(other, peer + 1);
    ASSERT_TRUE(me.all().Flush().ok());
  });
}

TEST_P(MessageTest, APeerOutsideTheGroup_IsRefused) {
  RunWorld(GetParam(), 2, Everyone(2), [&](Member& me) {
    int64_t value = 0;
    for (const int32_t peer : {-1, 2, me.rank}) {
      EXPECT_EQ(me.all().Exchange({{.peer = peer, .data = &value, .bytes = 8}}, {}).code(),
                absl::StatusCode::kInvalidArgument);
    }
  });
}

TEST_P(MessageTest, ManyCommunicatorsAtOnce_KeepTheirMessagesApart) {
  // Groups in an order of their own: communicator rank is the position, not the world rank.
  std::vector<plan::CommunicatorSpec> specs = {Group("all", {0, 1, 2, 3}), Group("pair", {3, 1}),
                                               Group("reversed", {3, 2, 1, 0})};
  for (int i = 0; i < 20; ++i) specs.push_back(Group("extra", {0, 2, 3}));
  RunWorld(GetParam(), 4, specs, [&](Member& me) {
    ASSERT_EQ(me.communicators.size(), specs.size());
    EXPECT_EQ(me.communicators[1] == nullptr, me.rank == 0 || me.rank == 2);
    EXPECT_EQ(me.communicators[2]->rank(), 3 - me.rank);
    // Sends on every communicator before any receive, received in the opposite order.
    std::vector<int64_t> sent(specs.size()), received(specs.size(), -1);
    for (size_t i = 0; i < specs.size(); ++i) {
      Communicator* group = me.communicators[i].get();
      if (group == nullptr) continue;
      sent[i] = static_cast<int64_t>(i) * 100 + group->rank();
      const int32_t next = (group->rank() + 1) % group->size();
      ASSERT_TRUE(group->Exchange({{.peer = next, .data = &sent[i], .bytes = 8}}, {}).ok());
    }
    for (size_t i = specs.size(); i-- > 0;) {
      Communicator* group = me.communicators[i].get();
      if (group == nullptr) continue;
      const int32_t previous = (group->rank() + group->size() - 1) % group->size();
      ASSERT_TRUE(group->Exchange({}, {{.peer = previous, .data = &received[i], .bytes = 8}}).ok());
      EXPECT_EQ(received[i], static_cast<int64_t>(i) * 100 + previous);
    }
    for (const auto& group : me.communicators) {
      if (group == nullptr) continue;
      ASSERT_TRUE(group->Flush().ok());
    }
  });
}

TEST_P(MessageTest, TwoThreadsOnTwoCommunicators_ProceedSideBySide) {
  RunWorld(GetParam(), 2, {Group("a", {0, 1}), Group("b", {0, 1})}, [&](Member& me) {
    const auto work = [&](size_t index) {
      for (int64_t i = 0; i < 50; ++i) {
        int64_t value = i;
        ASSERT_TRUE(me.communicators[index]->AllReduceSum(&value, 1, DType::kInt64).ok());
        ASSERT_EQ(value, 2 * i);
      }
    };
    std::thread other([&] { work(1); });
    work(0);
    other.join();
  });
}

TEST_P(MessageTest, SendsThatAreNeverFlushed_AreBoundedAndComplete) {
  RunWorld(GetParam(), 2, Everyone(2), [&](Member& me) {
    constexpr int64_t kCalls = 12, kBatch = 500;  // together beyond what is kept between flushes
    const int32_t peer = 1 - me.rank;
    std::vector<int64_t> sent(kCalls * kBatch), received(kBatch);
    std::iota(sent.begin(), sent.end(), 0);
    for (int64_t call = 0; call < kCalls; ++call) {
      std::vector<Outgoing> sends;
      std::vector<Incoming> receives;
      for (int64_t i = 0; i < kBatch; ++i) {
        sends.push_back({.peer = peer, .data = &sent[call * kBatch + i], .bytes = 8});
        receives.push_back({.peer = peer, .data = &received[i], .bytes = 8});
      }
      ASSERT_TRUE(me.all().Exchange(sends, receives).ok());
      ASSERT_TRUE(std::equal(received.begin(), received.end(), sent.begin() + call * kBatch));
    }
    ASSERT_TRUE(me.all().Flush().ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, MessageTest,
                         testing::Values(Kind::kInProcess, Kind::kGlooTcp, Kind::kGlooSharedMemory),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace phalanx::comm
