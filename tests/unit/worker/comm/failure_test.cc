#include "core/job/failure.h"

#include <chrono>
#include <latch>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/accused.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/comm/worlds.h"

namespace phalanx::comm {
namespace {

using testing::HasSubstr;

// Waking takes well under a millisecond, and two seconds where a peer that never came is told why;
// the bound leaves room for a machine that is busy.
constexpr absl::Duration kAtOnce = absl::Seconds(5);

class FailureTest : public testing::TestWithParam<Kind> {};

absl::Status ReceiveOne(Communicator& group, int32_t peer) {
  int64_t value = 0;
  return group.Exchange({}, {{.peer = peer, .data = &value, .bytes = 8}});
}

TEST_P(FailureTest, Abort_FromAnotherThread_WakesAReceive) {
  for (int round = 0; round < 8; ++round) {
    std::latch done(2);
    RunWorld(GetParam(), 2, Everyone(2), [&](Member& me) {
      if (me.rank == 0) {
        absl::Time aborted;
        std::latch started(1);
        std::thread other([&] {
          started.wait();
          aborted = absl::Now();
          me.all().Abort(absl::AbortedError("epoch 2 begins"));
        });
        started.count_down();
        const absl::Status status = ReceiveOne(me.all(), 1);
        other.join();
        EXPECT_LT(absl::Now() - aborted, kAtOnce);
        EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
        EXPECT_THAT(std::string(status.message()), HasSubstr("epoch 2 begins"));
      }
      done.arrive_and_wait();  // the peer is alive throughout
    });
  }
}

TEST_P(FailureTest, Abort_WakesEveryCommunicatorsWait) {
  std::latch done(2);
  RunWorld(GetParam(), 2, {Group("a", {0, 1}), Group("b", {0, 1}), Group("c", {0, 1})},
           [&](Member& me) {
             if (me.rank == 0) {
               std::vector<absl::Status> statuses(3);
               std::vector<std::thread> threads;
               std::latch started(3);
               for (size_t i = 0; i < 3; ++i) {
                 threads.emplace_back([&, i] {
                   started.count_down();
                   statuses[i] = ReceiveOne(*me.communicators[i], 1);
                 });
               }
               started.wait();
               me.communicators[1]->Abort(absl::AbortedError("stop"));
               for (std::thread& thread : threads) thread.join();
               for (const absl::Status& status : statuses)
                 EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
             }
             done.arrive_and_wait();
           });
}

TEST_P(FailureTest, AfterAbort_EveryCallFailsWithTheFirstReason) {
  std::latch done(2);
  RunWorld(GetParam(), 2, Everyone(2), [&](Member& me) {
    if (me.rank == 0) {
      me.all().Abort(absl::CancelledError("first"));
      me.all().Abort(absl::InternalError("second"));
      float value = 1;
      for (const absl::Status& status :
           {me.all().AllReduceSum(&value, 1, DType::kFp32), ReceiveOne(me.all(), 1),
            me.all().Flush(), me.all().Exchange({{.peer = 1, .data = &value, .bytes = 4}}, {})}) {
        EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
        EXPECT_THAT(std::string(status.message()), HasSubstr("first"));
      }
    }
    done.arrive_and_wait();
  });
}

TEST_P(FailureTest, AnAbortedRankThatLeaves_FailsEverybody_ByItsWorldRank) {
  RunWorld(GetParam(), 3, {Group("all", {2, 1, 0})}, [&](Member& me) {
    if (me.rank == 2) {
      me.all().Abort(absl::AbortedError("device lost"));
      me.communicators.clear();
    } else {
      // Rank 0 waits for rank 1, which waits for the one that left: both learn who it was.
      const absl::Status status = ReceiveOne(me.all(), me.rank == 0 ? 1 : 0);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 is gone"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("device lost"));
    }
  });
}

TEST_P(FailureTest, AHealthyRankThatLeaves_FailsOnlyThoseWhoStillNeedIt) {
  std::latch left(1), served(2);
  RunWorld(GetParam(), 3, Everyone(3), [&](Member& me) {
    int64_t value = 1;
    ASSERT_TRUE(me.all().AllReduceSum(&value, 1, DType::kInt64).ok());
    ASSERT_TRUE(me.all().Flush().ok());
    if (me.rank == 2) {
      me.communicators.clear();
      left.count_down();
      return;
    }
    left.wait();
    const int32_t peer = 1 - me.rank;
    for (int64_t i = 0; i < 20; ++i) {
      int64_t mine = me.rank + i, other = -1;
      ASSERT_TRUE(me.all()
                      .Exchange({{.peer = peer, .data = &mine, .bytes = 8}},
                                {{.peer = peer, .data = &other, .bytes = 8}})
                      .ok());
      ASSERT_EQ(other, peer + i);
      ASSERT_TRUE(me.all().Flush().ok());
    }
    served.arrive_and_wait();
    if (me.rank == 1) return;
    const absl::Status status = ReceiveOne(me.all(), 2);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2"));
  });
}

TEST_P(FailureTest, MemoryOfAFailedReceive_IsNotWrittenLater) {
  std::latch failed(1), sent(1);
  RunWorld(GetParam(), 2, Everyone(2), [&](Member& me) {
    std::vector<int64_t> buffer(100'000, me.rank);
    const int64_t bytes = static_cast<int64_t>(buffer.size() * 8);
    if (me.rank == 0) {
      std::thread other([&] { me.all().Abort(absl::AbortedError("stop")); });
      EXPECT_FALSE(
          me.all().Exchange({}, {{.peer = 1, .data = buffer.data(), .bytes = bytes}}).ok());
      other.join();
      failed.count_down();
      sent.wait();
      me.communicators.clear();
      EXPECT_EQ(buffer, std::vector<int64_t>(100'000, 0));
    } else {
      failed.wait();
      me.all().Exchange({{.peer = 0, .data = buffer.data(), .bytes = bytes}}, {}).IgnoreError();
      sent.count_down();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, FailureTest,
                         testing::Values(Kind::kInProcess, Kind::kGlooTcp, Kind::kGlooSharedMemory),
                         [](const auto& info) { return NameOf(info.param); });

class GlooFailureTest : public testing::TestWithParam<Kind> {};

TEST_P(GlooFailureTest, APeerThatStaysSilent_IsDeadlineExceeded) {
  std::latch done(2);
  RunWorld(GetParam(), 2, Everyone(2),
           [&](Member& me) {
             if (me.rank == 0) {
               const absl::Status status = ReceiveOne(me.all(), 1);
               EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
               EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
             }
             done.arrive_and_wait();
           },
           {.operation_timeout = absl::Milliseconds(20)});
}

// Over TCP alone there is no farewell: a wait that runs out of time breaks Gloo's connections.
TEST(GlooSharedMemoryFailureTest, SilenceOfAPeer_IsPassedOnAsItIs) {
  std::latch left(1), done(2);
  RunWorld(Kind::kGlooSharedMemory, 3, Everyone(3),
           [&](Member& me) {
             if (me.rank == 0) {
               EXPECT_EQ(AccusedIn(ReceiveOne(me.all(), 2)), Rank{2});
               me.communicators.clear();
               left.count_down();
               return;
             }
             if (me.rank == 1) {
               left.wait();
               const absl::Status status = ReceiveOne(me.all(), 0);
               EXPECT_EQ(AccusedIn(status), Rank{2}) << status;
               EXPECT_THAT(std::string(status.message()), HasSubstr("receive from rank 2"));
             }
             done.arrive_and_wait();  // rank 2 is there throughout and says nothing
           },
           {.operation_timeout = absl::Seconds(2)});
}

// It was told to stop, by its daemon at the first evidence or with all the others: whoever hears of
// it first must not accuse it, nor be accused by those who hear of it from him.
TEST_P(GlooFailureTest, ARankThatWasToldToStop_IsAccusedByNobody) {
  std::latch left(1);
  RunWorld(GetParam(), 3, Everyone(3), [&](Member& me) {
    if (me.rank == 2) {
      me.all().Abort(absl::CancelledError("the epoch is stopped"));
      me.communicators.clear();
      return;
    }
    if (me.rank == 1) left.wait();
    const absl::Status status = ReceiveOne(me.all(), me.rank == 0 ? 2 : 0);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(AccusedIn(status), std::nullopt) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 was told to stop"));
    me.communicators.clear();
    if (me.rank == 0) left.count_down();
  });
}

// For as long a rank that leaves waits for receipts.
constexpr absl::Duration kReceiptTimeout = absl::Seconds(2);

TEST_P(GlooFailureTest, AMessageToAReceiveThatWasWoken_KeepsNobodyFromLeaving) {
  std::latch posted(1), woken(1), sent(2);
  RunWorld(GetParam(), 2, Everyone(2), [&](Member& me) {
    const absl::Status stopped = absl::CancelledError("epoch 2 begins");
    const int64_t mine = me.rank;
    int64_t value = 0;
    if (me.rank == 0) {
      std::thread other([&] {
        posted.wait();
        me.all().Abort(stopped);
      });
      // Receives are posted before anything is sent.
      EXPECT_FALSE(me.all()
                       .Exchange({{.peer = 1, .data = &mine, .bytes = 8}},
                                 {{.peer = 1, .data = &value, .bytes = 8}})
                       .ok());
      other.join();
      woken.count_down();
    } else {
      EXPECT_TRUE(ReceiveOne(me.all(), 0).ok());
      posted.count_down();
      woken.wait();
      EXPECT_TRUE(me.all().Exchange({{.peer = 0, .data = &mine, .bytes = 8}}, {}).ok());
      me.all().Abort(stopped);
    }
    sent.arrive_and_wait();
    const absl::Time begin = absl::Now();
    me.communicators.clear();
    EXPECT_LT(absl::Now() - begin, kReceiptTimeout) << "rank " << me.rank;
  });
}

TEST_P(GlooFailureTest, AReceiveOfWhatItsSenderGaveUp_KeepsNobodyFromLeaving) {
  std::latch given_up(1), posted(1), done(2);
  RunWorld(GetParam(), 3, Everyone(3), [&](Member& me) {
    const int64_t mine = me.rank;
    int64_t value = 0;
    if (me.rank == 0) {
      EXPECT_TRUE(me.all().Exchange({{.peer = 1, .data = &mine, .bytes = 8}}, {}).ok());
      me.all().Abort(absl::CancelledError("epoch 2 begins"));
      EXPECT_FALSE(me.all().Flush().ok()) << "lets go of what nobody has asked for";
      given_up.count_down();
      posted.wait();
      const absl::Time begin = absl::Now();
      me.communicators.clear();
      EXPECT_LT(absl::Now() - begin, kReceiptTimeout);
    } else if (me.rank == 1) {
      given_up.wait();
      const absl::Status status = me.all().Exchange({{.peer = 2, .data = &mine, .bytes = 8}},
                                                    {{.peer = 0, .data = &value, .bytes = 8}});
      EXPECT_EQ(AccusedIn(status), std::nullopt) << status;
      done.arrive_and_wait();
    } else {
      EXPECT_TRUE(ReceiveOne(me.all(), 1).ok());  // so rank 1 has asked rank 0
      posted.count_down();
      done.arrive_and_wait();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, GlooFailureTest,
                         testing::Values(Kind::kGlooTcp, Kind::kGlooSharedMemory),
                         [](const auto& info) { return NameOf(info.param); });

TEST(RendezvousTest, EntryThatARankDoesNotPut_IsThatPeerLost) {
  MemoryRendezvous rendezvous;
  const absl::Status status =
      rendezvous.GetFrom(Rank{3}, "key", DeadlineIn(absl::Milliseconds(1))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(AccusedIn(status), Rank{3});
  EXPECT_EQ(job::KindOf(status), job::FailureKind::kPeerLost);
  ASSERT_TRUE(rendezvous.Put("key", "value").ok());
  EXPECT_EQ(*rendezvous.GetFrom(Rank{3}, "key", DeadlineIn(absl::Milliseconds(1))), "value");
}

TEST(GlooSetupTest, ARankThatNeverComes_IsDeadlineExceeded) {
  MemoryRendezvous rendezvous;
  const auto connected =
      ConnectGloo(Everyone(2), Rank{0}, 2, rendezvous, {.setup_timeout = absl::Milliseconds(50)});
  EXPECT_EQ(connected.status().code(), absl::StatusCode::kDeadlineExceeded) << connected.status();
  EXPECT_EQ(AccusedIn(connected.status()), Rank{1}) << "not the one who waited";
}

// Ranks 1 and 3 of five have no process.
TEST(GlooSetupTest, RanksInNoCommunicator_AreNotWaitedFor) {
  for (const bool shared_memory : {false, true}) {
    MemoryRendezvous table;
    const std::vector<plan::CommunicatorSpec> specs = {Group("some", {0, 2, 4})};
    std::latch connected_all(3);
    const auto run = [&](int32_t rank) {
      const auto connected =
          ConnectGloo(specs, Rank{rank}, 5, table, {.shared_memory = shared_memory});
      connected_all.arrive_and_wait();
      ASSERT_TRUE(connected.ok()) << connected.status();
      int64_t sum = rank;
      const absl::Status summed = connected->front()->AllReduceSum(&sum, 1, DType::kInt64);
      EXPECT_TRUE(summed.ok()) << summed;
      EXPECT_EQ(sum, 6);
    };
    std::vector<std::jthread> threads;
    for (const int32_t rank : {0, 2, 4}) threads.emplace_back(run, rank);
  }
  MemoryRendezvous nobody;
  const auto alone = ConnectGloo({Group("some", {0, 2})}, Rank{1}, 3, nobody, {});
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->front(), nullptr);
}

// A table that one rank never gets an answer from, so that it announces itself and comes no
// further.
class OneSidedRendezvous final : public Rendezvous {
 public:
  explicit OneSidedRendezvous(Rendezvous& table) : table_(table) {}
  absl::Status Put(const std::string& key, const std::string& value) override {
    const absl::Status put = table_.Put(key, value);
    announced.count_down();
    return put;
  }
  absl::StatusOr<std::string> Get(const std::string&, Deadline) override {
    ended.wait();
    return absl::AbortedError("the test is over");
  }
  std::latch announced{1}, ended{1};

 private:
  Rendezvous& table_;
};

// The table, and a word when the last answer that a rank needs has been given.
class ReportingRendezvous final : public Rendezvous {
 public:
  explicit ReportingRendezvous(Rendezvous& table) : table_(table) {}
  absl::Status Put(const std::string& key, const std::string& value) override {
    return table_.Put(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, Deadline deadline) override {
    auto value = table_.Get(key, deadline);
    answered.count_down();
    return value;
  }
  std::latch answered{1};

 private:
  Rendezvous& table_;
};

// Whichever of the two has the lower port waits for the other to connect; the higher one is
// connected by the kernel and waits for the first message. Rounds, to see both.
TEST(GlooSetupTest, AStopWhileAPeerDoesNotConnect_EndsTheWaitAtOnce) {
  for (int round = 0; round < 10; ++round) {
    MemoryRendezvous table;
    OneSidedRendezvous stuck(table);
    ReportingRendezvous reporting(table);
    std::stop_source stop;
    std::thread peer([&] { EXPECT_FALSE(ConnectGloo(Everyone(2), Rank{1}, 2, stuck, {}).ok()); });
    stuck.announced.wait();
    absl::Time stopped;
    std::thread other([&] {
      reporting.answered.wait();
      stopped = absl::Now();
      stop.request_stop();
    });
    const auto connected = ConnectGloo(Everyone(2), Rank{0}, 2, reporting,
                                       {.stop = stop.get_token(), .shared_memory = round % 2 == 0});
    const absl::Time ended = absl::Now();
    other.join();
    stuck.ended.count_down();
    peer.join();
    EXPECT_EQ(connected.status().code(), absl::StatusCode::kCancelled) << connected.status();
    EXPECT_LT(ended - stopped, kAtOnce);
  }
}

TEST(GlooSetupTest, AStopBeforehand_IsCancelled) {
  MemoryRendezvous table;
  std::stop_source stop;
  stop.request_stop();
  ASSERT_TRUE(table.Put("links/1", "").ok());
  const auto connected = ConnectGloo(Everyone(2), Rank{0}, 2, table, {.stop = stop.get_token()});
  EXPECT_EQ(connected.status().code(), absl::StatusCode::kCancelled) << connected.status();
}

TEST(GlooSetupTest, AnAddressThatIsNotOurs_IsUnavailable) {
  MemoryRendezvous rendezvous;
  const auto connected =
      ConnectGloo(Everyone(2), Rank{0}, 2, rendezvous, {.interface_address = "no such host"});
  EXPECT_EQ(connected.status().code(), absl::StatusCode::kUnavailable) << connected.status();
}

}  // namespace
}  // namespace phalanx::comm
