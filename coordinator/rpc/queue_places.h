// coordinator/rpc/queue_places.h: how many jobs of one person may be in the queue.
//
// A job that is being submitted has a place until it is shown among those of the queue, so that
// many submits at once do not pass the bound together.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"

namespace phalanx::coordinator {

// Thread-safe.
class QueuePlaces {
 public:
  // `person_max`: 0: any number.
  explicit QueuePlaces(int64_t person_max) : person_max_(person_max) {}

  // A place for a job of `owner`, who has so many in the queue, until it is let go. Of nobody, in
  // plaintext, there are any number. Errors: ResourceExhausted.
  absl::StatusOr<std::shared_ptr<void>> Take(const std::string& owner, int64_t queued)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void GiveBack(const std::string& owner) ABSL_LOCKS_EXCLUDED(mu_);

  const int64_t person_max_;
  Mutex mu_;
  std::map<std::string, int64_t> taken_ ABSL_GUARDED_BY(mu_);  // above 0
};

}  // namespace phalanx::coordinator
