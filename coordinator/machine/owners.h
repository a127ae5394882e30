// coordinator/machine/owners.h: who owns what of the cluster, what their quotas keep in the queue,
// and whose turn it is.
//
// Owners take turns among jobs of one priority: the one with the smallest share goes first. A share
// is the device time that the owner has used (quotas.h) by its weight; devices that it has now
// count as if it had had them for a minute, so that owners take turns also where many devices are
// free at once. Only owners that wait compete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/machine/quotas.h"
#include "coordinator/machine/records.h"
#include "core/base/ids.h"

namespace phalanx::coordinator {

// Not thread-safe.
class Owners {
 public:
  // `half_life` zero: nobody takes turns.
  Owners(Quotas quotas, absl::Duration half_life)
      : quotas_(std::move(quotas)), half_life_(half_life) {}

  // Errors: a violation (InvalidArgument) of a priority above the owner's, unless it may be any;
  // FailedPrecondition for a job that could never have its devices; ResourceExhausted where too
  // many of its owner wait.
  absl::Status CheckSubmit(const JobRequest& request, bool any_priority) const;
  // Jobs that wait in the queue: so many more.
  void Queued(const std::string& owner, int64_t more);
  // Suspended ones, which wait beside it.
  void Parked(const std::string& owner, int64_t more) { uses_[owner].parked += more; }

  // A job of the owner has come to have its devices, or to have them no more. Returns what is to be
  // stored of that.
  std::optional<DeviceTimeUsed> Charge(const std::string& owner, int64_t devices, bool has,
                                       Instant now);
  // As stored at that instant.
  void Restore(const DeviceTimeUsed& used, Instant at);
  // The owner has had so many devices since then, of which what is not restored is not counted.
  void HadBefore(const std::string& owner, int64_t devices, Instant since, Instant now);

  // The queue is looked at from its front; False: the quotas are the same.
  bool Change(Quotas quotas);
  void BeginLook() {
    waits_.clear();
    reserved_.clear();
  }
  // The job waits for devices, which are reserved for it: so is what it takes of the quota, or a
  // smaller one of its owner would have it wait for that.
  void Reserve(JobId job, const JobRequest& request);
  // Why the job, which is looked at behind those before it, does not get devices for its owner's
  // quota; empty: that does not keep it. Behind one that its quota keeps no other of the owner
  // starts: smaller ones would take for ever what it waits for.
  std::string WhyWaits(JobId job, const JobRequest& request);

  // Whether several owners wait, and take turns.
  bool Compete() const { return half_life_ > absl::ZeroDuration() && waiting_owners_ > 1; }
  double ShareOf(const std::string& owner, Instant now) const;

 private:
  struct Use {
    int64_t devices = 0, jobs = 0;  // of jobs that have devices
    int64_t queued = 0;             // jobs in the queue
    int64_t parked = 0;             // suspended jobs without devices
    DeviceTime time;
  };

  Quotas quotas_;
  const absl::Duration half_life_;
  std::map<std::string, Use> uses_;
  int64_t waiting_owners_ = 0;  // with jobs in the queue
  // By owner, in this look: the first that its quota keeps, and what is reserved of it.
  std::map<std::string, JobId> waits_;
  struct Reserved {
    JobId job;  // the last one
    int64_t devices = 0, jobs = 0;
  };
  std::map<std::string, Reserved> reserved_;
};

// The owner and age of a job that waits, the oldest first.
struct OwnedJob {
  JobId job;
  absl::string_view owner;  // outlives what has it
};
// Visits jobs of one priority as their owners take turns, until `visit`, which is told the place in
// `jobs`, returns false. Shares are asked for anew after each visit of one of the owner's jobs.
void TakeTurns(const std::vector<OwnedJob>& jobs,
               const std::function<double(const std::string& owner)>& share,
               const std::function<bool(size_t place)>& visit);

}  // namespace phalanx::coordinator
