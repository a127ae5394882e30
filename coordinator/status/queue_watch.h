// coordinator/status/queue_watch.h: where jobs stand in the queue, for pages that are made anew all
// the time.
//
// However many look, the coordinator's thread is asked once in kPause, about kAskedMax jobs, and
// nobody waits for its answer: who looks gets what was said last, and the answer on looking again.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/machine/actions.h"
#include "core/base/time.h"

namespace phalanx::coordinator {

// Thread-safe.
class QueueWatch {
 public:
  using Spots = std::map<JobId, QueueSpot>;
  // Asks for the spots of those of the jobs that wait for devices, of so many at least as it asks
  // for; calls back once, on any thread. Does not block.
  using Ask = std::function<void(std::vector<JobId> jobs,
                                 std::function<void(absl::StatusOr<Spots> spots)> answer)>;
  static constexpr size_t kAskedMax = 32;
  // What was asked longer ago is told to nobody.
  static constexpr absl::Duration kPause = absl::Seconds(1), kKept = absl::Seconds(10);

  // `clock` outlives it; answers that come later than its end are let go.
  QueueWatch(Ask ask, const Clock& clock);

  // Of those of the jobs whose spots are known. The first kAskedMax are asked about; one that is
  // looked for alone goes before those of long lists.
  Spots Of(const std::vector<JobId>& jobs);

 private:
  struct State;

  const Ask ask_;
  const Clock& clock_;
  const std::shared_ptr<State> state_;
};

}  // namespace phalanx::coordinator
