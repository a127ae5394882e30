#include "coordinator/runtime/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/runtime/system_clock.h"
#include "coordinator/store/memory_backend.h"

namespace phalanx::coordinator {
namespace {

// The system's clock, which a test sets forward as if the process had been stopped for so long.
class StoppableClock final : public Clock {
 public:
  Instant Now() const override { return system_.Now() + absl::Nanoseconds(stopped_.load()); }
  void StopFor(absl::Duration duration) { stopped_ += absl::ToInt64Nanoseconds(duration); }

 private:
  const SystemClock system_;
  std::atomic<int64_t> stopped_{0};
};

// Waits for one value from another thread.
template <typename T>
class Promise {
 public:
  void Set(T value) {
    MutexLock lock(&mu_);
    value_ = std::move(value);
    changed_.SignalAll();
  }
  bool IsSet() {
    MutexLock lock(&mu_);
    return value_.has_value();
  }
  T Get() {
    MutexLock lock(&mu_);
    while (!value_.has_value()) changed_.Wait(&mu_);
    return *value_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::optional<T> value_;
};

class FakeSink final : public SessionSink {
 public:
  void Welcome(SessionId session) override { welcomed.Set(session); }
  void Send(SessionId, uint64_t, const Command&) override {}
  void Close(SessionId, const absl::Status& status) override { closed.Set(status); }
  void EndLogs(const std::string&, const std::string&) override {}
  Promise<SessionId> welcomed;
  Promise<absl::Status> closed;
};

JobRequestPtr AJob(const std::string& name) {
  return std::make_shared<const JobRequest>(
      JobRequest{.name = name, .steps = 1, .world = 1, .devices = 1});
}

class DriverTest : public ::testing::Test {
 protected:
  void Start(DriverOptions options = {}) {
    options.machine.plan = [](const Document&, const Placement&, absl::Span<const int64_t>, Epoch) {
      return absl::StatusOr<PlanSummary>(PlanSummary{.digest = "p"});
    };
    driver_ = *Driver::Start(std::move(options), clock_, std::make_unique<MemoryBackend>(disk_),
                             board_, metrics_, sink_);
  }
  absl::StatusOr<JobViewPtr> Submit(const std::string& name) {
    Promise<absl::StatusOr<JobViewPtr>> answer;
    driver_->Submit(AJob(name), "",
                    [&answer](absl::StatusOr<JobViewPtr> job) { answer.Set(std::move(job)); });
    return answer.Get();
  }
  // Waits until the machine has seen `event`.
  void PostAndWait(Event event) {
    Promise<bool> seen;
    driver_->Post(std::move(event), [&seen] { seen.Set(true); });
    seen.Get();
  }
  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  StoppableClock clock_;
  Board board_;
  Metrics metrics_;
  FakeSink sink_;
  std::unique_ptr<Driver> driver_;
};

TEST_F(DriverTest, AnsweredSubmit_IsOnTheBoardAndInTheStore) {
  Start();
  ASSERT_TRUE(Submit("a").ok());
  EXPECT_TRUE(board_.Find("a").ok());
  driver_.reset();
  EXPECT_EQ(disk_->records.size(), 1u);
}

TEST_F(DriverTest, ConcurrentSubmits_AreAllAnsweredAndNumberedOnce) {
  Start();
  std::vector<std::thread> clients;
  Mutex mu;
  std::set<JobId> ids;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 50; ++i) {
        const auto job = Submit(absl::StrCat("job-", client, "-", i));
        MutexLock lock(&mu);
        ids.insert((*job)->id);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(ids.size(), 400u);
}

TEST_F(DriverTest, NextDriverOnTheSameStore_KnowsTheJobs) {
  Start();
  ASSERT_TRUE(Submit("a").ok());
  driver_.reset();
  Board fresh;
  DriverOptions options;
  const auto next = Driver::Start(options, clock_, std::make_unique<MemoryBackend>(disk_), fresh,
                                  metrics_, sink_);
  ASSERT_TRUE(next.ok());
  EXPECT_TRUE(fresh.Find("a").ok());
}

TEST_F(DriverTest, FailedStore_RefusesEverybodyAndSaysSoOnce) {
  DriverOptions options;
  Promise<absl::Status> told;
  options.on_store_failed = [&told](const absl::Status& status) { told.Set(status); };
  Start(options);
  disk_->next_commit = absl::UnavailableError("input/output error");
  EXPECT_EQ(Submit("a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(told.Get().message(), "input/output error");
  EXPECT_EQ(Submit("b").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(board_.Find("a").ok()) << "what was not stored was not told";
}

TEST_F(DriverTest, Stopped_RefusesWithUnavailable) {
  Start();
  driver_->Stop();
  EXPECT_EQ(Submit("a").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DriverTest, TooManyRequests_AreRefused) {
  DriverOptions options;
  options.requests_max = 0;
  Start(options);
  EXPECT_EQ(Submit("a").status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(DriverTest, StopOfTheProcess_IsNoSilenceOfItsNodes) {
  Start();
  PostAndWait(SessionOpened{SessionId{1}, WorkerHello{.node = "n", .incarnation = Incarnation{1}}});
  clock_.StopFor(absl::Hours(1));
  PostAndWait(HeartbeatReceived{.session = SessionId{1}});
  EXPECT_FALSE(sink_.closed.IsSet());
}

TEST_F(DriverTest, Deadline_ComesWithoutAnEvent) {
  DriverOptions options;
  options.machine.heartbeat_timeout = absl::Milliseconds(30);
  Start(options);
  driver_->Post(
      SessionOpened{SessionId{1}, WorkerHello{.node = "n", .incarnation = Incarnation{1}}});
  EXPECT_EQ(sink_.welcomed.Get(), SessionId{1});
  EXPECT_EQ(sink_.closed.Get().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace phalanx::coordinator
