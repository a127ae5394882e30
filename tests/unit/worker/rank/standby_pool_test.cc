// Communicators that two ranks make for a loss, each in a pool of its own; the test is daemon and
// coordinator of both.
#include "worker/rank/standby_pool.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/job/failure.h"
#include "core/plan/plan.h"
#include "core/wire/job_yaml.h"
#include "core/wire/layout_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_text.h"

namespace phalanx::rank {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kNumber = 7;
constexpr int64_t kPlenty = int64_t{1} << 40;

// A rank's pool, and what it says.
class PoolOfRank {
 public:
  explicit PoolOfRank(StandbyPool::Options options = {}) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    rank_end_ = std::make_unique<channel::FrameSocket>(ends[0]);
    daemon_end_ = std::make_unique<channel::FrameSocket>(ends[1]);
    pool_ = std::make_unique<StandbyPool>(*rank_end_, faults_, std::move(options));
    reader_ = std::thread([this] { Read(); });
  }
  ~PoolOfRank() {
    pool_ = nullptr;
    rank_end_->Shutdown();
    reader_.join();
  }

  StandbyPool& pool() { return *pool_; }

  // Waits until something more has come than the first `count` messages; all that have come.
  std::vector<v1::RankReport> SaidMoreThan(size_t count) {
    const comm::Deadline deadline = comm::DeadlineIn(absl::Seconds(20));
    const MutexLock lock(&mu_);
    while (said_.size() <= count && !changed_.WaitUntil(&mu_, deadline)) {
    }
    return said_;
  }
  // What it says of a set, after the first `count` of such answers; nullopt: nothing in time.
  std::optional<v1::RankStandby> Answer(size_t count = 0) {
    const comm::Deadline deadline = comm::DeadlineIn(absl::Seconds(20));
    const MutexLock lock(&mu_);
    while (true) {
      size_t answers = 0;
      for (const v1::RankReport& report : said_) {
        if (report.has_standby() && answers++ == count) return report.standby();
      }
      if (changed_.WaitUntil(&mu_, deadline)) return std::nullopt;
    }
  }
  // All entries that it says, from the first one on, come to the other pool, too.
  void TellTo(StandbyPool* other) {
    const MutexLock lock(&mu_);
    listener_ = other;
    for (const v1::RankReport& report : said_) Pass(report);
  }

 private:
  void Read() {
    v1::ToDaemon message;
    while (daemon_end_->Receive(&message, absl::InfiniteDuration()).ok()) {
      if (!message.has_report()) continue;
      {
        const MutexLock lock(&mu_);
        said_.push_back(message.report());
        Pass(said_.back());
      }
      changed_.SignalAll();
    }
  }
  void Pass(const v1::RankReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (listener_ == nullptr || !report.has_rendezvous()) return;
    v1::Rendezvous entries;
    entries.set_job(report.job());
    entries.set_epoch(report.epoch());
    (*entries.mutable_entries())[report.rendezvous().key()] = report.rendezvous().value();
    listener_->Deliver(entries);
  }

  Faults faults_{nullptr};
  std::unique_ptr<channel::FrameSocket> rank_end_, daemon_end_;
  std::unique_ptr<StandbyPool> pool_;
  Mutex mu_;
  CondVar changed_;
  std::vector<v1::RankReport> said_ ABSL_GUARDED_BY(mu_);
  StandbyPool* listener_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::thread reader_;
};

class StandbyPoolTest : public testing::Test {
 protected:
  StandbyPoolTest() {
    const auto read = wire::ReadJobFile(job_, job::Purpose::kSubmit);
    EXPECT_TRUE(read.ok()) << read.status();
    plan_ = *plan::MakePlan(read->spec, plan::MakeCluster(1, 2), Epoch{1});
  }

  v1::RunEpoch Of(int32_t rank) const {
    v1::RunEpoch of;
    v1::Assign& assign = *of.mutable_assign();
    assign.set_job(kNumber);
    assign.set_epoch(1);
    assign.mutable_document()->set_text(job_);
    wire::ToProto(plan_.layout, assign.mutable_layout());
    assign.set_plan_digest(plan_.digest);
    of.set_rank(rank);
    of.set_device_kind("cpu");
    of.set_address("127.0.0.1");
    return of;
  }
  // Communicators of both ranks, as if a third one were lost.
  v1::PrepareStandby Order(const std::string& set, int64_t attempt = 1) const {
    v1::PrepareStandby order;
    order.set_job(kNumber);
    order.set_epoch(1);
    order.set_set(set);
    wire::ToProto(plan_.layout, order.mutable_layout());
    order.set_plan_digest(plan_.digest);
    order.set_attempt(attempt);
    return order;
  }
  // The assignment of the next epoch with a set.
  v1::Assign With(const std::string& set) const {
    v1::Assign assign = Of(0).assign();
    assign.set_epoch(2);
    assign.set_standby(set);
    return assign;
  }
  static void Introduce(PoolOfRank& a, PoolOfRank& b) {
    a.TellTo(&b.pool());
    b.TellTo(&a.pool());
  }
  static void Part(PoolOfRank& a, PoolOfRank& b) {
    a.TellTo(nullptr);
    b.TellTo(nullptr);
  }
  static void ExpectMade(PoolOfRank& rank, const std::string& set, size_t answers = 0) {
    const std::optional<v1::RankStandby> answer = rank.Answer(answers);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->set(), set);
    EXPECT_THAT(answer->error(), IsEmpty());
  }

  const std::string job_ = support::JobText({.ranks = 2});
  plan::Plan plan_;
};

