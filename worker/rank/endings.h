// worker/rank/endings.h: what is done with, and may wait for its peers as it goes: whoever leaves a
// Gloo mesh waits for receipts (worker/comm/gloo_farewells.h).
//
// Thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "worker/comm/communicator.h"

namespace phalanx::rank {

class Endings {
 public:
  Endings() = default;
  Endings(const Endings&) = delete;
  Endings& operator=(const Endings&) = delete;
  // Waits until all have gone.
  ~Endings();

  // It goes on a thread of this, behind those that were added before. Waits for nobody.
  void Add(std::shared_ptr<void> what);
  // Whether all that were added have gone by then.
  bool AwaitAll(comm::Deadline deadline);

 private:
  void Run();

  Mutex mu_;
  CondVar changed_;
  std::deque<std::shared_ptr<void>> waiting_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;    // so is the thread, with one that it took
  bool ending_ ABSL_GUARDED_BY(mu_) = false;  // once nothing waits any more
  std::thread thread_ ABSL_GUARDED_BY(mu_);   // from the first on
};

}  // namespace phalanx::rank
