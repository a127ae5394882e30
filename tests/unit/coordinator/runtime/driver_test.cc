#include "coordinator/runtime/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/runtime/planning.h"
#include "coordinator/runtime/system_clock.h"
#include "coordinator/store/memory_backend.h"
#include "coordinator/wire/ended_codec.h"
#include "core/base/stall_watch.h"
#include "core/posix/waker.h"

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
      JobRequest{.document = {.text = absl::StrCat("text of ", name), .directory = "/d"},
                 .name = name,
                 .steps = 1,
                 .world = 1,
                 .devices = 1});
}

class DriverTest : public ::testing::Test {
 protected:
  void Start(DriverOptions options = {}) {
    options.plan = [](const ComputePlan& order) {
      return absl::StatusOr<PlanSummary>(
          PlanSummary{.layout = {.epoch = order.epoch,
                                 .schedule = {.name = job::ScheduleName::k1F1B},
                                 .nodes = order.placement},
                      .digest = "p"});
    };
    driver_ = *Driver::Start(std::move(options), clock_, std::make_unique<MemoryBackend>(disk_),
                             board_, metrics_, sink_);
  }
  absl::StatusOr<JobViewPtr> Submit(const std::string& name, const std::string& request_id = "") {
    return Submit(AJob(name), request_id);
  }
  absl::StatusOr<JobViewPtr> Submit(JobRequestPtr request, const std::string& request_id,
                                    const absl::Status& refusal = absl::OkStatus()) {
    Promise<absl::StatusOr<JobViewPtr>> answer;
    driver_->Submit(
        std::move(request), request_id,
        [&answer](absl::StatusOr<JobViewPtr> job) { answer.Set(std::move(job)); }, refusal);
    return answer.Get();
  }
  absl::StatusOr<JobViewPtr> Cancel(JobId job) {
    Promise<absl::StatusOr<JobViewPtr>> answer;
    driver_->Cancel(job, /*checkpoint=*/false, /*by=*/"",
                    [&answer](absl::StatusOr<JobViewPtr> view) { answer.Set(std::move(view)); });
    return answer.Get();
  }
  absl::Status Delete(JobId job) {
    Promise<absl::Status> answer;
    driver_->Delete(job, [&answer](absl::Status status) { answer.Set(std::move(status)); });
    return answer.Get();
  }
  // Its records have become its entry, and nobody but the store knows it.
  void WaitUntilArchived(JobId job) {
    const auto ended = MemoryBackend(disk_).ended_jobs();
    while (!ended->Find(job).ok()) std::this_thread::yield();
    // Until the board forgets it, it is counted twice.
    const auto counted = [this] {
      Gauges gauges;
      board_.Count(gauges);
      return gauges.jobs[job::JobPhase::kCancelled];
    };
    while (counted() > 1) std::this_thread::yield();
  }
  // Waits until the machine has seen `event`.
  void PostAndWait(Event event) {
    Promise<bool> seen;
    driver_->Post(std::move(event), [&seen] { seen.Set(true); });
    seen.Get();
  }
  void PostUnhurriedAndWait(Event event) {
    Promise<bool> seen;
    driver_->PostUnhurried(std::move(event), [&seen] { seen.Set(true); });
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
  EXPECT_EQ(disk_->records().size(), 1u);
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

TEST_F(DriverTest, FailedStore_RefusesEverybodyAndSaysSo) {
  DriverOptions options;
  Promise<absl::Status> told;
  options.on_store = [&told](const absl::Status& status) { told.Set(status); };
  Start(options);
  disk_->FailCommits(absl::UnavailableError("input/output error"));
  EXPECT_EQ(
      Submit("a").status(),
      absl::UnavailableError("the store fails, nothing is accepted until it works again, when "
                             "this may be done all the same: input/output error"));
  EXPECT_EQ(told.Get().message(), "input/output error");
  EXPECT_EQ(Submit("b").status(),
            absl::UnavailableError(
                "the store fails, nothing is accepted until it works again: input/output error"));
  EXPECT_THAT(driver_->accepting().message(), ::testing::HasSubstr("input/output error"));
  EXPECT_FALSE(board_.Find("a").ok()) << "what was not stored was not told";
}

TEST_F(DriverTest, FailedStore_IsNoReasonNotToSayWhatIsKnown) {
  Start();
  const JobId job = (*Submit("a"))->id;
  disk_->FailCommits(absl::ResourceExhaustedError("disk full"));
  EXPECT_EQ(Cancel(job).status().code(), absl::StatusCode::kUnavailable);
  Promise<absl::StatusOr<std::vector<std::string>>> why;
  driver_->Explain(job, [&why](absl::StatusOr<std::vector<std::string>> reasons) {
    why.Set(std::move(reasons));
  });
  const absl::StatusOr<std::vector<std::string>> reasons = why.Get();
  ASSERT_TRUE(reasons.ok()) << reasons.status();
  EXPECT_EQ(reasons->back(),
            "the store is full, nothing is accepted until it works again: disk full");
  Promise<bool> logs, queue;
  driver_->FetchLogs({.job = job}, [&logs](const absl::StatusOr<std::vector<LogSource>>& sources) {
    logs.Set(sources.ok());
  });
  EXPECT_TRUE(logs.Get());
  driver_->AskQueue({job}, [&queue](const absl::StatusOr<std::map<JobId, QueueSpot>>& spots) {
    queue.Set(spots.ok());
  });
  EXPECT_TRUE(queue.Get());
}

TEST_F(DriverTest, StoreThatWorksAgain_IsTakenUpWhereItWas) {
  DriverOptions options;
  Promise<bool> works;
  options.on_store = [&works](const absl::Status& status) {
    if (status.ok()) works.Set(true);
  };
  Start(options);
  disk_->FailCommits(absl::ResourceExhaustedError("disk full"));
  EXPECT_EQ(Submit("a").status().code(), absl::StatusCode::kUnavailable);
  disk_->FailCommits(absl::OkStatus());
  works.Get();
  const absl::StatusOr<JobViewPtr> second = Submit("b");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->id, JobId{2});
  EXPECT_TRUE(board_.Find("a").ok()) << "it was decided, and is stored now";
}

TEST_F(DriverTest, EndedJob_IsReadFromTheStore) {
  Start();
  const JobId job = (*Submit("a"))->id;
  ASSERT_TRUE(Cancel(job).ok());
  WaitUntilArchived(job);
  const absl::StatusOr<JobViewPtr> found = board_.FindWhole("a");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->phase, job::JobPhase::kCancelled);
  EXPECT_EQ((*found)->request->document.text, "text of a");
  EXPECT_EQ(board_.Events(job, 1)->size(), 1u);
  EXPECT_EQ(board_.List(JobId{100}, 10)->size(), 1u);
  EXPECT_TRUE(Cancel(job).ok()) << "a cancel is idempotent";
  auto subscription = std::make_shared<Subscription>([] {});
  ASSERT_TRUE(board_.Subscribe(job, subscription).ok());
  EXPECT_EQ(subscription->Take()->job->phase, job::JobPhase::kCancelled);
}