TEST_F(StandbyPoolTest, SetThatIsUnderWay_GoesOnWhenItIsAskedForAgain) {
  PoolOfRank a, b;
  a.pool().Make(Of(0), Order("standby/1/x", 1));
  a.SaidMoreThan(0);  // it waits for the other one
  a.pool().Make(Of(0), Order("standby/1/x", 2));
  b.pool().Make(Of(1), Order("standby/1/x", 1));
  Introduce(a, b);
  ExpectMade(a, "standby/1/x");
  ExpectMade(b, "standby/1/x");
  auto taken = a.pool().Take(With("standby/1/x"));
  EXPECT_TRUE(taken.ok()) << taken.status();
  Part(a, b);
}

TEST_F(StandbyPoolTest, AnotherSet_TakesThePlaceOfTheOneThatIsMade) {
  PoolOfRank a;
  a.pool().Make(Of(0), Order("standby/1/x"));
  a.SaidMoreThan(0);
  a.pool().Make(Of(0), Order("standby/1/y"));
  const std::optional<v1::RankStandby> answer = a.Answer();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->set(), "standby/1/x");
  EXPECT_THAT(answer->error(), HasSubstr("another set is wanted"));
}

TEST_F(StandbyPoolTest, SecondTry_DoesNotMeetTheFirst) {
  PoolOfRank a, b;
  a.pool().Make(Of(0), Order("standby/1/x", 1));
  a.SaidMoreThan(0);
  v1::Rendezvous failed;
  failed.set_job(kNumber);
  failed.set_epoch(1);
  (*failed.mutable_entries())["standby/1/x/1/failed"] = "rank 1: no memory";
  a.pool().Deliver(failed);
  const std::optional<v1::RankStandby> first = a.Answer();
  ASSERT_TRUE(first.has_value());
  EXPECT_THAT(first->error(), HasSubstr("no memory"));
  // All that was said before is said again.
  b.pool().Make(Of(1), Order("standby/1/x", 2));
  b.pool().Deliver(failed);
  a.pool().Make(Of(0), Order("standby/1/x", 2));
  a.pool().Deliver(failed);
  Introduce(a, b);
  ExpectMade(a, "standby/1/x", 1);
  ExpectMade(b, "standby/1/x");
  Part(a, b);
}

TEST_F(StandbyPoolTest, CommunicatorsThatDoNotEnd_AreOfPeersThatAreLost) {
  PoolOfRank a({.idle_timeout = absl::Milliseconds(1)});
  a.pool().Make(Of(0), Order("standby/1/x"));
  a.SaidMoreThan(0);
  const absl::Status status = a.pool().AwaitIdle(std::stop_token());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(job::KindOf(status), job::FailureKind::kPeerLost);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(absl::IsCancelled(a.pool().AwaitIdle(stop.get_token())));
}

// Two sets, of which one is taken: whether the other one is still there then.
class StandbyPoolMemoryTest : public StandbyPoolTest {
 protected:
  // Each time that a rank looks there are so many bytes left; in the end for ever.
  void TakeOneOfTwo(std::vector<int64_t> left) {
    auto next = std::make_shared<size_t>(0);
    PoolOfRank a({.memory_left = [left, next] {
      const size_t now = std::min((*next)++, left.size() - 1);
      return left[now];
    }});
    PoolOfRank b;
    size_t answers = 0;
    for (const std::string set : {"standby/1/x", "standby/1/y"}) {
      a.pool().Make(Of(0), Order(set));
      b.pool().Make(Of(1), Order(set));
      Introduce(a, b);  // what one said before the other knew of the set is said again
      ExpectMade(a, set, answers);
      ExpectMade(b, set, answers++);
      Part(a, b);
    }
    a.pool().KeepOnly("standby/1/x");
    ASSERT_TRUE(a.pool().AwaitIdle(std::stop_token()).ok());
    EXPECT_TRUE(a.pool().Take(With("standby/1/x")).ok());
    stays_ = a.pool().Take(With("standby/1/y")).ok();
  }
  bool stays_ = false;
};

TEST_F(StandbyPoolMemoryTest, WithEnoughOfIt_OthersStayBesideTheFirstSteps) {
  TakeOneOfTwo({kPlenty});
  EXPECT_TRUE(stays_);
}

TEST_F(StandbyPoolMemoryTest, WithoutEnough_OthersGo) {
  TakeOneOfTwo({kPlenty, kPlenty, kPlenty, 1});  // before and behind each set
  EXPECT_FALSE(stays_);
}

TEST_F(StandbyPoolTest, WhereMemoryIsNotCounted_OthersGo) {
  PoolOfRank a, b;
  Introduce(a, b);
  a.pool().Make(Of(0), Order("standby/1/x"));
  b.pool().Make(Of(1), Order("standby/1/x"));
  ExpectMade(a, "standby/1/x");
  a.pool().KeepOnly("standby/1/y");
  ASSERT_TRUE(a.pool().AwaitIdle(std::stop_token()).ok());
  EXPECT_FALSE(a.pool().Take(With("standby/1/x")).ok());
  Part(a, b);
}

}  // namespace
}  // namespace phalanx::rank
