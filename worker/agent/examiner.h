// worker/agent/examiner.h: examines the machine of this node now and then.
//
// On a thread of its own: a driver, a mount or a name server may not answer for long.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/job/node_examination.h"

namespace phalanx::agent {

struct ExaminerOptions {
  absl::Duration interval = absl::Minutes(10);
  // While there is a problem, which somebody may be about to put right, and for whoever asks.
  absl::Duration interval_min = absl::Minutes(1);
};

// Thread-safe.
class Examiner {
 public:
  using Examine = std::function<std::vector<job::Finding>()>;
  using Findings = std::shared_ptr<const std::vector<job::Finding>>;

  // Begins with an examination at once. `examine`: called on the examiner's thread.
  Examiner(Examine examine, ExaminerOptions options = {});
  // Waits for an examination that is under way.
  ~Examiner();

  // An examination is due as soon as the last one is interval_min ago; one that is under way is it.
  void Ask() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the last one that has ended, another object each time; nullptr: none has.
  Findings Last() const ABSL_LOCKS_EXCLUDED(mutex_);
  // One is under way, which the destructor would wait for.
  bool busy() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the end has come.
  bool AwaitNext() ABSL_LOCKS_EXCLUDED(mutex_);

  const Examine examine_;
  const ExaminerOptions options_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;  // or the last one has found a problem
  bool busy_ ABSL_GUARDED_BY(mutex_) = true;
  Findings last_ ABSL_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace phalanx::agent
