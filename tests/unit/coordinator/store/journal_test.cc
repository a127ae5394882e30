#include "coordinator/store/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/store/memory_backend.h"
#include "core/base/mutex.h"
#include "core/base/time.h"

namespace phalanx::coordinator {
namespace {

using ::testing::SizeIs;

// Stands still.
class FakeClock final : public Clock {
 public:
  Instant Now() const override { return absl::FromUnixSeconds(1'700'000'000); }
};
const FakeClock kClock;

StoredRecord RecordOf(uint64_t number) {
  return {.number = number, .job = JobId{1}, .bytes = "bytes"};
}

// A backend whose commits wait until they are let through.
class GatedBackend final : public Backend {
 public:
  absl::StatusOr<StoreMarks> Load(absl::FunctionRef<absl::Status(StoredRecord)>) override {
    return StoreMarks();
  }
  absl::StatusOr<std::vector<StoredRecord>> RecordsOf(JobId) override {
    return std::vector<StoredRecord>();
  }
  absl::StatusOr<uint64_t> Reopen() override { return 0; }
  absl::StatusOr<bool> Prune(const Retention&, Instant) override { return false; }
  std::shared_ptr<EndedJobs> ended_jobs() override { return nullptr; }
  uint64_t identity() const override { return 0; }
  absl::Status Commit(const Batch& batch) override {
    MutexLock lock(&mu_);
    if (batch.empty()) return absl::OkStatus();
    entered_ = true;
    batches_.push_back(batch.records.size());
    changed_.SignalAll();
    while (!open_) changed_.Wait(&mu_);
    return absl::OkStatus();
  }
  void WaitUntilEntered() {
    MutexLock lock(&mu_);
    while (!entered_) changed_.Wait(&mu_);
  }
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    changed_.SignalAll();
  }
  std::vector<size_t> batches() {
    MutexLock lock(&mu_);
    return batches_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool entered_ = false, open_ = false;
  std::vector<size_t> batches_;
};

TEST(JournalTest, RecordsThatComeDuringACommit_ShareTheNext) {
  auto owned = std::make_unique<GatedBackend>();
  GatedBackend* backend = owned.get();
  std::vector<size_t> batches;
  {
    Journal journal(std::move(owned), {}, kClock, [&](const CommitReport& report) {
      EXPECT_TRUE(report.status.ok());
      batches.push_back(report.records);
    });
    journal.Append(RecordOf(1));
    backend->WaitUntilEntered();
    for (uint64_t number = 2; number <= 100; ++number) journal.Append(RecordOf(number));
    EXPECT_GT(journal.committing_for(), absl::ZeroDuration());
    backend->Open();
  }
  EXPECT_THAT(batches, ::testing::ElementsAre(1, 99));
}

TEST(JournalTest, Destruction_CommitsWhatWasAppended) {
  auto disk = std::make_shared<MemoryDisk>();
  {
    Journal journal(std::make_unique<MemoryBackend>(disk), {}, kClock, [](const CommitReport&) {});
    for (uint64_t number = 1; number <= 50; ++number) journal.Append(RecordOf(number));
  }
  EXPECT_THAT(disk->records(), SizeIs(50));
}

TEST(JournalTest, FailedCommit_IsTriedAgainUntilItSucceeds) {
  auto disk = std::make_shared<MemoryDisk>();
  disk->FailCommits(absl::ResourceExhaustedError("disk full"));
  std::vector<absl::Status> reports;
  {
    Journal journal(std::make_unique<MemoryBackend>(disk),
                    {.retry_delay_min = absl::Milliseconds(1)}, kClock,
                    [&](const CommitReport& report) { reports.push_back(report.status); });
    journal.Append(RecordOf(1));
    ASSERT_TRUE(disk->AwaitFailedCommits(3, absl::Seconds(20)));
    journal.Append(RecordOf(2));
    disk->FailCommits(absl::OkStatus());
    while (disk->records().size() < 2) std::this_thread::yield();
  }
  ASSERT_GE(reports.size(), 5u);
  EXPECT_EQ(reports.front().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(reports.back().ok());
}

TEST(JournalTest, EndWhileTheStoreFails_GivesUpAfterOneAttempt) {
  auto disk = std::make_shared<MemoryDisk>();
  disk->FailCommits(absl::UnavailableError("input/output error"));
  {
    Journal journal(std::make_unique<MemoryBackend>(disk), {}, kClock, [](const CommitReport&) {});
    journal.Append(RecordOf(1));
  }
  EXPECT_THAT(disk->records(), SizeIs(0));
}

// As after a failure of pruning: nobody appends while the store is said to fail.
TEST(JournalTest, FailureWithNothingToStore_IsToldAndSoIsItsEnd) {
  auto disk = std::make_shared<MemoryDisk>();
  disk->FailCommits(absl::UnavailableError("input/output error"));
  std::atomic<int> failures = 0, successes = 0;
  Journal journal(
      std::make_unique<MemoryBackend>(disk), {.retry_delay_min = absl::Milliseconds(1)}, kClock,
      [&](const CommitReport& report) { ++(report.status.ok() ? successes : failures); });
  ASSERT_TRUE(disk->AwaitFailedCommits(1, absl::Seconds(20)));
  disk->FailCommits(absl::OkStatus());
  while (successes == 0) std::this_thread::yield();
  EXPECT_GE(failures, 1);
}

// Its commit says that it failed, although what it was given is there: as after a failed fsync.
class LyingBackend final : public Backend {
 public:
  explicit LyingBackend(std::shared_ptr<MemoryDisk> disk) : backend_(std::move(disk)) {}
  absl::StatusOr<StoreMarks> Load(absl::FunctionRef<absl::Status(StoredRecord)> visit) override {
    return backend_.Load(visit);
  }
  absl::StatusOr<std::vector<StoredRecord>> RecordsOf(JobId job) override {
    return backend_.RecordsOf(job);
  }
  absl::Status Commit(const Batch& batch) override {
    if (absl::Status status = backend_.Commit(batch); !status.ok()) return status;
    if (batch.records.empty()) return absl::OkStatus();  // it only looked whether the store works
    return std::exchange(lies_, false) ? absl::UnavailableError("fsync: input/output error")
                                       : absl::OkStatus();
  }
  absl::StatusOr<uint64_t> Reopen() override { return backend_.Reopen(); }
  absl::StatusOr<bool> Prune(const Retention& retention, Instant now) override {
    return backend_.Prune(retention, now);
  }
  std::shared_ptr<EndedJobs> ended_jobs() override { return backend_.ended_jobs(); }
  uint64_t identity() const override { return 0; }

 private:
  MemoryBackend backend_;
  bool lies_ = true;
};

TEST(JournalTest, BatchThatIsThereAlthoughItsCommitFailed_IsNotWrittenTwice) {
  auto disk = std::make_shared<MemoryDisk>();
  std::vector<CommitReport> reports;
  std::atomic<int> count = 0;
  {
    Journal journal(std::make_unique<LyingBackend>(disk),
                    {.retry_delay_min = absl::Milliseconds(1)}, kClock,
                    [&](const CommitReport& report) {
                      reports.push_back(report);
                      ++count;
                    });
    journal.Append(RecordOf(1));
    while (count < 2) std::this_thread::yield();  // it failed, and is there
    journal.Append(RecordOf(2));
    while (disk->records().size() < 2) std::this_thread::yield();
  }
  ASSERT_THAT(reports, SizeIs(3));
  EXPECT_FALSE(reports[0].status.ok());
  EXPECT_TRUE(reports[1].status.ok());
  EXPECT_EQ(reports[1].last, 1u);
  EXPECT_EQ(reports[2].last, 2u);
}

TEST(JournalTest, ManyJobsToArchive_AreSharedOutOverCommits) {
  auto owned = std::make_unique<GatedBackend>();
  GatedBackend* backend = owned.get();
  std::vector<size_t> archived;
  {
    Journal journal(std::move(owned), {.archive_max = 10}, kClock, [&](const CommitReport& report) {
      EXPECT_TRUE(report.status.ok());
      archived.push_back(report.archived.size());
    });
    journal.Append(RecordOf(1));
    backend->WaitUntilEntered();
    for (int64_t job = 1; job <= 25; ++job) journal.Archive(JobId{job});
    backend->Open();
  }
  EXPECT_THAT(archived, ::testing::ElementsAre(0, 10, 10, 5));
}

TEST(JournalTest, JobWhoseRecordsAreDamaged_IsToldAndTheOthersAreStored) {
  auto disk = std::make_shared<MemoryDisk>();
  disk->Put(RecordOf(1));  // its bytes are no record
  std::vector<CommitReport> reports;
  {
    Journal journal(std::make_unique<MemoryBackend>(disk), {}, kClock,
                    [&](const CommitReport& report) { reports.push_back(report); });
    journal.Archive(JobId{1});
  }
  std::vector<JobId> told;
  for (const CommitReport& report : reports) {
    EXPECT_TRUE(report.status.ok()) << report.status;
    for (const auto& [job, status] : report.not_archived) {
      told.push_back(job);
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("record 1 of job-1"));
    }
  }
  EXPECT_THAT(told, ::testing::ElementsAre(JobId{1}));
}

// A store that fails first where it is pruned, then for some time altogether.
class PruneFailsBackend final : public Backend {
 public:
  absl::StatusOr<StoreMarks> Load(absl::FunctionRef<absl::Status(StoredRecord)>) override {
    return StoreMarks();
  }
  absl::StatusOr<std::vector<StoredRecord>> RecordsOf(JobId) override {
    return std::vector<StoredRecord>();
  }
  absl::StatusOr<uint64_t> Reopen() override {
    if (++reopened < 3) return absl::UnavailableError("input/output error");
    return 0;
  }
  absl::StatusOr<bool> Prune(const Retention&, Instant now) override {
    EXPECT_EQ(now, kClock.Now());
    if (reopened == 0) return absl::UnavailableError("disk full");
    return false;
  }
  std::shared_ptr<EndedJobs> ended_jobs() override { return nullptr; }
  uint64_t identity() const override { return 0; }
  absl::Status Commit(const Batch&) override { return absl::OkStatus(); }
  int reopened = 0;  // of the journal's thread
};

TEST(JournalTest, FailureThatPruningFound_IsToldAndSoIsItsEnd) {
  std::vector<CommitReport> reports;
  Mutex mu;
  CondVar changed;
  Journal journal(
      std::make_unique<PruneFailsBackend>(),
      {.prune_retry_interval = absl::Milliseconds(1), .retry_delay_min = absl::Milliseconds(1)},
      kClock, [&](const CommitReport& report) {
        MutexLock lock(&mu);
        reports.push_back(report);
        changed.Signal();
      });
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  MutexLock lock(&mu);
  while (reports.size() < 4 && !changed.WaitUntil(&mu, give_up)) continue;
  ASSERT_THAT(reports, SizeIs(4)) << "the end of the failure was not told";
  EXPECT_THAT(reports[0].complaints, ::testing::ElementsAre(::testing::HasSubstr("disk full")));
  EXPECT_FALSE(reports[1].status.ok());
  EXPECT_FALSE(reports[2].status.ok());
  EXPECT_TRUE(reports[3].status.ok()) << reports[3].status;
}

}  // namespace
}  // namespace phalanx::coordinator
