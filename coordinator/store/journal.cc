#include "coordinator/store/journal.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/archive.h"
#include "core/base/status.h"

namespace phalanx::coordinator {

Journal::Journal(std::unique_ptr<Backend> backend, JournalOptions options, const Clock& clock,
                 CommitListener listener)
    : backend_(std::move(backend)),
      options_(std::move(options)),
      clock_(clock),
      listener_(std::move(listener)),
      prune_at_(SteadyNow()),
      look_at_(prune_at_),
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
  appended_.batch.records.push_back(std::move(record));
}

void Journal::Archive(JobId job) {
  MutexLock lock(&mu_);
  if (appended_.empty()) waker_.Wake();
  appended_.archive.push_back(job);
}

void Journal::Delete(JobId job, uint64_t tag) {
  MutexLock lock(&mu_);
  if (appended_.empty()) waker_.Wake();
  appended_.batch.deleted.push_back(job);
  appended_.tags.push_back(tag);
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
    {
      MutexLock lock(&mu_);
      if (!appended_.empty() || stopping_ || SteadyNow() >= std::min(prune_at_, look_at_)) {
        look_at_ = SteadyNow() + absl::ToChronoNanoseconds(options_.look_interval);
        work = std::exchange(appended_, {});
        work.records = work.batch.records.size();
        if (work.records != 0) work.last = work.batch.records.back().number;
        if (work.archive.size() > options_.archive_max) {
          const auto rest =
              work.archive.begin() + static_cast<std::ptrdiff_t>(options_.archive_max);
          appended_.archive.assign(rest, work.archive.end());
          work.archive.erase(rest, work.archive.end());
        }
        return !work.empty() || !stopping_;
      }
    }
    waker_.Wait(-Since(std::min(prune_at_, look_at_)));
  }
}

bool Journal::WaitForRetry(absl::Duration delay) {
  const SteadyTime until = SteadyNow() + absl::ToChronoNanoseconds(delay);
  while (true) {
    {
      MutexLock lock(&mu_);
      if (stopping_) return false;
    }
    if (SteadyNow() >= until) return true;
    waker_.Wait(-Since(until));
  }
}

void Journal::Run() {
  pthread_setname_np(pthread_self(), "journal");
  Work work;
  while (Take(work)) {
    const bool idle = work.empty();
    absl::Duration delay = options_.retry_delay_min;
    bool failed = false;
    while (true) {
      const CommitReport report = Commit(work);
      // The end of a failure is told too, though there may be nothing to commit.
      if (!idle || !report.status.ok() || failed) listener_(report);
      failed = !report.status.ok();
      if (!failed) break;
      if (!WaitForRetry(delay)) return;
      delay = std::min(2 * delay, options_.retry_delay_max);
    }
    work = {};
    if (SteadyNow() >= prune_at_) Prune();
  }
}

CommitReport Journal::Commit(Work& work) {
  CommitReport report{.records = work.records};
  const SteadyTime start = SteadyNow();
  NoteCommitting(start);
  report.status = TryCommit(work);
  NoteCommitting(std::nullopt);
  report.duration = Since(start);
  broken_ = !report.status.ok();
  if (broken_) return report;
  report.bytes = backend_->bytes();
  report.last = work.last;
  report.archived = work.archived;
  report.deleted = work.tags;
  report.not_archived = work.not_archived;
  return report;
}

absl::Status Journal::TryCommit(Work& work) {
  if (!broken_) {
    RETURN_IF_ERROR(backend_->CheckPlace());
  } else {
    ASSIGN_OR_RETURN(const uint64_t stored, backend_->Reopen());
    // All or none of them may have become durable although their commit failed.
    if (work.last <= stored) work.batch.records.clear();
  }
  for (; !work.archive.empty(); work.archive.pop_front()) {
    const JobId job = work.archive.front();
    ASSIGN_OR_RETURN(const std::vector<StoredRecord> records, backend_->RecordsOf(job));
    absl::StatusOr<std::optional<EndedJob>> ended = MakeEndedJob(job, records);
    if (!ended.ok()) {
      work.not_archived.emplace_back(job, ended.status());
      continue;
    }
    if (ended->has_value()) work.batch.ended.push_back(**std::move(ended));
    work.archived.push_back(job);
  }
  return backend_->Commit(work.batch);
}

void Journal::Prune() {
  const SteadyTime start = SteadyNow();
  const absl::StatusOr<bool> more = backend_->Prune(options_.retention, clock_.Now());
  broken_ = !more.ok();
  absl::Duration pause = options_.prune_interval;
  if (!more.ok()) {
    pause = options_.prune_retry_interval;
    listener_({.duration = Since(start),
               .complaints = {absl::StrCat("old ended jobs cannot be deleted from the store: ",
                                           more.status().message())}});
  } else if (*more) {
    pause = absl::ZeroDuration();
  }
  prune_at_ = SteadyNow() + absl::ToChronoNanoseconds(pause);
}

}  // namespace phalanx::coordinator
