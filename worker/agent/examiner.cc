#include "worker/agent/examiner.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace phalanx::agent {

Examiner::Examiner(Examine examine, ExaminerOptions options)
    : examine_(std::move(examine)), options_(options), thread_([this] { Run(); }) {}

Examiner::~Examiner() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
}

void Examiner::Ask() {
  {
    MutexLock lock(&mutex_);
    asked_ = true;
  }
  changed_.SignalAll();
}

Examiner::Findings Examiner::Last() const {
  MutexLock lock(&mutex_);
  return last_;
}

bool Examiner::busy() const {
  MutexLock lock(&mutex_);
  return busy_;
}

void Examiner::Run() {
  pthread_setname_np(pthread_self(), "examiner");
  do {
    auto findings = std::make_shared<const std::vector<job::Finding>>(examine_());
    MutexLock lock(&mutex_);
    asked_ = std::any_of(findings->begin(), findings->end(), [](const job::Finding& finding) {
      return finding.verdict == job::Finding::Verdict::kProblem;
    });
    last_ = std::move(findings);
    busy_ = false;
  } while (AwaitNext());
}

bool Examiner::AwaitNext() {
  using std::chrono::steady_clock;
  const steady_clock::time_point ended = steady_clock::now();
  MutexLock lock(&mutex_);
  while (!stopping_) {
    const steady_clock::time_point due =
        ended + absl::ToChronoNanoseconds(asked_ ? options_.interval_min : options_.interval);
    if (steady_clock::now() >= due) break;
    changed_.WaitUntil(&mutex_, due);
  }
  busy_ = !stopping_;
  return busy_;
}

}  // namespace phalanx::agent
