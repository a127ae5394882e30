#include "coordinator/status/queue_watch.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// An answer may come when the watch is gone.
struct QueueWatch::State {
  struct Said {
    QueueSpot spot;
    Instant asked;
  };

  // What is to be asked now; empty: nothing.
  std::vector<JobId> TakeQuestion(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::vector<JobId> question;
    if (under_way || now - asked < kPause) return question;
    question.swap(wanted);
    under_way = !question.empty();
    if (under_way) asked = now;
    return question;
  }
  void Want(JobId job, bool first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (std::find(wanted.begin(), wanted.end(), job) != wanted.end()) return;
    wanted.insert(first ? wanted.begin() : wanted.end(), job);
    if (wanted.size() > kAskedMax) wanted.pop_back();
  }
  void Take(const std::vector<JobId>& question, const absl::StatusOr<Spots>& spots, Instant when)
      ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(&mu);
    under_way = false;
    std::erase_if(said, [when](const auto& entry) { return when - entry.second.asked > kKept; });
    if (!spots.ok()) return;                           // asked again on the next look
    for (const JobId job : question) said.erase(job);  // what has no spot waits no longer
    for (const auto& [job, spot] : *spots) said[job] = {spot, when};
  }

  Mutex mu;
  std::vector<JobId> wanted ABSL_GUARDED_BY(mu);  // since the last question, at most kAskedMax
  bool under_way ABSL_GUARDED_BY(mu) = false;     // a question is
  Instant asked ABSL_GUARDED_BY(mu) = absl::InfinitePast();
  std::map<JobId, Said> said ABSL_GUARDED_BY(mu);
};

QueueWatch::QueueWatch(Ask ask, const Clock& clock)
    : ask_(std::move(ask)), clock_(clock), state_(std::make_shared<State>()) {}

QueueWatch::Spots QueueWatch::Of(const std::vector<JobId>& jobs) {
  const Instant now = clock_.Now();
  Spots spots;
  std::vector<JobId> question;
  {
    MutexLock lock(&state_->mu);
    for (size_t i = 0; i < std::min(jobs.size(), kAskedMax); ++i)
      state_->Want(jobs[i], jobs.size() == 1);
    for (const JobId job : jobs) {
      const auto found = state_->said.find(job);
      if (found != state_->said.end() && now - found->second.asked <= kKept)
        spots[job] = found->second.spot;
    }
    question = state_->TakeQuestion(now);
  }
  if (question.empty()) return spots;
  ask_(question, [state = state_, now, question](const absl::StatusOr<Spots>& answer) {
    state->Take(question, answer, now);
  });
  return spots;
}

}  // namespace phalanx::coordinator
