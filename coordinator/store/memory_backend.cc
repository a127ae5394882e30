#include "coordinator/store/memory_backend.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace phalanx::coordinator {

class MemoryEndedJobs final : public EndedJobs {
 public:
  explicit MemoryEndedJobs(std::shared_ptr<MemoryDisk> disk) : disk_(std::move(disk)) {}

  absl::StatusOr<EndedJob> Find(JobId job) override {
    MutexLock lock(&disk_->mu_);
    const auto found = disk_->ended_.find(job);
    if (found == disk_->ended_.end()) return absl::NotFoundError("no row");
    return found->second;
  }
  absl::StatusOr<EndedJob> FindNamed(const std::string& name) override {
    MutexLock lock(&disk_->mu_);
    for (auto it = disk_->ended_.rbegin(); it != disk_->ended_.rend(); ++it) {
      if (it->second.name == name) return it->second;
    }
    return absl::NotFoundError("no row");
  }
  absl::StatusOr<std::string> Details(JobId job) override {
    MutexLock lock(&disk_->mu_);
    const auto found = disk_->ended_.find(job);
    if (found == disk_->ended_.end()) return absl::NotFoundError("no row");
    return found->second.details;
  }
  absl::StatusOr<std::vector<EndedJob>> List(JobId before, size_t count) override {
    MutexLock lock(&disk_->mu_);
    std::vector<EndedJob> jobs;
    for (auto it = disk_->ended_.lower_bound(before);
         it != disk_->ended_.begin() && jobs.size() < count;) {
      jobs.push_back((--it)->second);
    }
    return jobs;
  }
  absl::StatusOr<StoredRequest> Request(const std::string& id, Instant now) override {
    MutexLock lock(&disk_->mu_);
    const auto found = disk_->requests_.find(id);
    if (found == disk_->requests_.end() || found->second.expires <= now) {
      return absl::NotFoundError("no row");
    }
    return found->second;
  }
  std::map<job::JobPhase, int64_t> Count() const override {
    MutexLock lock(&disk_->mu_);
    std::map<job::JobPhase, int64_t> counts;
    for (const auto& [job, ended] : disk_->ended_) ++counts[ended.phase];
    return counts;
  }

 private:
  const std::shared_ptr<MemoryDisk> disk_;
};

void MemoryDisk::FailCommits(absl::Status status) {
  MutexLock lock(&mu_);
  failure_ = std::move(status);
}

bool MemoryDisk::AwaitFailedCommits(int count, absl::Duration patience) const {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(patience);
  MutexLock lock(&mu_);
  while (failed_commits_ < count) {
    if (failed_.WaitUntil(&mu_, deadline)) return failed_commits_ >= count;
  }
  return true;
}

std::vector<StoredRecord> MemoryDisk::records() const {
  MutexLock lock(&mu_);
  std::vector<StoredRecord> records;
  for (const auto& [key, bytes] : records_) {
    records.push_back({.number = key.second, .job = key.first, .bytes = bytes});
  }
  return records;
}

void MemoryDisk::Put(StoredRecord record) {
  MutexLock lock(&mu_);
  marks_.last_record = std::max(marks_.last_record, record.number);
  marks_.last_job = std::max(marks_.last_job, record.job);
  records_[{record.job, record.number}] = std::move(record.bytes);
}

MemoryBackend::MemoryBackend(std::shared_ptr<MemoryDisk> disk)
    : disk_(std::move(disk)), ended_jobs_(std::make_shared<MemoryEndedJobs>(disk_)) {}

absl::StatusOr<StoreMarks> MemoryBackend::Load(
    absl::FunctionRef<absl::Status(StoredRecord)> visit) {
  for (StoredRecord& record : disk_->records()) {
    if (absl::Status status = visit(std::move(record)); !status.ok()) return status;
  }
  MutexLock lock(&disk_->mu_);
  return disk_->marks_;
}

absl::StatusOr<std::vector<StoredRecord>> MemoryBackend::RecordsOf(JobId job) {
  std::vector<StoredRecord> records = disk_->records();
  std::erase_if(records, [job](const StoredRecord& record) { return record.job != job; });
  return records;
}

absl::Status MemoryBackend::Commit(const Batch& batch) {
  MutexLock lock(&disk_->mu_);
  if (!disk_->failure_.ok()) {
    ++disk_->failed_commits_;
    disk_->failed_.SignalAll();
    return disk_->failure_;
  }
  uint64_t last = disk_->marks_.last_record;
  for (const StoredRecord& record : batch.records) {
    if (record.number <= last) {
      return absl::InvalidArgumentError(
          absl::StrCat("record ", record.number, " does not follow ", last));
    }
    last = record.number;
  }
  disk_->marks_.last_record = last;
  for (const StoredRecord& record : batch.records) {
    disk_->marks_.last_job = std::max(disk_->marks_.last_job, record.job);
    disk_->records_[{record.job, record.number}] = record.bytes;
    disk_->records_.erase({record.job, record.supersedes});
  }
  for (const EndedJob& ended : batch.ended) {
    disk_->ended_.emplace(ended.job, ended);
    if (ended.request.has_value()) disk_->requests_[ended.request->id] = *ended.request;
    std::erase_if(disk_->records_,
                  [&ended](const auto& record) { return record.first.first == ended.job; });
  }
  for (JobId job : batch.deleted) disk_->ended_.erase(job);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> MemoryBackend::Reopen() {
  MutexLock lock(&disk_->mu_);
  return disk_->marks_.last_record;
}

absl::StatusOr<bool> MemoryBackend::Prune(const Retention& retention, Instant now) {
  MutexLock lock(&disk_->mu_);
  std::vector<std::pair<Instant, JobId>> oldest;
  for (const auto& [job, ended] : disk_->ended_) oldest.emplace_back(ended.ended, job);
  std::sort(oldest.begin(), oldest.end());
  for (const auto& [ended, job] : oldest) {
    if (static_cast<int64_t>(disk_->ended_.size()) <= retention.count_max &&
        ended >= now - retention.age_max) {
      break;
    }
    disk_->ended_.erase(job);
  }
  std::erase_if(disk_->requests_,
                [now](const auto& request) { return request.second.expires <= now; });
  return false;
}

}  // namespace phalanx::coordinator
