// coordinator/runtime/counting.h: what the machine publishes as counters and histograms.
//
// What a coordinator before this one saw happen it has counted itself. Owned by the driver thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "coordinator/machine/actions.h"
#include "coordinator/machine/incident.h"
#include "coordinator/metrics/metrics.h"

namespace phalanx::coordinator {

class Counting {
 public:
  Counting(Metrics& metrics, absl::Duration heartbeat_interval)
      : metrics_(metrics), heartbeat_interval_(heartbeat_interval) {}

  // While what is published is what is found in the store.
  void set_recovering(bool recovering) { recovering_ = recovering; }

  void Job(const JobView& job, Instant now);
  void Step(JobId job, const StepReport& step, Instant now);
  void Incident(JobId job, const coordinator::Incident& incident);
  void Heartbeat(const PublishHeartbeat& heartbeat);
  void Node(const NodeView& node);
  void Forget(const NodeName& node) { heartbeats_.erase(node); }
  void Forget(JobId job) { incidents_.erase(job); }

 private:
  void Time(const JobView& job, Instant now);

  Metrics& metrics_;
  const absl::Duration heartbeat_interval_;
  bool recovering_ = false;
  std::map<JobId, job::JobPhase> phases_;
  // Of a job: the last incident that was counted when it began, and when it closed.
  struct Incidents {
    int64_t begun = 0, closed = 0;
    std::string cause;  // of the one that began last
  };
  std::map<JobId, Incidents> incidents_;
  // Of a job that has not ended: up to when its time was counted, while it runs, and its last step.
  struct Times {
    std::optional<Instant> until;
    int64_t step = 0;
  };
  std::map<JobId, Times> times_;
  std::map<NodeName, Instant> heartbeats_;  // the last of each node that is connected
};

}  // namespace phalanx::coordinator
