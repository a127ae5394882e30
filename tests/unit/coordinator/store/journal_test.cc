#include "coordinator/store/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "coordinator/store/memory_backend.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {
namespace {

using ::testing::SizeIs;

// A backend whose commits wait until they are let through.
class GatedBackend final : public Backend {
 public:
  absl::StatusOr<std::vector<StoredRecord>> Load() override { return std::vector<StoredRecord>(); }
  absl::Status Commit(absl::Span<const StoredRecord> records) override {
    MutexLock lock(&mu_);
    entered_ = true;
    batches_.push_back(records.size());
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
    Journal journal(std::move(owned), [&](const CommitReport& report) {
      EXPECT_TRUE(report.status.ok());
      batches.push_back(report.records);
    });
    journal.Append({1, "a"});
    backend->WaitUntilEntered();
    for (uint64_t number = 2; number <= 100; ++number) journal.Append({number, "b"});
    EXPECT_EQ(journal.pending(), 99u);
    backend->Open();
  }
  EXPECT_THAT(batches, ::testing::ElementsAre(1, 99));
}

TEST(JournalTest, Destruction_CommitsWhatWasAppended) {
  auto disk = std::make_shared<MemoryDisk>();
  {
    Journal journal(std::make_unique<MemoryBackend>(disk), [](const CommitReport&) {});
    for (uint64_t number = 1; number <= 50; ++number) journal.Append({number, "x"});
  }
  EXPECT_THAT(disk->records, SizeIs(50));
}

TEST(JournalTest, FailedCommit_IsTheLast) {
  auto disk = std::make_shared<MemoryDisk>();
  disk->next_commit = absl::ResourceExhaustedError("disk full");
  std::vector<absl::Status> reports;
  {
    Journal journal(std::make_unique<MemoryBackend>(disk),
                    [&](const CommitReport& report) { reports.push_back(report.status); });
    journal.Append({1, "x"});
    while (journal.pending() != 0) std::this_thread::yield();
    journal.Append({2, "y"});
  }
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(disk->records.empty());
}

}  // namespace
}  // namespace phalanx::coordinator