TEST_F(DriverTest, EndedJob_AfterARestart_IsStillReadFromTheStore) {
  Start();
  const JobId job = (*Submit("a"))->id;
  ASSERT_TRUE(Cancel(job).ok());
  WaitUntilArchived(job);
  driver_.reset();
  Start();
  EXPECT_TRUE(board_.Find("a").ok());
  EXPECT_EQ((*Submit("b"))->id, JobId{2});
}

TEST_F(DriverTest, Deleted_IsGoneAndItsNumberIsNotGivenAgain) {
  Start();
  const JobId job = (*Submit("a"))->id;
  EXPECT_EQ(Delete(job).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Cancel(job).ok());
  EXPECT_TRUE(Delete(job).ok());
  EXPECT_EQ(board_.Find("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Delete(job).code(), absl::StatusCode::kNotFound);
  driver_.reset();
  Start();
  EXPECT_EQ((*Submit("b"))->id, JobId{2});
}

TEST_F(DriverTest, RequestId_AnswersForAnEndedAndForADeletedJob) {
  Start();
  const JobId job = (*Submit("a", "request"))->id;
  ASSERT_TRUE(Cancel(job).ok());
  WaitUntilArchived(job);
  EXPECT_EQ((*Submit("a", "request"))->id, job);
  EXPECT_EQ(Submit("b", "request").status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(Delete(job).ok());
  const absl::Status deleted = Submit("a", "request").status();
  EXPECT_EQ(deleted.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(deleted.message(), ::testing::HasSubstr("job-1, which was deleted"));
  EXPECT_EQ(Submit("b", "request").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DriverTest, RequestId_AnswersForAnEndedJobWhateverANewOneWouldBeTold) {
  Start();
  JobRequest laid_out = *AJob("a");
  laid_out.submitted_digest = DigestOf({.text = "as it was submitted", .directory = "/d"}, {});
  const auto again = RequestAsSubmitted({.text = "as it was submitted", .directory = "/d"}, {});
  const JobId job = (*Submit(std::make_shared<const JobRequest>(laid_out), "request"))->id;
  ASSERT_TRUE(Cancel(job).ok());
  WaitUntilArchived(job);
  const absl::Status refusal = absl::InvalidArgumentError("no node has it any more");
  EXPECT_EQ((*Submit(again, "request", refusal))->id, job);
  EXPECT_EQ(Submit(again, "another", refusal).status(), refusal);
}

TEST_F(DriverTest, FindSubmit_TellsWhatARequestIdBecame_AndSubmitsNothing) {
  Start();
  const auto find = [this](const std::string& text, const std::string& request_id) {
    Promise<absl::StatusOr<JobViewPtr>> answer;
    driver_->FindSubmit(RequestAsSubmitted({.text = text, .directory = "/d"}, {}), request_id,
                        [&answer](absl::StatusOr<JobViewPtr> job) { answer.Set(std::move(job)); });
    return answer.Get();
  };
  EXPECT_EQ(find("as it was submitted", "request").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(board_.Find("1").ok());
  JobRequest laid_out = *AJob("a");
  laid_out.submitted_digest = DigestOf({.text = "as it was submitted", .directory = "/d"}, {});
  const JobId job = (*Submit(std::make_shared<const JobRequest>(laid_out), "request"))->id;
  EXPECT_EQ((*find("as it was submitted", "request"))->id, job);
  EXPECT_EQ(find("another", "request").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(find("as it was submitted", "other").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Cancel(job).ok());
  WaitUntilArchived(job);
  EXPECT_EQ((*find("as it was submitted", "request"))->id, job);
}

TEST_F(DriverTest, FindSubmit_TellsWhatSpeaksAgainstAJob) {
  Start();
  ASSERT_TRUE(Submit("a", "request").ok());
  const auto find = [this](const std::string& name) {
    Promise<absl::StatusOr<JobViewPtr>> answer;
    JobRequest request = *RequestAsSubmitted({.text = "not laid out", .directory = "/d"}, {});
    request.name = name;
    driver_->FindSubmit(std::make_shared<const JobRequest>(request), "another",
                        [&answer](absl::StatusOr<JobViewPtr> job) { answer.Set(std::move(job)); });
    return answer.Get().status();
  };
  EXPECT_EQ(find("a").code(), absl::StatusCode::kAlreadyExists) << "before any search";
  EXPECT_EQ(find("b").code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(board_.Find("2").ok()) << "and nothing is submitted";
}

TEST_F(DriverTest, WaitingDocuments_AreBoundedInBytes) {
  DriverOptions options;
  options.request_bytes_max = 1000;
  Start(options);
  Promise<absl::StatusOr<JobViewPtr>> answer;
  JobRequest large = *AJob("a");
  large.document.text = std::string(2000, 'x');
  driver_->Submit(std::make_shared<const JobRequest>(large), "",
                  [&answer](absl::StatusOr<JobViewPtr> job) { answer.Set(std::move(job)); });
  EXPECT_EQ(answer.Get().status().code(), absl::StatusCode::kResourceExhausted);
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

TEST_F(DriverTest, ThreadThatHangs_IsNotAlive_UntilItRunsAgain) {
  Start();
  Promise<bool> hangs, go;
  driver_->Post(HeartbeatReceived{}, [&] {
    hangs.Set(true);
    go.Get();
  });
  hangs.Get();
  EXPECT_TRUE(driver_->alive().ok()) << driver_->alive();
  clock_.StopFor(absl::Seconds(31));
  EXPECT_THAT(driver_->alive().message(), ::testing::HasSubstr("the driver has not run for 3"));
  go.Set(true);
  PostAndWait(HeartbeatReceived{});
  EXPECT_TRUE(driver_->alive().ok()) << driver_->alive();
  driver_->Stop();
  clock_.StopFor(absl::Seconds(31));
  EXPECT_TRUE(driver_->alive().ok()) << "it was told to end";
}

TEST_F(DriverTest, StopOfTheProcess_IsNoSilenceOfItsNodes) {
  Start();
  PostAndWait(SessionOpened{SessionId{1}, WorkerHello{.node = "n", .incarnation = Incarnation{1}}});
  clock_.StopFor(absl::Hours(1));
  PostAndWait(HeartbeatReceived{.session = SessionId{1}});
  EXPECT_FALSE(sink_.closed.IsSet());
}

// An event of nobody that takes the driver less time than would look like a stop of the process.
constexpr absl::Duration kSlowEvent = absl::Milliseconds(400);

TEST_F(DriverTest, HeartbeatThatCameDuringALongBatch_IsReadBeforeTheDeadlineIsJudged) {
  Start();
  PostAndWait(SessionOpened{SessionId{1}, WorkerHello{.node = "n", .incarnation = Incarnation{1}}});
  Promise<bool> held, go;
  driver_->Post(HeartbeatReceived{}, [&] {
    held.Set(true);
    go.Get();
  });
  held.Get();
  constexpr int kEvents = 50;  // 20 s, more than the silence that is allowed
  for (int i = 0; i < kEvents; ++i) {
    driver_->Post(HeartbeatReceived{}, [this, i] {
      clock_.StopFor(kSlowEvent);
      if (i == kEvents / 2) driver_->Post(HeartbeatReceived{.session = SessionId{1}});
    });
  }
  go.Set(true);
  PostAndWait(HeartbeatReceived{});
  PostAndWait(HeartbeatReceived{});  // of a later batch
  EXPECT_FALSE(sink_.closed.IsSet());
}

TEST_F(DriverTest, UnhurriedEvent_WaitsForTheTick) {
  Start();
  PostAndWait(HeartbeatReceived{});  // from here on the driver sleeps
  const SteadyTime start = SteadyNow();
  PostUnhurriedAndWait(HeartbeatReceived{});
  EXPECT_GT(Since(start), StallWatch::kTick / 4) << "it has woken the driver";
}

TEST_F(DriverTest, UnhurriedEvent_IsSeenBeforeWhatComesBehindIt) {
  Start();
  std::atomic<bool> seen = false;
  driver_->PostUnhurried(HeartbeatReceived{}, [&seen] { seen = true; });
  PostAndWait(HeartbeatReceived{});
  EXPECT_TRUE(seen);
}

TEST_F(DriverTest, UnhurriedHeartbeats_AreSeenBeforeTheDeadlineIsJudged) {
  DriverOptions options;
  options.machine.heartbeat_timeout = StallWatch::kTick / 5;  // comes before the driver's tick
  Start(options);
  PostAndWait(SessionOpened{SessionId{1}, WorkerHello{.node = "n", .incarnation = Incarnation{1}}});
  int beats = 0;
  Promise<bool> closed_meanwhile;
  std::function<void()> next = [&] {  // each waits from right after the one before
    if (++beats > 5) return closed_meanwhile.Set(sink_.closed.IsSet());
    driver_->PostUnhurried(HeartbeatReceived{.session = SessionId{1}}, next);
  };
  driver_->Post(HeartbeatReceived{.session = SessionId{1}}, next);
  EXPECT_FALSE(closed_meanwhile.Get());
  EXPECT_EQ(sink_.closed.Get().code(), absl::StatusCode::kUnavailable) << "silent since";
}

TEST_F(DriverTest, FloodOfEvents_PutsOffNoDeadline) {
  Start();
  PostAndWait(SessionOpened{SessionId{1}, WorkerHello{.node = "n", .incarnation = Incarnation{1}}});
  std::function<void()> next = [&] {  // so that the inbox is never empty
    clock_.StopFor(kSlowEvent);
    if (!sink_.closed.IsSet()) driver_->Post(HeartbeatReceived{}, next);
  };
  driver_->Post(HeartbeatReceived{}, next);
  EXPECT_EQ(sink_.closed.Get().code(), absl::StatusCode::kUnavailable);
  driver_->Stop();
}

TEST_F(DriverTest, TextOfOthersInTheLog_IsOnOneLineWithoutControls) {
  Mutex mu;
  std::string log;
  DriverOptions options;
  options.log = [&](const std::string& line) {
    MutexLock lock(&mu);
    absl::StrAppend(&log, line, "\n");
  };
  Start(std::move(options));
  PostAndWait(SessionOpened{SessionId{1}, WorkerHello{.node = "n", .incarnation = Incarnation{1}}});
  PostAndWait(SessionOpened{
      SessionId{2}, WorkerHello{.node = "m\x1b[31m\nforged line", .incarnation = Incarnation{1}}});
  driver_->Stop();
  MutexLock lock(&mu);
  EXPECT_THAT(log, ::testing::HasSubstr("node=m\\x1b[31m\\nforged line connected"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
}

// The planner is busy with one plan; the jobs of the others are cancelled before their turn.
TEST_F(DriverTest, PlanOfAJobThatIsCancelledBeforeItsTurn_IsNotMade) {
  Mutex mu;
  std::vector<std::string> planned;
  Promise<bool> go;
  DriverOptions options;
  options.plan = [&](const ComputePlan& order) -> absl::StatusOr<PlanSummary> {
    {
      MutexLock lock(&mu);
      planned.push_back(order.request->name);
    }
    go.Get();
    return absl::InvalidArgumentError("no");
  };
  driver_ = *Driver::Start(std::move(options), clock_, std::make_unique<MemoryBackend>(disk_),
                           board_, metrics_, sink_);
  PostAndWait(SessionOpened{
      SessionId{1}, WorkerHello{.node = "n", .incarnation = Incarnation{1}, .devices = 10}});
  std::vector<JobId> jobs;
  for (const char* name : {"a", "b", "c", "d", "e"}) jobs.push_back((*Submit(name))->id);
  const auto begun = [&] {
    MutexLock lock(&mu);
    return planned.size();
  };
  while (begun() < 2) std::this_thread::yield();
  for (size_t i = 2; i < 5; ++i) ASSERT_TRUE(Cancel(jobs[i]).ok());
  ASSERT_TRUE(Submit("f").ok());
  go.Set(true);
  while (begun() < 3) std::this_thread::yield();
  driver_->Stop();
  EXPECT_EQ(planned, (std::vector<std::string>{planned[0], planned[1], "f"}));
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
