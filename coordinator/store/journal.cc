#include "coordinator/store/journal.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/store/archive.h"
#include "core/base/status.h"

namespace phalanx::coordinator {

Journal::Journal(std::unique_ptr<Backend> backend, JournalOptions options, CommitListener listener)
    : backend_(std::move(backend)),
      options_(std::move(options)),
      listener_(std::move(listener)),
      prune_at_(SteadyNow()),
      thread_([this] { Run(); }) {}

Journal::~Journal() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    waker_.Wake();
  }
  thread_.join();
}

void Journal::Append(StoredRecord record) {
  MutexLock lock(&mu_);
  if (appended_.empty()) waker_.Wake();
  appended_.records.push_back(std::move(record));
}

void Journal::Archive(JobId job) {
  MutexLock lock(&mu_);
  if (appended_.empty()) waker_.Wake();
  appended_.archive.push_back(job);
}

void Journal::Delete(JobId job, uint64_t tag) {
  MutexLock lock(&mu_);
  if (appended_.empty()) waker_.Wake();
  appended_.remove.emplace_back(job, tag);
}

size_t Journal::pending() const {
  MutexLock lock(&mu_);
  return appended_.records.size();
}

absl::Duration Journal::committing_for() const {
  MutexLock lock(&mu_);
  return committing_since_.has_value() ? Since(*committing_since_) : absl::ZeroDuration();
}

void Journal::NoteCommitting(std::optional<SteadyTime> since) {
  MutexLock lock(&mu_);
  committing_since_ = since;
}

bool Journal::Take(Work& work) {
  while (true) {
    const absl::Duration left = -Since(prune_at_);
    {
      MutexLock lock(&mu_);
      if (!appended_.empty() || stopping_ || left <= absl::ZeroDuration()) {
        work = std::exchange(appended_, {});
        return !work.empty() || !stopping_;
      }
    }
    waker_.Wait(left);
  }
}

bool Journal::WaitForRetry(absl::Duration delay) {
  const SteadyTime start = SteadyNow();
  while (true) {
    {
      MutexLock lock(&mu_);
      if (stopping_) return false;
    }
    const absl::Duration left = delay - Since(start);
    if (left <= absl::ZeroDuration()) return true;
    waker_.Wait(left);
  }
}

void Journal::Run() {
  pthread_setname_np(pthread_self(), "journal");
  Work work;
  while (Take(work)) {
    absl::Duration delay = options_.retry_delay_min;
    bool failed = false;
    while (true) {
      const CommitReport report = Commit(work);
      // Who was told of a failure is told of its end, also where nothing waits to be stored.
      if (!work.empty() || failed || !report.status.ok()) listener_(report);
      if (report.status.ok()) break;
      failed = true;
      if (!WaitForRetry(delay)) return;
      delay = std::min(2 * delay, options_.retry_delay_max);
    }
    if (SteadyNow() >= prune_at_) Prune();
  }
}

CommitReport Journal::Commit(const Work& work) {
  CommitReport report{.records = work.records.size()};
  const SteadyTime start = SteadyNow();
  NoteCommitting(start);
  report.status = TryCommit(work, report);
  NoteCommitting(std::nullopt);
  report.duration = Since(start);
  broken_ = !report.status.ok();
  if (broken_) return report;
  if (!work.records.empty()) report.last = work.records.back().number;
  for (const auto& [job, tag] : work.remove) report.deleted.push_back(tag);
  return report;
}

absl::Status Journal::TryCommit(const Work& work, CommitReport& report) {
  Batch batch;
  uint64_t stored = 0;
  if (broken_) {
    ASSIGN_OR_RETURN(stored, backend_->Reopen());
  }
  // All or none of them may have become durable although their commit failed.
  if (!work.records.empty() && work.records.back().number > stored) batch.records = work.records;
  for (const auto& [job, tag] : work.remove) batch.deleted.push_back(job);
  for (JobId job : work.archive) {
    ASSIGN_OR_RETURN(const std::vector<StoredRecord> records, backend_->RecordsOf(job));
    absl::StatusOr<std::optional<EndedJob>> ended = MakeEndedJob(job, records);
    // It stays as it is, in memory too, and is tried again at the next start.
    if (!ended.ok()) {
      report.complaints.push_back(
          absl::StrCat(ToString(job), " cannot be archived: ", ended.status().message()));
      continue;
    }
    if (ended->has_value()) batch.ended.push_back(**std::move(ended));
    report.archived.push_back(job);
  }
  return backend_->Commit(batch);
}

void Journal::Prune() {
  const absl::StatusOr<bool> more = backend_->Prune(options_.retention, absl::Now());
  broken_ = !more.ok();
  prune_at_ = SteadyNow();
  if (!more.ok() || !*more) prune_at_ += absl::ToChronoNanoseconds(options_.prune_interval);
}

}  // namespace phalanx::coordinator
